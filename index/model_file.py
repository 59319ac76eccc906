"""The model contract: what an exported ONNX file says about itself, and the check that it keeps its word.

Input `images`: uint8 (N, crop, crop, 3), normalisation inside the graph. Output `embeddings`: float32 (N, D), unit
norm. N is dynamic. The contract is JSON under the metadata key `retrieval`; with its seal the file vouches for its own
bytes (see `index.model_seal`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.errors import InputError, ModelFileError
from index.model_graph import UnsafeModelError, check_graph
from index.model_seal import SEAL_KEY, UNSEALED, SealedModel
from index.preprocess import PreprocessConfig
from index.telemetry import import_onnxruntime

if TYPE_CHECKING:
    import onnxruntime

METADATA_KEY = "retrieval"
SCHEMA_VERSION = 2
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
        """The metadata text, with the place of the seal; `seal_model` fills it in the whole file."""
        values = {**asdict(self), "preprocess": self.preprocess.to_json(), SEAL_KEY: UNSEALED}
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelContract:
        """Parse and validate the metadata text; the seal is of the file, and no part of the result.

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
        known = {field.name for field in fields(cls)} | {SEAL_KEY}
        if set(values) != known:
            raise InputError(f"the contract must have exactly the keys {sorted(known)}, got {sorted(values)}")
        for name, kind in {"backbone": str, "method": str, "run_id": str, "precision": str,
                           "embedding_dim": int, "class_count": int, "preprocess": dict}.items():  # fmt: skip
            if not isinstance(values[name], kind):
                raise InputError(f"the contract's {name} must be {kind.__name__}, got {values[name]!r}")
        if values["embedding_dim"] < 1:
            raise InputError(f"the contract's embedding_dim must be positive, got {values['embedding_dim']}")
        del values[SEAL_KEY]
        return cls(**{**values, "preprocess": PreprocessConfig.from_json(values["preprocess"])})


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises for a model it cannot use: classes without a base of their own."""
    runtime = import_onnxruntime().capi.onnxruntime_pybind11_state
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NotImplemented", "RuntimeException")
    # a name in the graph that is no UTF-8 fails on its way to Python, be it in an error message
    return (*(getattr(runtime, name) for name in names), UnicodeDecodeError)


def open_session(model: SealedModel, *, threads: int | None = None) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session: the GPU where the installed runtime has one, else the CPU.

    Raises:
        ModelFileError: the content is no ONNX model, or one that does more than compute (see `index.model_graph`).
        MissingDependencyError: onnxruntime is not installed.
    """
    try:
        check_graph(model.data)
    except UnsafeModelError as error:
        problem = f"not a usable ONNX model: {error}; export the model with `retrieval export`"
        raise ModelFileError(str(model.path), problem) from error
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads or 0
    if threads is None:  # on every core, beside the threads that decode: waiting in a loop would take their time
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    try:
        return onnxruntime.InferenceSession(model.data, sess_options=options, providers=providers)
    except runtime_errors() as error:
        raise ModelFileError(str(model.path), f"not a usable ONNX model: {error}") from error


def read_contract(session: onnxruntime.InferenceSession, *, path: Path) -> ModelContract:
    """The contract of an opened model, checked against its real input and output.

    Raises:
        ModelFileError: no contract, a broken one, or one that the graph does not keep.
    """
    try:
        text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        inputs, outputs = _describe(session.get_inputs()), _describe(session.get_outputs())
    except UnicodeDecodeError as error:
        raise ModelFileError(str(path), f"not a usable ONNX model: {error}") from error
    if text is None:
        advice = "it was not written by `retrieval export`; export the model with that command"
        raise ModelFileError(str(path), f"the ONNX metadata has no {METADATA_KEY!r} contract: {advice}")
    try:
        contract = ModelContract.from_json(text)
    except InputError as error:
        raise ModelFileError(str(path), f"{error}; export the model again") from error
    side = contract.preprocess.crop
    _check_value(inputs, path=path, name=INPUT_NAME, kind="tensor(uint8)", tail=[side, side, 3])
    _check_value(outputs, path=path, name=OUTPUT_NAME, kind="tensor(float)", tail=[contract.embedding_dim])
    return contract


def _describe(values: list[Any]) -> list[tuple[str, str, list[Any]]]:
    """Name, type and shape of a graph's inputs or outputs."""
    return [(value.name, value.type, list(value.shape)) for value in values]


def _check_value(
    seen: list[tuple[str, str, list[Any]]], *, path: Path, name: str, kind: str, tail: list[int]
) -> None:
    expected = f"one {kind} named {name!r} of shape (N, {', '.join(map(str, tail))})"
    if len(seen) != 1 or seen[0][:2] != (name, kind) or seen[0][2][1:] != tail or isinstance(seen[0][2][0], int):
        raise ModelFileError(str(path), f"the contract promises {expected}, the graph has {seen}")
