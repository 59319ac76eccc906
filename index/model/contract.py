"""The model contract: what an exported ONNX file says about itself, and the check that it keeps its word.

Input `images`: uint8 (N, crop, crop, 3), normalisation inside the graph. Output `embeddings`: float32 (N, D), unit
norm. N is dynamic. The contract is JSON under the metadata key `retrieval`; with its seal the file vouches for its own
bytes (see `index.model.seal`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from mmap import ACCESS_READ, mmap
from pathlib import Path

from index.errors import InputError, ModelFileError
from index.images.preprocess import PreprocessConfig
from index.model.backends.backend import INPUT_NAME, OUTPUT_NAME, GraphDescription, GraphValue
from index.model.seal import SEAL_KEY, UNSEALED

METADATA_KEY = "retrieval"
SCHEMA_VERSION = 2
_ONCE_UNSAID = {"view": "crop", "pooling": "own"}  # models written before could be nothing else
_CONTRACT_START, _MAX_CONTRACT_BYTES = b'{"backbone": ', 1 << 20  # its keys are sorted


@dataclass(frozen=True, slots=True)
class ModelContract:
    """What serving must know of a model.

    `method` is how it came about (`spa`, `proxy-anchor`, `raw`, `pca`, `pca-whitened`), `run_id` the training run
    (empty without one), `class_count` the training classes (0 without training). `view` is what of an image the network
    sees (`crop`, `whole`, or `both`, which the graph makes of its input), `pooling` how maps become features.
    """

    backbone: str
    method: str
    embedding_dim: int
    preprocess: PreprocessConfig
    run_id: str = ""
    class_count: int = 0
    precision: str = "float32"
    view: str = "crop"
    pooling: str = "own"
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
        values = {**_ONCE_UNSAID, **values}
        known = {field.name for field in fields(cls)} | {SEAL_KEY}
        if set(values) != known:
            raise InputError(f"the contract must have exactly the keys {sorted(known)}, got {sorted(values)}")
        for name, kind in {"backbone": str, "method": str, "run_id": str, "precision": str, "view": str, "pooling": str,
                           "embedding_dim": int, "class_count": int, "preprocess": dict}.items():  # fmt: skip
            if not isinstance(values[name], kind):
                raise InputError(f"the contract's {name} must be {kind.__name__}, got {values[name]!r}")
        if values["embedding_dim"] < 1:
            raise InputError(f"the contract's embedding_dim must be positive, got {values['embedding_dim']}")
        del values[SEAL_KEY]
        return cls(**{**values, "preprocess": PreprocessConfig.from_json(values["preprocess"])})


def find_contract(path: Path) -> ModelContract | None:
    """The contract in a model file, found by its text alone, without a runtime; None where there is none whole."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            start = max(0, data.rfind(_CONTRACT_START))
            text = data[start : start + _MAX_CONTRACT_BYTES].decode("utf-8", "ignore")
        return ModelContract.from_json(text[: json.JSONDecoder().raw_decode(text)[1]])
    except (OSError, ValueError, InputError, RecursionError):
        return None


def read_contract(graph: GraphDescription, *, path: Path) -> ModelContract:
    """The contract of an opened model, checked against its real input and output.

    Raises:
        ModelFileError: no contract, a broken one, or one that the graph does not keep.
    """
    text = graph.metadata.get(METADATA_KEY)
    if text is None:
        advice = "it was not written by `retrieval export`; export the model with that command"
        raise ModelFileError(str(path), f"the ONNX metadata has no {METADATA_KEY!r} contract: {advice}")
    try:
        contract = ModelContract.from_json(text)
    except InputError as error:
        raise ModelFileError(str(path), f"{error}; export the model again") from error
    side = contract.preprocess.crop
    _check_value(graph.inputs, GraphValue(INPUT_NAME, "tensor(uint8)", (None, side, side, 3)), path=path)
    _check_value(
        graph.outputs, GraphValue(OUTPUT_NAME, "tensor(float)", (None, contract.embedding_dim)), path=path
    )
    return contract


def _check_value(seen: Sequence[GraphValue], promised: GraphValue, *, path: Path) -> None:
    if list(seen) != [promised]:
        shape = ", ".join(map(str, promised.shape[1:]))
        expected = f"one {promised.type} named {promised.name!r} of shape (N, {shape})"
        raise ModelFileError(str(path), f"the contract promises {expected}, the graph has {list(seen)}")
