"""ONNX export of a torch embedding model with its contract, after a parity check against torch."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from index.arrays import unit_rows
from index.durable import hash_file, replacing
from index.errors import InputError, ParityError
from index.images.preprocess import Pixels
from index.model.backends.backend import USUAL_BACKEND
from index.model.contract import MeasuredPrecision, ModelContract
from index.model.embedder import Embedder
from training.backbone.graphs import NoGraphError, PixelModel, serialize_model, write_graph

logger = logging.getLogger(__name__)
MIN_COSINE = 0.99999


def check_parity(model: PixelModel, onnx_path: Path, images: Pixels, *, name: str) -> float:
    """Lowest cosine between the embeddings of both models, in batches of 1 and of N, over all outputs.

    Args:
        model: the torch model, on the CPU.
        images: (N, crop, crop, 3) uint8.

    Raises:
        ParityError: a cosine below `MIN_COSINE`, or a row that is not finite and of unit norm.
    """
    with torch.inference_mode():
        found = model(torch.from_numpy(images))
    embedder = Embedder(onnx_path, backend=USUAL_BACKEND)
    outputs = (found,) if isinstance(found, torch.Tensor) else found
    cosines = [1.0]
    for output, expected in zip(embedder.contract.widths, outputs, strict=True):
        own = embedder.with_outputs(output)
        for rows in (own.embed_batch(images), np.concatenate([own.embed_batch(image[None]) for image in images])):
            cosine = float((rows.astype(np.float64) * expected.numpy()).sum(axis=1).min())
            # Where a row is not of unit norm, NaN: a product above 1 would hide any drift.
            cosines.append(cosine if unit_rows(rows).all() else float("nan"))
    lowest = float(np.min(cosines))  # NaN where any is
    if not lowest >= MIN_COSINE:
        raise ParityError(path=name, min_cosine=lowest, required=MIN_COSINE)
    return lowest


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The written file, and its agreement with torch on the check images.

    Attributes:
        min_cosine: of the float32 file; None where a model file was converted.
        measured: cost of a lower precision.
        text_model: file of the text tower, beside which its tokenizer is.
    """

    model: str
    sha256: str
    embedding_dim: int
    min_cosine: float | None
    bytes: int
    precision: str = "float32"
    measured: MeasuredPrecision | None = None
    text_model: str | None = None

    def to_json(self) -> dict[str, object]:
        """Document that `export --json` prints."""
        return asdict(self)


def export_model(model: PixelModel, *, contract: ModelContract, out: Path, check_images: Pixels) -> ExportedModel:
    """Write the model to one ONNX file, if its embeddings agree with torch's.

    Args:
        model: in eval mode; float32.
        out: the file; replaced atomically.
        check_images: (N, crop, crop, 3) uint8 real images.
    """
    try:
        with _writing(out) as temporary:
            logger.info("writing the ONNX graph")
            proto = write_graph(model.eval().float().cpu(), contract)
            temporary.write_bytes(serialize_model(proto, contract))
            logger.info("comparing it with torch on %d images", len(check_images))
            min_cosine = check_parity(model, temporary, check_images, name=str(out))
    except NoGraphError as error:
        raise InputError(f"{error}; choose another --backbone") from error
    return ExportedModel(
        str(out), hash_file(out), contract.embedding_dim, min_cosine, out.stat().st_size, contract.precision
    )


def write_model_file(proto: onnx.ModelProto, out: Path, *, contract: ModelContract) -> None:
    """Write a model file, atomically; an `InputError` if that fails."""
    with _writing(out) as temporary:
        temporary.write_bytes(serialize_model(proto, contract))


@contextmanager
def _writing(out: Path) -> Iterator[Path]:
    """A temporary file that replaces `out` at the end."""
    require_onnx_name(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as temporary:
            yield temporary
    except OSError as error:
        raise InputError(f"cannot be written: {error}", at=out) from error


def require_onnx_name(out: Path) -> None:
    """Check that a file can be written under a name; an `InputError` if not."""
    if out.is_dir() or not out.suffix == ".onnx":
        raise InputError("expected the name of a file that ends in .onnx", at=out)
