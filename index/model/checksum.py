"""Checksum of a model file: its own SHA-256, stored inside it, verified before the file is run.

The contract holds `"checksum": "<64 hexadecimal digits>"`: the SHA-256 of the whole file with those digits as zeros.
The runtime is native code that a damaged file can crash. So the checksum is verified before the runtime sees a byte,
and the runtime gets the bytes that were verified.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from index.errors import ModelFileError

CHECKSUM_KEY = "checksum"
EMPTY_CHECKSUM = "0" * 64
MAX_MODEL_BYTES = (1 << 31) - 1  # of a protobuf message, which an ONNX file is
_CHECKSUM = re.compile(rb'"%b": "([0-9a-f]{64})"' % CHECKSUM_KEY.encode())


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Content of a model file whose checksum was verified, and the SHA-256 of all of it."""

    path: Path
    data: bytes
    sha256: str


def add_checksum(data: bytes) -> bytes:
    """Content of a model file with its checksum in the place of `EMPTY_CHECKSUM`."""
    start = _find_checksum(data)
    if start is None or data[start : start + len(EMPTY_CHECKSUM)] != EMPTY_CHECKSUM.encode():
        raise ValueError(f'a model needs one place with "{CHECKSUM_KEY}": "{EMPTY_CHECKSUM}"')
    return data[:start] + hashlib.sha256(data).hexdigest().encode() + data[start + len(EMPTY_CHECKSUM) :]


def read_model_file(path: Path) -> ModelFile:
    """Read a model file once and verify its checksum."""
    data = _read(path)
    start = _find_checksum(data)
    if start is None:
        raise ModelFileError(
            str(path),
            "not a usable ONNX model: it has no contract (preprocessing, outputs, checksum), which `retrieval export` "
            "adds. Wrap an ONNX file of another program: retrieval export --backbone FILE.onnx --out model.onnx. Where "
            "`retrieval export` wrote this file, it is damaged: export it again",
        )
    view, end = memoryview(data), start + len(EMPTY_CHECKSUM)
    whole = hashlib.sha256(view[:start])
    with_zeros = whole.copy()  # the digits stand near the end: the file is hashed once, not twice
    whole.update(view[start:])
    with_zeros.update(EMPTY_CHECKSUM.encode())
    with_zeros.update(view[end:])
    expected, seen = data[start:end].decode(), with_zeros.hexdigest()
    if seen != expected:
        raise ModelFileError(
            str(path),
            f"damaged: its checksum is {expected[:16]}…, its content gives {seen[:16]}…; "
            "copy the file again from where it came, or export the model again",
        )
    return ModelFile(path, data, whole.hexdigest())


def _read(path: Path) -> bytes:
    if path.is_dir():
        advice = "if it is a training run, export it first: retrieval export RUN --out model.onnx"
        raise ModelFileError(str(path), f"expected an .onnx model file, found a folder; {advice}")
    if not path.is_file():
        raise ModelFileError(str(path), "no such model file; `retrieval export` writes one")
    try:
        size = path.stat().st_size
        if size > MAX_MODEL_BYTES:
            raise ModelFileError(str(path), f"{size} bytes; an ONNX file has at most {MAX_MODEL_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(str(path), f"cannot be read: {error.strerror}") from error


def _find_checksum(data: bytes) -> int | None:
    """Offset of the checksum's digits; None where there is no checksum, or more than one."""
    places = [found.start(1) for found in _CHECKSUM.finditer(data)]
    return places[0] if len(places) == 1 else None
