"""Model contract: the metadata of an exported ONNX file, and the check of it against the graph.

Input `images`: uint8 (N, crop, crop, 3), normalisation inside the graph. Output `embeddings`: float32 (N, D), unit
norm, for semantic similarity. A model may have two more, float32 of unit norm: `copy` (N, P) for copy detection, and
`untrained` (N, U), features trained without labels. N is dynamic. The contract is JSON under the
metadata key `retrieval`; its `checksum` is the SHA-256 of the whole file (see `index.model.checksum`). A model may have
a text tower in two files beside it, which the contract names by their SHA-256 (see `index.model.text_encoder`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from index.errors import InputError, ModelFileError
from index.images.preprocess import PreprocessConfig
from index.markers import check_object
from index.model.backends.backend import (
    COPY_NAME,
    INPUT_NAME,
    OUTPUT_NAME,
    UNTRAINED_NAME,
    GraphValue,
    InferenceBackend,
)
from index.model.checksum import CHECKSUM_KEY, EMPTY_CHECKSUM
from index.outputs import COPY, SEMANTIC, UNTRAINED

METADATA_KEY = "retrieval"
GRAPH_NAMES = {SEMANTIC: OUTPUT_NAME, COPY: COPY_NAME, UNTRAINED: UNTRAINED_NAME}
"""The graph's output by name in `index.outputs`."""
SCHEMA_VERSION = 1
_SCHEMA: dict[str, Any] = {
    "backbone": str,
    "method": str,
    "run_id": str,
    "precision": str,
    "view": str,
    "pooling": str,
    "preprocess": dict,
    "embedding_dim": int,
    "class_count": int,
    "copy_dim": int,
    "copy_threshold": float,
    "untrained_dim": int,
    "measured": {
        "images": int,
        "recall_at_1": int | float,
        "recall_at_1_float32": int | float,
        "centred_cosine": int | float,
        "float_layers": int,
    },
    "text": {
        "model_sha256": str,
        "tokenizer_sha256": str,
        "width": int,
        "token_length": int,
        "output": str,
        "pooling": str,
    },
    CHECKSUM_KEY: str,
}
TEXT_POOLINGS = ("none", "end-of-text", "last")
_METHODS_WITHOUT_LABELS = ("raw", "pca", "pca-half-whitened", "pca-whitened", "distilled")
_CONTRACT_START, _MAX_CONTRACT_BYTES = b'{"backbone": ', 1 << 20  # its keys are sorted


@dataclass(frozen=True, slots=True)
class MeasuredPrecision:
    """The loss by a precision on held-out images, each against all; the cosine is with float32, both less the mean."""

    images: int
    recall_at_1: float
    recall_at_1_float32: float
    centred_cosine: float
    float_layers: int = 0


@dataclass(frozen=True, slots=True)
class TextTower:
    """The text model beside a model file, whose vectors share the space of the image embeddings.

    Attributes:
        model_sha256, tokenizer_sha256: SHA-256 of the two files.
        width: D of the text vectors, that of the image embeddings.
        token_length: tokens that the text model takes, with padding.
        output: the graph's output.
        pooling: of an output (N, T, D): the `end-of-text` token, which has the highest id, or the `last` one; `none`
            for vectors (N, D).
    """

    model_sha256: str
    tokenizer_sha256: str
    width: int
    token_length: int
    output: str
    pooling: str = "none"

    def files(self, model: Path) -> dict[Path, str]:
        """Text model and tokenizer beside a model file, with their SHA-256."""
        names = (model.with_suffix(".text.onnx"), model.with_suffix(".tokenizer.json"))
        return dict(zip(names, (self.model_sha256, self.tokenizer_sha256), strict=True))


@dataclass(frozen=True, slots=True)
class ModelContract:
    """The contract of a model.

    Attributes:
        method: of training or projection: `spa`, `proxy-anchor`, `raw`, `pca`, `pca-whitened` and others.
        run_id: of the training run; empty without one.
        precision: of weights and layers: `float32`, `float16` or `bfloat16` (weights only, unless the runtime computes
            in it), or `int8`; with the loss as `measured`, where it is known.
        view: the part of an image that the network sees: `crop`, `whole`, or `both`.
        copy_dim, untrained_dim: width of these outputs; 0 without one.
        copy_threshold: cosine of copy outputs from which on two images are copies.
        text: the text tower; None without one.
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
    text: TextTower | None = None

    @property
    def widths(self) -> dict[str, int]:
        """Widths of the outputs, by name in `index.outputs`, in the order of the graph."""
        widths = {SEMANTIC: self.embedding_dim, COPY: self.copy_dim, UNTRAINED: self.untrained_dim}
        return {name: width for name, width in widths.items() if width}

    @property
    def knows_labels(self) -> bool:
        """Whether the embedding was trained on labels, and there is no untrained output."""
        return not self.untrained_dim and self.method not in _METHODS_WITHOUT_LABELS

    def text_files(self, model: Path) -> dict[Path, str]:
        """`TextTower.files`; empty without a text tower."""
        return {} if self.text is None else self.text.files(model)

    def to_json(self) -> str:
        """The metadata text, with the place of the checksum; `add_checksum` fills it in the whole file."""
        values = {**asdict(self), "schema_version": SCHEMA_VERSION, CHECKSUM_KEY: EMPTY_CHECKSUM}
        if self.text is None:
            del values["text"]
        values["preprocess"] = self.preprocess.to_json()
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ModelContract":
        """Parse and validate the metadata text, without the checksum."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InputError(f"the contract is no JSON: {error}") from error
        version = values.pop("schema_version", None) if isinstance(values, dict) else None
        if isinstance(values, dict):
            values.setdefault("text", None)
        if version != SCHEMA_VERSION or values.keys() != _SCHEMA.keys():
            raise InputError(
                f"the contract's schema version is {version!r}, expected {SCHEMA_VERSION} with its keys: a pre-release "
                "or a newer program made it; export the model again"
            )
        check_object(values, _SCHEMA, name="the contract")
        widths = [values[name] for name in ("embedding_dim", "copy_dim", "untrained_dim")]
        if widths[0] < 1 or min(widths) < 0 or not -1 <= values["copy_threshold"] <= 1:
            raise InputError(
                f"the contract's embedding_dim must be positive, no width negative, and copy_threshold a cosine, got "
                f"{widths} and {values['copy_threshold']}"
            )
        if values["measured"] is not None:
            values["measured"] = MeasuredPrecision(**values["measured"])
        if values["text"] is not None:
            tower = TextTower(**values["text"])
            values["text"] = tower
            if tower.width != widths[0] or tower.token_length < 1 or tower.pooling not in TEXT_POOLINGS:
                raise InputError(
                    f"the contract's text tower must have the width {widths[0]} of its images, tokens, and a pooling "
                    f"of {', '.join(TEXT_POOLINGS)}, got {tower}"
                )
        del values[CHECKSUM_KEY]
        return cls(**{**values, "preprocess": PreprocessConfig.from_json(values["preprocess"])})


def find_contract(path: Path) -> ModelContract | None:
    """The contract in a model file, found as text, without a runtime; None without a complete one."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return ModelContract.from_json(find_contract_text(data))
    except (OSError, ValueError, InputError, RecursionError):
        return None


def find_contract_text(data: bytes | mmap) -> str:
    """The metadata text in a model's bytes; empty without a complete one."""
    start = data.rfind(_CONTRACT_START)
    if start < 0:
        return ""
    text = data[start : start + _MAX_CONTRACT_BYTES].decode("utf-8", "ignore")
    try:
        return text[: json.JSONDecoder().raw_decode(text)[1]]
    except (ValueError, RecursionError):
        return ""


def read_contract(graph: InferenceBackend, *, path: Path) -> ModelContract:
    """The contract of an opened model, checked against its inputs and outputs."""
    text = graph.metadata.get(METADATA_KEY)
    if text is None:
        advice = "it was not written by `retrieval export`; export the model with that command"
        raise ModelFileError(path, f"the ONNX metadata has no {METADATA_KEY!r} contract: {advice}")
    try:
        contract = ModelContract.from_json(text)
    except InputError as error:
        raise ModelFileError(path, f"{error}; export the model again") from error
    side = contract.preprocess.crop
    _check_values(graph.inputs, [GraphValue(INPUT_NAME, "tensor(uint8)", (None, side, side, 3))], path=path)
    outputs = [GraphValue(GRAPH_NAMES[what], "tensor(float)", (None, dim)) for what, dim in contract.widths.items()]
    _check_values(graph.outputs, outputs, path=path)
    return contract


def _check_values(seen: Sequence[GraphValue], promised: Sequence[GraphValue], *, path: Path) -> None:
    if list(seen) != promised:
        expected = " and ".join(
            f"one {value.type} named {value.name!r} of shape (N, {', '.join(map(str, value.shape[1:]))})"
            for value in promised
        )
        raise ModelFileError(path, f"the contract promises {expected}, the graph has {list(seen)}")
