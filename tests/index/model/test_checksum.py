import hashlib
import json
import os
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import ModelFileError
from index.model.checksum import CHECKSUM_KEY, EMPTY_CHECKSUM, MAX_MODEL_BYTES, add_checksum, read_model_file
from index.model.contract import METADATA_KEY
from tests.models import tiny_contract

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


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that even root cannot read")
def test_a_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"/proc/self/mem: cannot be read: "):
        read_model_file(Path("/proc/self/mem"))


def test_a_file_too_large_for_onnx_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(MAX_MODEL_BYTES + 1)
    with pytest.raises(ModelFileError, match=rf"large\.onnx: {MAX_MODEL_BYTES + 1} bytes"):
        read_model_file(tmp_path / "large.onnx")
