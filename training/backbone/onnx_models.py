"""Backbones of ONNX files: any image model, run by ONNX Runtime and written into the exported file as it is.

`bring_into_form` gives a foreign graph the inputs and outputs of ours. `OnnxBackbone` computes with that graph, and
`insert_graph` replaces its node by the graph when a torch model around it is written as ONNX.
"""

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto
from torch import Tensor, nn

from index.errors import InputError, missing_imports_as_dependency_errors
from index.images.preprocess import IMAGENET_MEAN, PreprocessConfig
from index.model.checksum import MAX_MODEL_BYTES
from index.model.contract import find_contract
from index.model.graph import UnsafeModelError, check_graph
from index.paths import user_cache
from index.text import printable_path
from training.backbone.onnx_form import (
    ERRORS,
    FEATURES,
    IMAGES,
    USUAL_SIDE,
    bring_into_form,
    find_input,
    first_line,
    start_session,
)
from training.backbone.weights_files import hushed_library
from training.options.backbone_libraries import HUB, OnnxSettings
from training.options.known_models import describe_licence

logger = logging.getLogger(__name__)

DOMAIN, OPERATOR = "retrieval", "OnnxFeatures"
PREPROCESSOR = "preprocessor_config.json"
_HUB_FILES = ("vision_model.onnx", "model.onnx")  # the image tower of a model of images and text goes first
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_RAW_MEAN, _RAW_STD = (0.0, 0.0, 0.0), (1 / 255,) * 3  # leave values in 0..255
_UNSET = OnnxSettings()
_RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers, which preprocessor files have


def describe_input(
    name: str, settings: OnnxSettings = _UNSET, *, proto: onnx.ModelProto | None = None
) -> PreprocessConfig:
    """Size and normalisation of an ONNX file's images: from its contract, a preprocessor file, or the settings.

    Args:
        proto: content of the file, if the caller has it.

    Raises:
        InputError: no such model, or nothing says how its images are normalised.
    """
    path = find_file(name)
    mean, std = settings.three("mean"), settings.three("std")
    if (settings.preprocessor, mean, std) == (None, None, None) and (contract := find_contract(path)) is not None:
        sizes = contract.preprocess
        return PreprocessConfig(sizes.resize, sizes.crop, sizes.interpolation, _RAW_MEAN, _RAW_STD)
    image = find_input(read_graph(path) if proto is None else proto, shown=printable_path(path))
    places = (settings.preprocessor, path.parent / PREPROCESSOR, path.parent.parent / PREPROCESSOR)
    file = settings.preprocessor or next((place for place in places if place is not None and place.is_file()), None)
    found = {} if file is None else _read_preprocessor(file)
    crop = image.side or found.get("crop") or USUAL_SIDE
    resize = max(crop, round(crop * found["resize"] / found["crop"])) if found.get("crop") else crop
    if image.number == TensorProto.UINT8:
        mean, std = _RAW_MEAN, _RAW_STD
    else:
        mean, std = mean or found.get("mean"), std or found.get("std")
    if mean is None or std is None:
        raise InputError(
            f"{printable_path(path)}: nothing says how its images are normalised: put its {PREPROCESSOR} "
            f"beside it, or wrap it by `retrieval export --backbone {path.name}` with --preprocessor FILE, or with "
            f"--mean and --std (ImageNet's are {','.join(map(str, IMAGENET_MEAN))} and 0.229,0.224,0.225)"
        )
    return PreprocessConfig(resize, crop, found.get("interpolation", "bilinear"), mean, std)


def build_module(
    name: str, weights: str, *, seed: int, side: int | None = None, settings: OnnxSettings = _UNSET
) -> tuple[nn.Module, int]:
    """The model as a torch module, and the width of its features; arguments and errors of `load_backbone`."""
    del seed
    if weights != "pretrained":
        raise InputError(f"--weights {weights}: an ONNX file has its weights inside; leave the option out")
    path = find_file(name)
    proto = read_graph(path)
    preprocess = describe_input(name, settings, proto=proto)
    shown, output, tokens = printable_path(path), settings.output, settings.tokens
    made = bring_into_form(proto, preprocess, side=side, output=output, tokens=tokens, shown=shown)
    module = OnnxBackbone(torch.frombuffer(bytearray(made.SerializeToString()), dtype=torch.uint8))
    return module, module.width


class OnnxBackbone(nn.Module):
    """An ONNX graph as a frozen torch module: (N, 3, H, W) float32 images to (N, F) float32 features, on the CPU.

    Args:
        graph: (B,) uint8, the bytes of a graph of `bring_into_form`.
    """

    graph: Tensor

    def __init__(self, graph: Tensor) -> None:
        super().__init__()
        self.register_buffer("graph", graph)
        self.data = graph.cpu().numpy().tobytes()
        self.width = int(_open(self.data).get_outputs()[0].shape[1])

    def forward(self, images: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # one node, which `insert_graph` replaces
            shape = (images.shape[0], self.width)
            node: Tensor = torch.onnx.ops.symbolic(
                f"{DOMAIN}::{OPERATOR}", (images,), dtype=torch.float32, shape=shape, version=1
            )
            return node
        try:
            [found] = _open(self.data).run(None, {IMAGES: images.float().cpu().contiguous().numpy()})
        except ERRORS as error:
            raise RuntimeError(first_line(error)) from error
        return torch.from_numpy(found).to(images.device)


@cache  # as copies of a module, which hold the same bytes, cannot copy a session
def _open(data: bytes) -> Any:
    return start_session(data, shown="the backbone's graph")


def insert_graph(proto: onnx.ModelProto, model: nn.Module) -> None:
    """Replace every node of the model's ONNX backbone by its graph, in place; the weights are stored once."""
    backbone = next((module for module in model.modules() if isinstance(module, OnnxBackbone)), None)
    if backbone is None:
        return
    own = onnx.load_from_string(backbone.data)
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for number, node in enumerate(nodes):
        if node.domain != DOMAIN:
            proto.graph.node.append(node)
            continue
        names = {weight.name: f"backbone/{weight.name}" for weight in own.graph.initializer}
        names |= {IMAGES: node.input[0], FEATURES: node.output[0]}
        proto.graph.node.extend(
            onnx.compose.add_prefix_graph(
                own.graph,
                f"backbone{number}/",
                rename_inputs=False,
                rename_outputs=False,
                rename_initializers=False,
                name_map=names,
            ).node
        )
    for weight in own.graph.initializer:
        weight.name = f"backbone/{weight.name}"
    proto.graph.initializer.extend(own.graph.initializer)
    proto.ir_version = max(proto.ir_version, own.ir_version)
    used = {node.domain for node in own.graph.node}
    opsets = {opset.domain: opset for opset in own.opset_import if opset.domain in used}
    opsets |= {opset.domain: opset for opset in proto.opset_import if opset.domain != DOMAIN}
    del proto.opset_import[:]
    proto.opset_import.extend(opsets.values())


@cache
def find_file(
    name: str,
    files: tuple[str, ...] = _HUB_FILES,
    *,
    beside: tuple[str, ...] = (PREPROCESSOR,),
    lacks: str = "ONNX image model",
) -> Path:
    """The ONNX file of a `--backbone`: a path, or downloaded from the Hugging Face Hub for `hf:ORG/NAME`.

    Of a repository, it is the first of some files, with others `beside` it; `lacks` is for the error without any.
    """
    if not name.startswith(HUB):
        return Path(name)
    with missing_imports_as_dependency_errors(f"--backbone {name}"):
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HFValidationError, HTTPError, RepositoryNotFoundError
    repository = name.removeprefix(HUB)
    wanted = [f"{folder}{file}" for file in files for folder in ("onnx/", "")]
    # The Hub's own cache holds links, through which ONNX reads no weights beside a model.
    folder = user_cache() / "hub" / repository.replace("/", "--")
    try:
        with hushed_library():
            info = HfApi().model_info(repository)
            there = {sibling.rfilename for sibling in info.siblings or ()}
            chosen = next((file for file in wanted if file in there), None)
            if chosen is not None:
                licence = None if info.card_data is None else info.card_data.get("license")
                logger.info("%s: %s", name, describe_licence(name, licence=licence, card=repository))
                snapshot_download(repository, allow_patterns=[chosen, f"{chosen}_data*", *beside], local_dir=folder)
    except RepositoryNotFoundError as error:
        raise InputError(f"--backbone {name}: the Hugging Face Hub has no such repository, or it is private") from error
    except (HTTPError, HFValidationError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"--backbone {name}: it could not be downloaded ({first_line(error)}); download its {lacks} on a "
            f"connected machine, with its {' and '.join(beside)} beside it, and name the file"
        ) from error
    if chosen is None:
        raise InputError(f"--backbone {name}: the repository has no {lacks}; expected one of {', '.join(wanted)}")
    return folder / chosen


def read_graph(path: Path) -> onnx.ModelProto:
    """The model of a file, its external data with it."""
    shown = printable_path(path)
    if not path.is_file():
        raise InputError("no such ONNX file", at=path)
    try:
        proto = onnx.load(path)
    except (FileNotFoundError, onnx.checker.ValidationError) as error:
        problem = f"its weights lie in other files, which cannot be read: {first_line(error)}; copy them beside it"
        raise InputError(problem, at=path) from error
    except (DecodeError, OSError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"not an ONNX file, or a damaged one: {first_line(error)}", at=path) from error
    if not proto.graph.node or not proto.opset_import:
        raise InputError("not an ONNX file: it has no graph", at=path)
    if proto.ByteSize() > MAX_MODEL_BYTES:
        raise InputError("with its weights larger than the 2 GB that one ONNX file may have", at=path)
    try:
        check_graph(proto.SerializeToString())
    except UnsafeModelError as error:
        raise InputError(
            f"{shown}: {error}; export it with standard operators, without control flow and without the optimisations "
            "of a runtime"
        ) from error
    return proto


def _read_preprocessor(path: Path) -> dict[str, Any]:
    """Size, interpolation, mean and deviation of a preprocessor file of transformers, or of timm's `config.json`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if "pretrained_cfg" not in values and "input_size" not in values:
            return _read_transformers(values)
        values = values.get("pretrained_cfg", values)
        crop = int(values["input_size"][-1])
        return {
            "crop": crop,
            "resize": int(crop / float(values.get("crop_pct") or 1)),
            "mean": tuple(values["mean"]),
            "std": tuple(values["std"]),
            "interpolation": values.get("interpolation", "bilinear"),
        }
    except InputError as error:
        raise InputError(f"{error}", at=path) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"not the preprocessor file of an image model: {first_line(error)}", at=path) from error


def _read_transformers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Preprocessing of transformers' image processors: ConvNeXT crops below 384 pixels only, ALIGN shifts to -1..1."""
    if not any(name in values for name in ("image_mean", "do_normalize", "crop_size", "size")):
        raise InputError("it says nothing of images (no image_mean, size or crop_size)")
    if values.get("do_flip_channel_order"):
        raise InputError("it takes BGR images (do_flip_channel_order); export a model that takes RGB")
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")
    size, crop = _side(values.get("size")), _side(values.get("crop_size"))
    if "ConvNext" in kind or "crop_pct" in values:
        crop = size
        if size and size < 384:
            size = int(size / (values.get("crop_pct") or 224 / 256))
    elif not values.get("do_center_crop", crop is not None):
        crop = size
    crop = crop or size
    factor = values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0
    found: dict[str, Any] = {"interpolation": _RESAMPLING.get(values.get("resample", 2), "bilinear")}
    normalises = values.get("do_normalize", True)
    if not normalises or {"image_mean", "image_std"} <= set(values):
        mean = np.array(values["image_mean"], dtype=np.float64) if normalises else np.zeros(3)
        std = np.array(values["image_std"], dtype=np.float64) if normalises else np.ones(3)
        if values.get("include_top"):  # EfficientNet's divides by the deviation again
            std = std * std
        # The file's (x factor - offset - mean) / std, where ours divides by 255 first.
        offset = 1.0 if values.get("rescale_offset") else 0.0
        scale = 1 / (255 * factor)
        found |= {"mean": tuple((mean + offset) * scale), "std": tuple(std * scale)}
    return found | ({"crop": crop, "resize": max(size or crop, crop)} if crop else {})


def _side(size: Any) -> int | None:
    """Pixels a side of a preprocessor file's size: a number, or an object."""
    if isinstance(size, Mapping):
        size = size.get("shortest_edge") or size.get("height")
    return None if size is None else int(size)
