from __future__ import annotations

import hashlib
import json
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from index.errors import InputError, ModelFileError
from index.model_file import METADATA_KEY, ModelContract, hash_file, open_session, read_contract
from tests.index.test_preprocess import configs
from tests.models import tiny_contract, write_tiny_model

contracts = st.builds(
    ModelContract,
    backbone=st.text(max_size=20),
    method=st.text(max_size=20),
    embedding_dim=st.integers(1, 10_000),
    preprocess=configs,
    run_id=st.text(max_size=20),
    class_count=st.integers(0, 10**6),
    precision=st.sampled_from(["float32", "int8"]),
)


@given(contracts)
def test_a_contract_survives_its_json(contract: ModelContract) -> None:
    assert ModelContract.from_json(contract.to_json()) == contract


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(tiny_contract().to_json()), **changes})


BROKEN = {
    "no JSON": "{",
    "a JSON object": "[1]",
    "schema version is 99": changed(schema_version=99),
    "exactly the keys": changed(colour="red"),
    "embedding_dim must be int": changed(embedding_dim="16"),
    "embedding_dim must be positive": changed(embedding_dim=0),
    "backbone must be str": changed(backbone=None),
    "preprocess must have exactly the keys": changed(preprocess={}),
    "preprocess.resize": changed(preprocess={**json.loads(tiny_contract().to_json())["preprocess"], "resize": 0}),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_contract_is_named(problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        ModelContract.from_json(BROKEN[problem])
    path = write_tiny_model(tmp_path / "broken.onnx", contract=BROKEN[problem])
    with pytest.raises(ModelFileError, match=f"broken.onnx.*{problem}"):
        read_contract(open_session(path, threads=1), path=path)


def test_the_contract_of_a_good_model_is_read(tiny_model: Path) -> None:
    assert read_contract(open_session(tiny_model, threads=1), path=tiny_model) == tiny_contract()


def test_a_model_without_a_contract_is_refused_with_advice(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "foreign.onnx", without_contract=True)
    with pytest.raises(ModelFileError, match=r"foreign.onnx.*retrieval export"):
        read_contract(open_session(path, threads=1), path=path)


@pytest.mark.parametrize("promise", [{"embedding_dim": 17}, {"preprocess": {"crop": 30}}])
def test_a_contract_that_the_graph_does_not_keep_is_refused(tmp_path: Path, promise: dict[str, object]) -> None:
    values = json.loads(tiny_contract().to_json())
    if "preprocess" in promise:
        promise = {"preprocess": {**values["preprocess"], **promise["preprocess"]}}
    path = write_tiny_model(tmp_path / "liar.onnx", contract=json.dumps({**values, **promise}))
    with pytest.raises(ModelFileError, match="the contract promises"):
        read_contract(open_session(path, threads=1), path=path)


def test_a_graph_with_a_fixed_batch_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["images"], ["embeddings"])
    pixels = helper.make_tensor_value_info("images", TensorProto.UINT8, [1, 32, 32, 3])
    result = helper.make_tensor_value_info("embeddings", TensorProto.UINT8, [1, 32, 32, 3])
    model = helper.make_model(
        helper.make_graph([node], "fixed", [pixels], [result]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    helper.set_model_props(model, {METADATA_KEY: tiny_contract().to_json()})
    onnx.save(model, tmp_path / "fixed.onnx")
    with pytest.raises(ModelFileError, match="the contract promises"):
        read_contract(open_session(tmp_path / "fixed.onnx", threads=1), path=tmp_path / "fixed.onnx")


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such model file"):
        open_session(tmp_path / "missing.onnx")
    for content in (b"", b"hello", b"\x08\x07" * 50):
        (tmp_path / "junk.onnx").write_bytes(content)
        with pytest.raises(ModelFileError, match=r"junk.onnx.*not a usable ONNX model"):
            open_session(tmp_path / "junk.onnx")


def test_the_file_hash_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert hash_file(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
