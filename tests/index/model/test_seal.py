from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import ModelFileError
from index.model.contract import METADATA_KEY
from index.model.seal import MAX_MODEL_BYTES, SEAL_KEY, UNSEALED, read_sealed, seal_model
from tests.models import tiny_contract

PLACE = f'"{SEAL_KEY}": "{UNSEALED}"'.encode()
contents = st.tuples(st.binary(max_size=300), st.binary(max_size=300)).map(PLACE.join)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all examples of a property."""
    return tmp_path_factory.mktemp("seal") / "any.onnx"


@given(content=contents)
def test_sealing_any_bytes_with_one_place_for_it_verifies(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(seal_model(content))
    sealed = read_sealed(scratch)
    assert sealed.sha256 == hashlib.sha256(sealed.data).hexdigest()
    assert len(sealed.data) == len(content)
    assert sum(a != b for a, b in zip(sealed.data, content, strict=True)) <= len(UNSEALED)


@given(content=contents, data=st.data())
def test_any_change_of_one_byte_is_noticed(scratch: Path, content: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal_model(content))
    place = data.draw(st.integers(0, len(sealed) - 1), label="place")
    sealed[place] ^= data.draw(st.integers(1, 255), label="flipped bits")
    scratch.write_bytes(sealed)
    with pytest.raises(ModelFileError, match=r"any\.onnx: "):
        read_sealed(scratch)


def test_every_bit_of_a_real_model_is_under_the_seal(tiny_model: Path, scratch: Path) -> None:
    content = tiny_model.read_bytes()
    start = content.index(PLACE[:9])
    for place in (*range(0, start, 97), *range(start - 300, len(content))):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        scratch.write_bytes(changed)
        with pytest.raises(ModelFileError, match=r"any\.onnx: "):
            read_sealed(scratch)


def test_a_sealed_model_says_its_own_hash(tiny_model: Path) -> None:
    (entry,) = onnx.load(tiny_model).metadata_props
    assert entry.key == METADATA_KEY
    seal = json.loads(entry.value)[SEAL_KEY]
    content = tiny_model.read_bytes()
    assert content.count(seal.encode()) == 1
    assert seal == hashlib.sha256(content.replace(seal.encode(), UNSEALED.encode())).hexdigest()


@pytest.mark.parametrize("content", [b"", b"no place", PLACE + PLACE, PLACE.replace(b"0", b"1")])
def test_only_one_empty_place_can_be_sealed(content: bytes) -> None:
    with pytest.raises(ValueError, match="to be sealed, a model must have one place"):
        seal_model(content)


def test_a_second_seal_is_refused(scratch: Path) -> None:
    sealed = seal_model(PLACE)
    scratch.write_bytes(sealed + sealed)
    with pytest.raises(ModelFileError, match=r"any\.onnx: .*export"):
        read_sealed(scratch)


def test_a_name_in_the_contract_cannot_pass_for_the_seal() -> None:
    text = tiny_contract().to_json().replace('"tiny"', json.dumps(PLACE.decode()))
    assert SEAL_KEY in json.loads(text)["backbone"]
    assert seal_model(text.encode()).decode() != text


def test_a_path_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing\.onnx: no such model file"):
        read_sealed(tmp_path / "missing.onnx")
    with pytest.raises(ModelFileError, match=r"found a folder; .* retrieval export RUN"):
        read_sealed(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelFileError, match=r"pipe\.onnx: no such model file"):
        read_sealed(tmp_path / "pipe.onnx")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that even root cannot read")
def test_a_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"/proc/self/mem: cannot be read: "):
        read_sealed(Path("/proc/self/mem"))


def test_a_file_too_large_for_onnx_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(MAX_MODEL_BYTES + 1)
    with pytest.raises(ModelFileError, match=rf"large\.onnx: {MAX_MODEL_BYTES + 1} bytes"):
        read_sealed(tmp_path / "large.onnx")
