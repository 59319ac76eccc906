"""The model contract: what an exported ONNX file says about itself, and the check that it keeps its word.

Input `images`: uint8 (N, crop, crop, 3), normalisation inside the graph. Output `embeddings`: float32 (N, D), unit
norm, for semantic similarity. A model may have two more, float32 of unit norm: `copy` (N, P) for copy detection, and
`untrained` (N, U), features trained without labels. N is dynamic. The contract is JSON under the
metadata key `retrieval`; its `checksum` is the SHA-256 of the whole file (see `index.model.checksum`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from index.errors import InputError, ModelFileError
from index.images.preprocess import PreprocessConfig
from index.marks import check_object
from index.model.backends.backend import (
    COPY_NAME,
    INPUT_NAME,
    OUTPUT_NAME,
    UNTRAINED_NAME,
    GraphDescription,
    GraphValue,
)
from index.model.checksum import CHECKSUM_KEY, EMPTY_CHECKSUM
from index.outputs import COPY, SEMANTIC, UNTRAINED

METADATA_KEY = "retrieval"
GRAPH_NAMES = {SEMANTIC: OUTPUT_NAME, COPY: COPY_NAME, UNTRAINED: UNTRAINED_NAME}
"""What can be asked of an image, and the graph's output that answers."""
SCHEMA_VERSION = 1
_SCHEMA: dict[str, Any] = {
    "backbone": str, "method": str, "run_id": str, "precision": str, "view": str, "pooling": str, "preprocess": dict,
    "embedding_dim": int, "class_count": int, "copy_dim": int, "copy_threshold": float, "untrained_dim": int,
    "measured": {
        "images": int, "recall_at_1": int | float, "recall_at_1_float32": int | float, "centred_cosine": int | float,
        "float_layers": int,
    },
    CHECKSUM_KEY: str,
}  # fmt: skip
_METHODS_WITHOUT_LABELS = ("raw", "pca", "pca-half-whitened", "pca-whitened", "distilled")
_CONTRACT_START, _MAX_CONTRACT_BYTES = b'{"backbone": ', 1 << 20  # its keys are sorted


@dataclass(frozen=True, slots=True)
class MeasuredPrecision:
    """What a precision other than float32 costs, on images that it was not made with.

    Attributes:
        images: that it was measured on, each asking all others.
        recall_at_1: by their given labels, 0..1.
        recall_at_1_float32: of the same model in float32.
        centred_cosine: mean cosine of embeddings less their mean with those of float32.
        float_layers: that were left in float32, for they do not bear the precision.
    """

    images: int
    recall_at_1: float
    recall_at_1_float32: float
    centred_cosine: float
    float_layers: int = 0


@dataclass(frozen=True, slots=True)
class ModelContract:
    """What serving must know of a model.

    `method` is how it came about (`spa`, `proxy-anchor`, `raw`, `pca`, `pca-whitened`), `run_id` the training run
    (empty without one), `class_count` the training classes (0 without training). `view` is what of an image the network
    sees (`crop`, `whole`, or `both`, which the graph makes of its input), `pooling` how maps become features.
    `copy_dim` is the width of the second output, 0 where there is none; images whose second outputs have a cosine of
    at least `copy_threshold` are copies of one image. `untrained_dim` is the width of the output that saw no
    label, 0 where there is none. `precision` is that of weights and layers: `float32`,
    `float16` and `bfloat16` (weights, computed with as float32 unless the runtime has it), or `int8`; `measured` says
    what one that is not float32 costs, where that is known.
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
    copy_dim: int = 0
    copy_threshold: float = 0.0
    measured: MeasuredPrecision | None = None
    untrained_dim: int = 0

    @property
    def widths(self) -> dict[str, int]:
        """Of each output that there is, by its name in `index.outputs`, in the order of the graph."""
        widths = {SEMANTIC: self.embedding_dim, COPY: self.copy_dim, UNTRAINED: self.untrained_dim}
        return {name: width for name, width in widths.items() if width}

    @property
    def knows_labels(self) -> bool:
        """Whether the embedding was made with labels, and no other output is free of them."""
        return not self.untrained_dim and self.method not in _METHODS_WITHOUT_LABELS

    def to_json(self) -> str:
        """The metadata text, with the place of the checksum; `add_checksum` fills it in the whole file."""
        values = {**asdict(self), "schema_version": SCHEMA_VERSION, CHECKSUM_KEY: EMPTY_CHECKSUM}
        values["preprocess"] = self.preprocess.to_json()
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelContract:
        """Parse and validate the metadata text; the checksum is left out.

        Raises:
            InputError: no JSON object, another schema version, a key missing or unknown, or a wrong type.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InputError(f"the contract is no JSON: {error}") from error
        version = values.pop("schema_version", None) if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise InputError(
                f"the contract's schema version is {version!r}, expected {SCHEMA_VERSION}: a pre-release or a newer "
                "program made it"
            )
        check_object(values, _SCHEMA, name="the contract")
        if values["embedding_dim"] < 1:
            raise InputError(f"the contract's embedding_dim must be positive, got {values['embedding_dim']}")
        if values["copy_dim"] < 0 or not -1 <= values["copy_threshold"] <= 1:
            raise InputError(
                f"the contract's copy_dim must not be negative and its copy_threshold a cosine, got "
                f"{values['copy_dim']} and {values['copy_threshold']}"
            )
        if values["untrained_dim"] < 0:
            raise InputError(f"the contract's untrained_dim must not be negative, got {values['untrained_dim']}")
        if values["measured"] is not None:
            values["measured"] = MeasuredPrecision(**values["measured"])
        del values[CHECKSUM_KEY]
        return cls(**{**values, "preprocess": PreprocessConfig.from_json(values["preprocess"])})


def find_contract(path: Path) -> ModelContract | None:
    """The contract in a model file, found by its text alone, without a runtime; None where there is none whole."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return ModelContract.from_json(find_contract_text(data))
    except (OSError, ValueError, InputError, RecursionError):
        return None


def find_contract_text(data: bytes | mmap) -> str:
    """The metadata text in the bytes of a model; empty where there is none whole."""
    start = data.rfind(_CONTRACT_START)
    if start < 0:
        return ""
    text = data[start : start + _MAX_CONTRACT_BYTES].decode("utf-8", "ignore")
    try:
        return text[: json.JSONDecoder().raw_decode(text)[1]]
    except (ValueError, RecursionError):
        return ""


def read_contract(graph: GraphDescription, *, path: Path) -> ModelContract:
    """The contract of an opened model, checked against its real input and outputs.

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
    _check_values(graph.inputs, [GraphValue(INPUT_NAME, "tensor(uint8)", (None, side, side, 3))], path=path)
    outputs = [
        GraphValue(GRAPH_NAMES[what], "tensor(float)", (None, dim)) for what, dim in contract.widths.items()
    ]
    _check_values(graph.outputs, outputs, path=path)
    return contract


def _check_values(seen: Sequence[GraphValue], promised: Sequence[GraphValue], *, path: Path) -> None:
    if list(seen) != promised:
        expected = " and ".join(map(_describe, promised))
        raise ModelFileError(str(path), f"the contract promises {expected}, the graph has {list(seen)}")


def _describe(value: GraphValue) -> str:
    return f"one {value.type} named {value.name!r} of shape (N, {', '.join(map(str, value.shape[1:]))})"
