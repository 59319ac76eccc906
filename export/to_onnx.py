"""A torch embedding model to one ONNX file with its contract; the confidence module and proxies stay behind."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
import torch

from export.embedding_model import PixelModel
from export.half_weights import keep_in_half
from export.parity import check_parity
from index.durable import replacing
from index.errors import InputError
from index.file_hash import hash_file
from index.images.preprocess import Pixels
from index.model.backends.backend import INPUT_NAME
from index.model.contract import GRAPH_NAMES, METADATA_KEY, MeasuredPrecision, ModelContract
from index.model.seal import seal_model

OPSET = 20
HALF = "float16"
MAX_WEIGHT_BYTES = 2_000_000_000  # protobuf refuses messages of 2 GiB


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written, and how far ONNX Runtime and torch agree on the check images.

    Attributes:
        min_cosine: of the file in float32 that it is, or was made of; None of one that was made of a model file.
        measured: of a lower precision, what it costs.
    """

    model: str
    sha256: str
    embedding_dim: int
    min_cosine: float | None
    bytes: int
    precision: str = "float32"
    measured: MeasuredPrecision | None = None

    def to_json(self) -> dict[str, object]:
        """The document that `export --json` prints."""
        return asdict(self)


def export_model(model: PixelModel, *, contract: ModelContract, out: Path, check_images: Pixels) -> ExportReport:
    """Write the model to one ONNX file, after checking that it gives what torch gives.

    Args:
        model: in eval mode; float32.
        contract: what the file says of itself; where its precision is `float16`, so are the weights in it, which are
            computed with as float32.
        out: the file; replaced atomically, and only if the check passes.
        check_images: (N, crop, crop, 3) uint8 real images.

    Raises:
        InputError: the file cannot be written, the weights are too large for one, or ONNX has no words for the model.
        ParityError: the two disagree.
    """
    require_onnx_name(out)
    weight_bytes = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    if weight_bytes > MAX_WEIGHT_BYTES:
        raise InputError(
            f"{contract.backbone}: {weight_bytes / 1e9:.1f} GB of weights do not fit into one ONNX file "
            f"(at most {MAX_WEIGHT_BYTES / 1e9:.1f} GB); choose a smaller --backbone"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as temporary:
            _write(model.eval().float().cpu(), temporary, contract=contract)
            min_cosine = check_parity(model, temporary, check_images, name=str(out))
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error}") from error
    except torch.onnx.OnnxExporterError as error:
        told = str(error.__cause__ or error).splitlines()[0]
        raise InputError(
            f"torch cannot write --backbone {contract.backbone} as ONNX: {told}; choose another --backbone"
        ) from error
    return ExportReport(
        str(out), hash_file(out), contract.embedding_dim, min_cosine, out.stat().st_size, contract.precision
    )


def _write(model: PixelModel, path: Path, *, contract: ModelContract) -> None:
    side = contract.preprocess.crop
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    try:
        proto = _convert(model, example, contract)
    except torch.onnx.OnnxExporterError:
        with _plain_attention(model) as found_some:
            if not found_some:
                raise
            proto = _convert(model, example, contract)
    if contract.precision == HALF:
        keep_in_half(proto, HALF)
    path.write_bytes(_seal(proto, contract))


def write_sealed(proto: onnx.ModelProto, out: Path, *, contract: ModelContract) -> None:
    """Write a graph with its contract, atomically.

    Raises:
        InputError: the file cannot be written.
    """
    require_onnx_name(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as temporary:
            temporary.write_bytes(_seal(proto, contract))
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error}") from error


def require_onnx_name(out: Path) -> None:
    """See that a file can be written under a name.

    Raises:
        InputError: it cannot.
    """
    if out.is_dir() or not out.suffix == ".onnx":
        raise InputError(f"{out}: expected the name of a file that ends in .onnx")


def _seal(proto: onnx.ModelProto, contract: ModelContract) -> bytes:
    proto.producer_name, proto.producer_version = "retrieval-app", ""
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {METADATA_KEY: contract.to_json()})
    _forget_source_lines(proto)
    onnx.checker.check_model(proto)
    return seal_model(proto.SerializeToString())


def _convert(model: PixelModel, example: torch.Tensor, contract: ModelContract) -> onnx.ModelProto:
    with _quiet_exporter():
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            opset_version=OPSET,
            input_names=[INPUT_NAME],
            output_names=[GRAPH_NAMES[output] for output in contract.widths],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program.model_proto


@contextmanager
def _plain_attention(model: PixelModel) -> Iterator[bool]:
    """timm's fused attention, not all of whose masks the exporter knows, spelt out; whether there is any."""
    fused: list[Any] = [module for module in model.modules() if getattr(module, "fused_attn", False) is True]
    for module in fused:
        module.fused_attn = False
    try:
        yield bool(fused)
    finally:
        for module in fused:
            module.fused_attn = True


def _forget_source_lines(proto: onnx.ModelProto) -> None:
    """Drop the exporter's notes of Python stacks: they name this machine's folders and say nothing to a user."""
    for graph in (proto.graph, *proto.functions):
        for node in (*graph.node, *graph.value_info):
            del node.metadata_props[:]
            node.doc_string = ""
    del proto.graph.metadata_props[:]


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter's own deprecation warnings and log lines are not for our users."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
