"""The model contract: what an exported ONNX file says about itself, and the check that it keeps its word.

Input `images`: uint8 (N, crop, crop, 3), normalisation inside the graph. Output `embeddings`: float32 (N, D), unit
norm. N is dynamic. The contract is JSON under the metadata key `retrieval`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.errors import InputError, MissingDependencyError, ModelFileError
from index.preprocess import PreprocessConfig

if TYPE_CHECKING:
    import onnxruntime

METADATA_KEY = "retrieval"
SCHEMA_VERSION = 1
INPUT_NAME = "images"
OUTPUT_NAME = "embeddings"


@dataclass(frozen=True, slots=True)
class ModelContract:
    """What serving must know of a model.

    `method` is how it came about (`spa`, `proxy-anchor`, `raw`, `pca`, `pca-whitened`), `run_id` the training run
    (empty without one), `class_count` the training classes (0 without training).
    """

    backbone: str
    method: str
    embedding_dim: int
    preprocess: PreprocessConfig
    run_id: str = ""
    class_count: int = 0
    precision: str = "float32"
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """The metadata text."""
        return json.dumps({**asdict(self), "preprocess": self.preprocess.to_json()}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelContract:
        """Parse and validate the metadata text.

        Raises:
            InputError: no JSON object, another schema version, a key missing or unknown, or a wrong type.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InputError(f"the contract is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise InputError(f"the contract must be a JSON object, got {type(values).__name__}")
        version = values.get("schema_version")
        if version != SCHEMA_VERSION:
            raise InputError(f"the contract's schema version is {version!r}, this program reads {SCHEMA_VERSION}")
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise InputError(f"the contract must have exactly the keys {sorted(known)}, got {sorted(values)}")
        for name, kind in {"backbone": str, "method": str, "run_id": str, "precision": str,
                           "embedding_dim": int, "class_count": int, "preprocess": dict}.items():  # fmt: skip
            if not isinstance(values[name], kind):
                raise InputError(f"the contract's {name} must be {kind.__name__}, got {values[name]!r}")
        if values["embedding_dim"] < 1:
            raise InputError(f"the contract's embedding_dim must be positive, got {values['embedding_dim']}")
        return cls(**{**values, "preprocess": PreprocessConfig.from_json(values["preprocess"])})


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_session(path: Path, *, threads: int | None = None) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session: the GPU where the installed runtime has one, else the CPU.

    Raises:
        ModelFileError: the file is missing or no ONNX model.
        MissingDependencyError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(package="onnxruntime", extra="cpu", purpose="running a model") from error
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf

    if path.is_dir():
        advice = "if it is a training run, export it first: retrieval export RUN --out model.onnx"
        raise ModelFileError(str(path), f"expected an .onnx model file, found a folder; {advice}")
    if not path.is_file():
        raise ModelFileError(str(path), "no such model file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads or 0
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    try:
        return onnxruntime.InferenceSession(str(path), sess_options=options, providers=providers)
    except (Fail, InvalidArgument, InvalidGraph, InvalidProtobuf) as error:
        raise ModelFileError(str(path), f"not a usable ONNX model: {error}") from error


def read_contract(session: onnxruntime.InferenceSession, *, path: Path) -> ModelContract:
    """The contract of an opened model, checked against its real input and output.

    Raises:
        ModelFileError: no contract, a broken one, or one that the graph does not keep.
    """
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        advice = "it was not written by `retrieval export`; export the model with that command"
        raise ModelFileError(str(path), f"the ONNX metadata has no {METADATA_KEY!r} contract: {advice}")
    try:
        contract = ModelContract.from_json(text)
    except InputError as error:
        raise ModelFileError(str(path), f"{error}; export the model again") from error
    side = contract.preprocess.crop
    _check_value(session.get_inputs(), path=path, name=INPUT_NAME, kind="tensor(uint8)", tail=[side, side, 3])
    _check_value(
        session.get_outputs(), path=path, name=OUTPUT_NAME, kind="tensor(float)", tail=[contract.embedding_dim]
    )
    return contract


def _check_value(values: list[Any], *, path: Path, name: str, kind: str, tail: list[int]) -> None:
    seen = [(value.name, value.type, list(value.shape)) for value in values]
    expected = f"one {kind} named {name!r} of shape (N, {', '.join(map(str, tail))})"
    if len(seen) != 1 or seen[0][:2] != (name, kind) or seen[0][2][1:] != tail or isinstance(seen[0][2][0], int):
        raise ModelFileError(str(path), f"the contract promises {expected}, the graph has {seen}")
