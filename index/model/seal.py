"""The seal of a model file: the file's own SHA-256, written inside it, so that no damaged byte is ever run.

The contract holds `"seal": "<64 hexadecimal digits>"`: the SHA-256 of the whole file with those digits as zeros. The
runtime is native code that a damaged file can crash, so the seal is checked before the runtime sees a byte, and what
the runtime gets are the very bytes that were checked.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from index.errors import ModelFileError

SEAL_KEY = "seal"
UNSEALED = "0" * 64
MAX_MODEL_BYTES = (1 << 31) - 1  # of a protobuf message, which an ONNX file is
_SEAL = re.compile(rb'"%b": "([0-9a-f]{64})"' % SEAL_KEY.encode())
_VERSION = re.compile(rb'"schema_version": (\d{1,9})\b')


@dataclass(frozen=True, slots=True)
class SealedModel:
    """The content of a model file whose seal is whole, with the SHA-256 of all of it."""

    path: Path
    data: bytes
    sha256: str


def seal_model(data: bytes) -> bytes:
    """The content of a model file with its seal in the place of `UNSEALED`."""
    start = _find_seal(data)
    if start is None or data[start : start + len(UNSEALED)] != UNSEALED.encode():
        raise ValueError(f'to be sealed, a model must have one place with "{SEAL_KEY}": "{UNSEALED}"')
    return data[:start] + hashlib.sha256(data).hexdigest().encode() + data[start + len(UNSEALED) :]


def read_sealed(path: Path) -> SealedModel:
    """Read a model file once, and check it against its seal.

    Raises:
        ModelFileError: the file is missing, unreadable, unsealed, of another version, or damaged.
    """
    data = _read(path)
    start = _find_seal(data)
    if start is None:
        raise ModelFileError(str(path), _why_unsealed(data))
    view, end = memoryview(data), start + len(UNSEALED)
    whole = hashlib.sha256(view[:start])
    as_sealed = whole.copy()  # the digits stand near the end: the file is hashed once, not twice
    whole.update(view[start:])
    as_sealed.update(UNSEALED.encode())
    as_sealed.update(view[end:])
    expected, seen = data[start:end].decode(), as_sealed.hexdigest()
    if seen != expected:
        raise ModelFileError(
            str(path),
            f"damaged: its seal is {expected[:16]}…, its content gives {seen[:16]}…; "
            "copy the file again from where it came, or export the model again",
        )
    return SealedModel(path, data, whole.hexdigest())


def _read(path: Path) -> bytes:
    if path.is_dir():
        advice = "if it is a training run, export it first: retrieval export RUN --out model.onnx"
        raise ModelFileError(str(path), f"expected an .onnx model file, found a folder; {advice}")
    if not path.is_file():
        raise ModelFileError(str(path), "no such model file")
    try:
        size = path.stat().st_size
        if size > MAX_MODEL_BYTES:
            raise ModelFileError(str(path), f"{size} bytes; an ONNX file has at most {MAX_MODEL_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(str(path), f"cannot be read: {error.strerror}") from error


def _find_seal(data: bytes) -> int | None:
    """Where the digits of the only seal begin; None where there is none, or more than one."""
    places = [found.start(1) for found in _SEAL.finditer(data)]
    return places[0] if len(places) == 1 else None


def _why_unsealed(data: bytes) -> str:
    version = _VERSION.search(data)
    if version is not None:
        return (
            f"the contract of schema version {version[1].decode()} has no whole seal: it is of an older program, or "
            "the file is damaged; export the model again"
        )
    return (
        "not a usable ONNX model: it has no contract (preprocessing, outputs, checksum), which `retrieval export` "
        "adds. ONNX files of other programs are not taken; export their PyTorch weights: "
        "retrieval export --backbone NAME --weights FILE --out model.onnx. Where `retrieval export` wrote this file, "
        "it is damaged: export it again"
    )
