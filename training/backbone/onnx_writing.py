"""A torch model to the content of one model file: its graph, with the contract and the seal in it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx
import torch

from index.errors import InputError
from index.model.backends.backend import INPUT_NAME
from index.model.contract import GRAPH_NAMES, METADATA_KEY, ModelContract
from index.model.seal import seal_model
from training.backbone.pixel_model import PixelModel

OPSET = 20
MAX_WEIGHT_BYTES = 2_000_000_000  # protobuf refuses messages of 2 GiB
# What the exporter raises of its own, and what it lets through of the model and of its passes over the graph.
_FAILURES = (
    torch.onnx.OnnxExporterError, RuntimeError, ArithmeticError, AssertionError, AttributeError, LookupError,
    TypeError, ValueError,
)  # fmt: skip


class NoGraphError(InputError):
    """A backbone that cannot be had as ONNX; the message says why."""


def write_graph(model: PixelModel, contract: ModelContract) -> onnx.ModelProto:
    """The graph of a model, which stays as it is.

    Args:
        model: in eval mode, float32, on the CPU.
        contract: of the model; its size of images and outputs are the graph's.

    Raises:
        NoGraphError: the weights are too large for one file, or ONNX has no words for the model.
    """
    weight_bytes = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    if weight_bytes > MAX_WEIGHT_BYTES:
        raise NoGraphError(
            f"{contract.backbone}: {weight_bytes / 1e9:.1f} GB of weights do not fit into one ONNX file "
            f"(at most {MAX_WEIGHT_BYTES / 1e9:.1f} GB)"
        )
    side = contract.preprocess.crop
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    try:
        try:
            return _convert(model, example, contract)
        except torch.onnx.OnnxExporterError:
            with _plain_attention(model) as found_some:
                if not found_some:
                    raise
                return _convert(model, example, contract)
    except _FAILURES as error:
        told = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
        raise NoGraphError(f"torch cannot write --backbone {contract.backbone} as ONNX: {told}") from error


def seal_graph(proto: onnx.ModelProto, contract: ModelContract) -> bytes:
    """The content of a model file: the graph, changed in place, with its contract, which vouches for all of it.

    Raises:
        NoGraphError: the graph is not what ONNX allows.
    """
    proto.producer_name, proto.producer_version = "retrieval-app", ""
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {METADATA_KEY: contract.to_json()})
    _forget_source_lines(proto)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        told = str(error).partition("\n")[0]
        raise NoGraphError(
            f"torch writes --backbone {contract.backbone} as a graph that is no ONNX: {told}"
        ) from error
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
