import hashlib
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.errors import InputError, ModelFileError
from index.model.backends.onnxruntime import import_onnxruntime
from index.model.backends.registry import open_backend
from index.model.checksum import CHECKSUM_KEY, EMPTY_CHECKSUM, MAX_MODEL_BYTES, add_checksum, read_model_file
from index.model.contract import METADATA_KEY, MeasuredPrecision, ModelContract, find_contract, read_contract
from index.model.embedder import Embedder
from tests.conftest import tries
from tests.index.images.test_preprocess import configs
from tests.models import (
    COPY_DIM,
    EMBEDDING_DIM,
    tiny_contract,
    two_output_contract,
    write_tiny_model,
    write_two_output_model,
)
from tests.mutations import MUTATORS, Mutator

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
    return read_contract(open_backend(read_model_file(path), threads=1), path=path)


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(tiny_contract().to_json()), **changes})


CHECKSUM = f'"{CHECKSUM_KEY}": "{EMPTY_CHECKSUM}"'
BROKEN = {
    "no JSON": f"{{{CHECKSUM}",
    "schema version is 99": changed(schema_version=99),
    "expected 1 with its keys: a pre-release": changed(colour="red"),
    "embedding_dim must be positive": changed(embedding_dim=0),
    "copy_threshold a cosine, got .* and 1.5": changed(copy_dim=12, copy_threshold=1.5),
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


CASES_PER_DAMAGE = tries(25, deep=250)


@pytest.mark.deep
@pytest.mark.parametrize("damage", MUTATORS, ids=lambda damage: damage.__name__)
def test_a_damaged_model_is_refused_by_name_before_it_is_run(
    damage: Mutator, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, chance, path = (
        tiny_model.read_bytes(),
        random.Random(f"checksum {damage.__name__}"),
        tmp_path / "bent.onnx",
    )

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a damaged file reached the runtime")

    monkeypatch.setattr(import_onnxruntime(), "InferenceSession", refuse)
    made = 0
    while made < CASES_PER_DAMAGE:
        damaged = damage(content, chance)
        if damaged == content:
            continue
        made += 1
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=r"bent\.onnx: .*export"):
            Embedder(path)


def test_two_models_never_mix(tiny_model: Path, tmp_path: Path) -> None:
    first, second = tiny_model.read_bytes(), write_tiny_model(tmp_path / "b.onnx", seed=1).read_bytes()
    mixed = {first[:place] + second[place:] for place in range(0, len(first), 97)} - {first, second}
    assert len(mixed) > 50
    for content in mixed:
        (tmp_path / "mixed.onnx").write_bytes(content)
        with pytest.raises(ModelFileError, match=r"mixed\.onnx: damaged"):
            Embedder(tmp_path / "mixed.onnx")


PLACE = f'"{CHECKSUM_KEY}": "{EMPTY_CHECKSUM}"'.encode()
contents = st.tuples(st.binary(max_size=300), st.binary(max_size=300)).map(PLACE.join)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all examples of a property."""
    return tmp_path_factory.mktemp("checksum") / "any.onnx"


@given(content=contents)
def test_any_bytes_with_one_place_for_the_checksum_verify(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(add_checksum(content))
    checked = read_model_file(scratch)
    assert checked.sha256 == hashlib.sha256(checked.data).hexdigest()
    assert len(checked.data) == len(content)
    assert sum(a != b for a, b in zip(checked.data, content, strict=True)) <= len(EMPTY_CHECKSUM)


@given(content=contents, data=st.data())
def test_any_change_of_one_byte_is_noticed(scratch: Path, content: bytes, data: st.DataObject) -> None:
    checked = bytearray(add_checksum(content))
    place = data.draw(st.integers(0, len(checked) - 1), label="place")
    checked[place] ^= data.draw(st.integers(1, 255), label="flipped bits")
    scratch.write_bytes(checked)
    with pytest.raises(ModelFileError, match=r"any\.onnx: "):
        read_model_file(scratch)


def test_the_checksum_covers_every_bit_of_a_real_model(tiny_model: Path, scratch: Path) -> None:
    content = tiny_model.read_bytes()
    start = content.index(PLACE.partition(b"0")[0])
    for place in (*range(0, start, 97), *range(start - 300, len(content))):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        scratch.write_bytes(changed)
        with pytest.raises(ModelFileError, match=r"any\.onnx: "):
            read_model_file(scratch)


def test_a_model_file_holds_its_own_checksum(tiny_model: Path) -> None:
    (entry,) = onnx.load(tiny_model).metadata_props
    assert entry.key == METADATA_KEY
    checksum = json.loads(entry.value)[CHECKSUM_KEY]
    content = tiny_model.read_bytes()
    assert content.count(checksum.encode()) == 1
    assert checksum == hashlib.sha256(content.replace(checksum.encode(), EMPTY_CHECKSUM.encode())).hexdigest()


@pytest.mark.parametrize("content", [b"", b"no place", PLACE + PLACE, PLACE.replace(b"0", b"1")])
def test_only_one_empty_place_can_take_the_checksum(content: bytes) -> None:
    with pytest.raises(ValueError, match="a model needs one place"):
        add_checksum(content)


def test_a_second_checksum_is_refused(scratch: Path) -> None:
    checked = add_checksum(PLACE)
    scratch.write_bytes(checked + checked)
    with pytest.raises(ModelFileError, match=r"any\.onnx: .*export"):
        read_model_file(scratch)


def test_a_name_in_the_contract_cannot_pass_for_the_checksum() -> None:
    text = tiny_contract().to_json().replace('"tiny"', json.dumps(PLACE.decode()))
    assert CHECKSUM_KEY in json.loads(text)["backbone"]
    assert add_checksum(text.encode()).decode() != text


def test_a_path_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing\.onnx: no such model file"):
        read_model_file(tmp_path / "missing.onnx")
    with pytest.raises(ModelFileError, match=r"found a folder; .* retrieval export RUN"):
        read_model_file(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelFileError, match=r"pipe\.onnx: no such model file"):
        read_model_file(tmp_path / "pipe.onnx")


def test_a_file_too_large_for_onnx_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(MAX_MODEL_BYTES + 1)
    with pytest.raises(ModelFileError, match=rf"large\.onnx: {MAX_MODEL_BYTES + 1} bytes"):
        read_model_file(tmp_path / "large.onnx")
