import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.errors import InputError, ModelFileError
from index.model.backends.registry import open_backend
from index.model.checksum import CHECKSUM_KEY, EMPTY_CHECKSUM, add_checksum, read_model_file
from index.model.contract import MeasuredPrecision, ModelContract, find_contract, read_contract
from tests.deep import tries
from tests.index.images.test_preprocess import configs
from tests.models import (
    COPY_DIM,
    EMBEDDING_DIM,
    tiny_contract,
    two_output_contract,
    write_tiny_model,
    write_two_output_model,
)

contracts = st.builds(
    ModelContract,
    backbone=st.text(max_size=20),
    method=st.text(max_size=20),
    embedding_dim=st.integers(1, 10_000),
    preprocess=configs,
    run_id=st.text(max_size=20),
    class_count=st.integers(0, 10**6),
    precision=st.sampled_from(["float32", "int8"]),
    view=st.sampled_from(["crop", "whole", "both"]),
    pooling=st.sampled_from(["own", "gem", "layers"]),
)
two_outputs = st.builds(
    replace, contracts, copy_dim=st.integers(1, 10_000), copy_threshold=st.floats(-1, 1, allow_nan=False)
)
shares = st.floats(0, 1)
measured = st.builds(
    replace,
    contracts | two_outputs,
    untrained_dim=st.integers(0, 10_000),
    measured=st.builds(MeasuredPrecision, st.integers(1, 10**6), shares, shares, shares, st.integers(0, 100)),
)


@settings(max_examples=tries(10, deep=100))
@given(contracts | two_outputs | measured)
def test_a_contract_survives_its_json(contract: ModelContract) -> None:
    assert ModelContract.from_json(contract.to_json()) == contract


def open_and_read(path: Path) -> ModelContract:
    return read_contract(open_backend(read_model_file(path), threads=1).describe(), path=path)


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(tiny_contract().to_json()), **changes})


CHECKSUM = f'"{CHECKSUM_KEY}": "{EMPTY_CHECKSUM}"'
BROKEN = {
    "no JSON": f"{{{CHECKSUM}",
    "schema version is 99": changed(schema_version=99),
    "expected 1 with its keys: a pre-release": changed(colour="red"),
    "embedding_dim must be positive": changed(embedding_dim=0),
    "copy_threshold a cosine, got 12 and 1.5": changed(copy_dim=12, copy_threshold=1.5),
    "measured must be an object with exactly the keys .*images": changed(measured={"images": 3}),
    "preprocess.resize": changed(preprocess={**json.loads(tiny_contract().to_json())["preprocess"], "resize": 0}),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_contract_is_named(problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        ModelContract.from_json(BROKEN[problem])
    path = write_tiny_model(tmp_path / "broken.onnx", contract=BROKEN[problem])
    with pytest.raises(ModelFileError, match=f"broken.onnx.*{problem}"):
        open_and_read(path)


def test_the_contract_of_a_model_with_two_outputs_is_read(tmp_path: Path) -> None:
    contract = open_and_read(write_two_output_model(tmp_path / "two.onnx"))
    assert contract == two_output_contract()
    assert contract.widths == {"semantic": EMBEDDING_DIM, "copy": COPY_DIM}


@pytest.mark.parametrize("two", [False, True])
def test_outputs_that_are_not_those_of_the_contract_are_refused(tmp_path: Path, two: bool) -> None:
    promised = tiny_contract() if two else two_output_contract()
    path = write_tiny_model(tmp_path / "liar.onnx", two=two, contract=promised.to_json())
    with pytest.raises(ModelFileError, match=r"liar.onnx: the contract promises .*'embeddings'.*, the graph has"):
        open_and_read(path)


def test_a_model_without_a_contract_is_refused_with_advice(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "foreign.onnx", without_contract=True)
    with pytest.raises(ModelFileError, match=r"foreign.onnx.*retrieval export"):
        open_and_read(path)


@pytest.mark.parametrize("promise", [{"embedding_dim": 17}, {"preprocess": {"crop": 30}}])
def test_a_contract_that_the_graph_does_not_keep_is_refused(tmp_path: Path, promise: dict[str, object]) -> None:
    values = json.loads(tiny_contract().to_json())
    if "preprocess" in promise:
        promise = {"preprocess": {**values["preprocess"], **promise["preprocess"]}}
    path = write_tiny_model(tmp_path / "liar.onnx", contract=json.dumps({**values, **promise}))
    with pytest.raises(ModelFileError, match="the contract promises"):
        open_and_read(path)


def with_bytes_replaced(model: Path, out: Path, *, old: bytes, new: bytes) -> Path:
    """A copy with other bytes of the same length, with a new checksum: what a forger could hand out."""
    content = model.read_bytes()
    digits = json.loads(onnx.load(model).metadata_props[0].value)[CHECKSUM_KEY].encode()
    changed = content.replace(digits, EMPTY_CHECKSUM.encode()).replace(old, new)
    assert changed != content
    assert len(changed) == len(content)
    out.write_bytes(add_checksum(changed))
    return out


@pytest.mark.parametrize(
    ("old", "new"), [(b"images", b"\xff" * 6), (b"Transpose", b"Nonsense_"), (b"\x08\x08", b"\xff\xff")]
)
def test_nonsense_with_a_right_checksum_is_refused(tiny_model: Path, tmp_path: Path, old: bytes, new: bytes) -> None:
    path = with_bytes_replaced(tiny_model, tmp_path / "forged.onnx", old=old, new=new)
    with pytest.raises(ModelFileError, match=r"forged.onnx: not a usable ONNX model"):
        open_and_read(path)


def test_the_contract_is_found_and_damage_is_survived(tmp_path: Path, tiny_model: Path) -> None:
    content = tiny_model.read_bytes()
    assert find_contract(tiny_model) == tiny_contract()
    path = tmp_path / "damaged.onnx"
    found = []
    for cut in range(0, len(content), 61):
        for damaged in (content[:cut], content[:cut] + b"\xff\xff\xff" + content[cut + 3 :]):
            path.write_bytes(damaged)
            found.append(find_contract(path))
    assert all(contract is None or contract.backbone == "tiny" for contract in found)
    assert found.count(None) > len(found) / 4
    assert find_contract(tmp_path / "none.onnx") is None
