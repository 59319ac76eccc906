"""ONNX graphs of models, written by torch's exporter."""

import logging
import warnings
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from index.model.backends.backend import INPUT_NAME
from index.model.checksum import add_checksum
from index.model.contract import GRAPH_NAMES, METADATA_KEY, ModelContract
from training.backbone.backbones import normalise_images
from training.backbone.onnx_form import OPSET
from training.backbone.onnx_models import insert_graph


class PixelModel(nn.Module):
    """Model to export, a backbone with its heads: (N, H, W, 3) uint8 images to float32 rows (N, D) by each head."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, *heads: nn.Module, preprocess: PreprocessConfig) -> None:
        super().__init__()
        # Model files and the weights of the built-in model are named by these.
        self.parts = nn.ModuleDict(
            {"backbone": backbone, "head": heads[0] if len(heads) == 1 else nn.ModuleList(heads)}
        )
        self.register_buffer("mean", 255 * torch.tensor(preprocess.mean).view(1, 3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(preprocess.std).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        # In the order that they have: of channels that lie last torch pools with strides, which ONNX writes as a
        # gather by computed positions, and OpenVINO computes these wrongly where a layer is quantised.
        pixels = normalise_images(images, self.mean, self.std).contiguous()
        features, head = self.parts["backbone"](pixels), self.parts["head"]
        if isinstance(head, nn.ModuleList):
            return tuple(one(features) for one in head)
        found: Tensor = head(features)
        return found


TEXT_OUTPUT = "text_embeds"
MAX_WEIGHT_BYTES = 2_000_000_000  # protobuf refuses messages of 2 GiB
# What the exporter raises of its own, and what it lets through of the model and of its passes over the graph.
_FAILURES = (
    torch.onnx.OnnxExporterError,
    RuntimeError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


class NoGraphError(InputError):
    """The backbone cannot be exported to ONNX; the message says why."""


def write_graph(model: PixelModel, contract: ModelContract) -> onnx.ModelProto:
    """ONNX graph of a model in eval mode, float32, on the CPU; image size and outputs are the contract's."""
    _require_small(model, contract.backbone)
    side = contract.preprocess.crop
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    outputs = [GRAPH_NAMES[output] for output in contract.widths]
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]  # the graph is the same, in half the time
    try:
        try:
            return _convert(model, example, INPUT_NAME, outputs)
        except torch.onnx.OnnxExporterError:  # timm's fused attention may have masks that the exporter does not know
            fused: list[Any] = [module for module in model.modules() if getattr(module, "fused_attn", False) is True]
            if not fused:
                raise
            for module in fused:
                module.fused_attn = False
            try:
                return _convert(model, example, INPUT_NAME, outputs)
            finally:
                for module in fused:
                    module.fused_attn = True
    except _FAILURES as error:
        told = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
        raise NoGraphError(f"torch cannot write --backbone {contract.backbone} as ONNX: {told}") from error


def serialize_model(proto: onnx.ModelProto, contract: ModelContract) -> bytes:
    """Content of a model file: the graph, changed in place, with its contract and checksum."""
    proto.producer_name, proto.producer_version = "retrieval-app", ""
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {METADATA_KEY: contract.to_json()})
    _leave_out_stacks(proto)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        told = str(error).partition("\n")[0]
        raise NoGraphError(f"torch writes --backbone {contract.backbone} as an invalid ONNX graph: {told}") from error
    return add_checksum(proto.SerializeToString())


def write_text_graph(tower: nn.Module, *, token_length: int, name: str) -> bytes:
    """ONNX graph of a text tower in eval mode: (N, T) int64 `input_ids` to (N, D) float32 `text_embeds`."""
    _require_small(tower, name)
    example = torch.ones(2, token_length, dtype=torch.int64)
    try:
        proto = _convert(tower, example, "input_ids", [TEXT_OUTPUT])
        _leave_out_stacks(proto)
        onnx.checker.check_model(proto)
    except (*_FAILURES, onnx.checker.ValidationError) as error:
        told = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
        raise NoGraphError(f"torch cannot write the text tower of --backbone {name} as ONNX: {told}") from error
    found: bytes = proto.SerializeToString()
    return found


def _require_small(model: nn.Module, name: str) -> None:
    """Refuse weights that no single ONNX file can have."""
    tensors = model.state_dict().values()
    weight_bytes = sum(tensor.numel() * (4 if tensor.is_floating_point() else 1) for tensor in tensors)
    if weight_bytes > MAX_WEIGHT_BYTES:
        raise NoGraphError(
            f"{name}: {weight_bytes / 1e9:.1f} GB of weights do not fit into one ONNX file "
            f"(at most {MAX_WEIGHT_BYTES / 1e9:.1f} GB)"
        )


def _leave_out_stacks(proto: onnx.ModelProto) -> None:
    """Remove the exporter's Python stacks, which name folders of this machine, in place."""
    for graph in (proto.graph, *proto.functions):
        for node in (*graph.node, *graph.value_info):
            del node.metadata_props[:]
            node.doc_string = ""
    del proto.graph.metadata_props[:]


def _convert(model: nn.Module, example: torch.Tensor, name: str, outputs: list[str]) -> onnx.ModelProto:
    """ONNX graph of a model with one input of this name, whose batch is dynamic."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations in the exporter
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[name],
                output_names=outputs,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    proto = program.model_proto
    insert_graph(proto, model)
    return proto
