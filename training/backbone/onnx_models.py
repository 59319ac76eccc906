"""Backbones of ONNX files: any image model, run by ONNX Runtime and written into the exported file as it is.

A foreign graph is brought into one form first: float32 images (N, 3, H, W), normalised, in; pooled float32 features
(N, F) out; N dynamic. Layout, number type, class or patch tokens and a fixed batch are dealt with inside.
`OnnxBackbone` computes with that graph, and `insert_graphs` puts it in its place when a torch model around it is
written as ONNX.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from index.arrays import Floats
from index.errors import InputError, MissingDependencyError
from index.images.preprocess import IMAGENET_MEAN, Pixels, PreprocessConfig
from index.model.backends.onnxruntime import import_onnxruntime, list_errors
from index.model.checksum import MAX_MODEL_BYTES
from index.model.contract import find_contract
from index.model.graph import UnsafeModelError, check_graph
from index.text import printable_path
from index.user_cache import user_cache
from training.backbone.weights_files import hushed_library
from training.options.backbone_libraries import HUB

IMAGES, FEATURES = "images", "features"
DOMAIN, OPERATOR = "retrieval", "OnnxFeatures"
OPSET = 20  # of the graphs that torch writes
PREPROCESSOR = "preprocessor_config.json"
_HUB_FILES = ("vision_model.onnx", "model.onnx")  # the image tower of a model of images and text goes first
_RAW_MEAN, _RAW_STD = (0.0, 0.0, 0.0), (1 / 255,) * 3  # leave values in 0..255
_NUMBERS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.UINT8: np.uint8}
_KNOWN_OUTPUTS = ("image_embeds", "pooler_output", "embeddings", "embedding", "image_features", "features")
_CLASS_SCORES = re.compile("logit|prob|score|softmax|class", re.IGNORECASE)
_USUAL_SIDE = 224
_MIN_COSINE = 0.9999
_PARITY_IMAGES = 3
_RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers, which preprocessor files have


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """What an ONNX file does not say of itself.

    Attributes:
        preprocessor: a `preprocessor_config.json` (transformers) or `config.json` (timm); without it the one that lies
            beside the model or in the folder above.
        mean, std: of the normalisation, RGB for values in 0..1; they go before the file's.
        output: the graph's output to take.
        tokens: `class` takes the first token of (N, T, D) outputs, `mean` averages all.
    """

    preprocessor: Path | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    output: str | None = None
    tokens: str | None = None


@dataclass(frozen=True, slots=True)
class _ImageInput:
    """The one input of a graph: `side` and `batch` are None where they are dynamic."""

    name: str
    number: int
    channels_last: bool
    batch: int | None
    side: int | None


def describe_input(name: str, settings: OnnxSettings = OnnxSettings()) -> PreprocessConfig:
    """Size and normalisation of an ONNX file's images: from its contract, a preprocessor file, or the settings.

    Raises:
        InputError: no such model, or nothing says how its images are normalised.
    """
    return _describe(None, _find_file(name), settings)


def _describe(proto: onnx.ModelProto | None, path: Path, settings: OnnxSettings) -> PreprocessConfig:
    """As `describe_input`; the file is read unless the caller has, or it has a contract."""
    stated = settings.preprocessor, settings.mean, settings.std
    if stated == (None, None, None) and (contract := find_contract(path)) is not None:
        sizes = contract.preprocess
        return PreprocessConfig(sizes.resize, sizes.crop, sizes.interpolation, _RAW_MEAN, _RAW_STD)
    image = _find_input(_read(path) if proto is None else proto, path)
    found = _read_preprocessor(_find_preprocessor(path, settings))
    crop = image.side or found.get("crop") or _USUAL_SIDE
    resize = max(crop, round(crop * found["resize"] / found["crop"])) if found.get("crop") else crop
    if image.number == TensorProto.UINT8:
        mean: tuple[float, float, float] | None = _RAW_MEAN
        std: tuple[float, float, float] | None = _RAW_STD
    else:
        mean, std = settings.mean or found.get("mean"), settings.std or found.get("std")
    if mean is None or std is None:
        raise InputError(
            f"{printable_path(str(path))}: nothing says how its images are normalised: put its {PREPROCESSOR} "
            f"beside it, or wrap it by `retrieval export --backbone {path.name}` with --preprocessor FILE, or with "
            f"--mean and --std (ImageNet's are {','.join(map(str, IMAGENET_MEAN))} and 0.229,0.224,0.225)"
        )
    return PreprocessConfig(resize, crop, found.get("interpolation", "bilinear"), mean, std)


def build_module(
    name: str, weights: str, *, seed: int, side: int | None = None, settings: OnnxSettings = OnnxSettings()
) -> tuple[nn.Module, int]:
    """The model as a torch module, and the width of its features; arguments and errors of `load_backbone`."""
    del seed
    if weights != "pretrained":
        raise InputError(f"--weights {weights}: an ONNX file has its weights inside; leave the option out")
    path = _find_file(name)
    module = OnnxBackbone.of(_bring_into_form(_read(path), path, side=side, settings=settings))
    return module, module.width


class OnnxBackbone(nn.Module):
    """An ONNX graph as a frozen torch module: (N, 3, H, W) float32 images to (N, F) float32 features, on the CPU.

    Args:
        graph: (B,) uint8, the bytes of a graph as of `_bring_into_form`.
    """

    graph: Tensor

    def __init__(self, graph: Tensor) -> None:
        super().__init__()
        self.register_buffer("graph", graph)
        self.key = _open(graph)
        self.width = _OPENED[self.key].width

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> "OnnxBackbone":
        """The module of a graph."""
        return cls(torch.frombuffer(bytearray(proto.SerializeToString()), dtype=torch.uint8))

    def forward(self, images: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # one node, in whose place `insert_graphs` puts the graph
            shape = (images.shape[0], self.width)
            node: Tensor = torch.onnx.ops.symbolic(
                f"{DOMAIN}::{OPERATOR}", (images,), {"key": self.key}, dtype=torch.float32, shape=shape, version=1
            )
            return node
        try:
            [found] = _OPENED[self.key].session.run(None, {IMAGES: images.float().cpu().contiguous().numpy()})
        except _ERRORS as error:
            raise RuntimeError(_first_line(error)) from error
        return torch.from_numpy(found).to(images.device)


@dataclass(frozen=True, slots=True)
class _Opened:
    session: Any
    data: bytes
    width: int


_OPENED: dict[str, _Opened] = {}


def _open(graph: Tensor) -> str:
    """Open a graph once in this process; the key that names it."""
    data = graph.cpu().numpy().tobytes()
    key = hashlib.sha256(data).hexdigest()
    if key not in _OPENED:
        session = _start(data, "the backbone's graph")
        _OPENED[key] = _Opened(session, data, int(session.get_outputs()[0].shape[1]))
    return key


def insert_graphs(proto: onnx.ModelProto) -> None:
    """Put the graphs of ONNX backbones in the place of their nodes; the model is changed in place."""
    nodes = list(proto.graph.node)
    if not any(node.domain == DOMAIN for node in nodes):
        return
    del proto.graph.node[:]
    weights: dict[str, TensorProto] = {}
    for number, node in enumerate(nodes):
        if node.domain != DOMAIN:
            proto.graph.node.append(node)
            continue
        own = onnx.load_from_string(_OPENED[helper.get_node_attr_value(node, "key").decode()].data)
        ends = {IMAGES: node.input[0], FEATURES: node.output[0]}
        shared = {weight.name for weight in own.graph.initializer}
        used = {inner.domain for inner in own.graph.node}
        rename = partial(_rename, ends=ends, shared=shared, number=number)
        proto.graph.node.extend(_copy_nodes(own.graph.node, rename))
        for weight in own.graph.initializer:
            weight.name = rename(weight.name)
            weights[weight.name] = weight
        for opset in own.opset_import:
            if opset.domain in used and opset.domain not in {known.domain for known in proto.opset_import}:
                proto.opset_import.append(opset)
        proto.ir_version = max(proto.ir_version, own.ir_version)
    proto.graph.initializer.extend(weights.values())
    for place, opset in reversed(list(enumerate(proto.opset_import))):
        if opset.domain == DOMAIN:
            del proto.opset_import[place]


def _rename(name: str, *, ends: Mapping[str, str], shared: set[str], number: int) -> str:
    """A value's name in the whole graph; a graph that is inserted twice shares its weights."""
    return ends.get(name) or f"backbone/{name}" if name in shared or name in ends else f"backbone{number}/{name}"


def _copy_nodes(nodes: Iterable[onnx.NodeProto], rename: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Copies of nodes, which hold no graphs, all values renamed; an empty name is an input left out."""
    copies = []
    for node in nodes:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.name = ""
        for values in (copied.input, copied.output):
            values[:] = [name and rename(name) for name in values]
        copies.append(copied)
    return copies


@cache
def _find_file(name: str) -> Path:
    """The ONNX file of a `--backbone`: a path, or downloaded from the Hugging Face Hub for `hf:ORG/NAME`."""
    if not name.startswith(HUB):
        return Path(name)
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HFValidationError, HTTPError, RepositoryNotFoundError
    except ImportError as error:
        raise MissingDependencyError(package="huggingface-hub", extra="hub", purpose=f"--backbone {name}") from error
    repository = name.removeprefix(HUB)
    wanted = [f"{folder}{file}" for file in _HUB_FILES for folder in ("onnx/", "")]
    # The Hub's own cache holds links, through which ONNX reads no weights beside a model.
    folder = user_cache() / "hub" / repository.replace("/", "--")
    try:
        with hushed_library():
            files = HfApi().list_repo_files(repository)
            chosen = next((file for file in wanted if file in files), None)
            if chosen is not None:
                snapshot_download(
                    repository, allow_patterns=[chosen, f"{chosen}_data*", PREPROCESSOR], local_dir=folder
                )
    except RepositoryNotFoundError as error:
        raise InputError(f"--backbone {name}: the Hugging Face Hub has no such repository, or it is private") from error
    except (HTTPError, HFValidationError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"--backbone {name}: it could not be downloaded ({_first_line(error)}); download its ONNX file on a "
            f"connected machine, with its {PREPROCESSOR} beside it, and name the file"
        ) from error
    if chosen is None:
        raise InputError(
            f"--backbone {name}: the repository has no ONNX image model; expected one of {', '.join(wanted)}"
        )
    return folder / chosen


def _read(path: Path) -> onnx.ModelProto:
    """The model of a file, its external data with it."""
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such ONNX file")
    try:
        proto = onnx.load(path)
    except (FileNotFoundError, onnx.checker.ValidationError) as error:
        raise InputError(
            f"{shown}: its weights lie in other files, which cannot be read: {_first_line(error)}; copy them beside it"
        ) from error
    except (DecodeError, OSError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"{shown}: not an ONNX file, or a damaged one: {_first_line(error)}") from error
    if not proto.graph.node or not proto.opset_import:
        raise InputError(f"{shown}: not an ONNX file: it has no graph")
    if proto.ByteSize() > MAX_MODEL_BYTES:
        raise InputError(f"{shown}: with its weights larger than the 2 GB that one ONNX file may have")
    try:
        check_graph(proto.SerializeToString())
    except UnsafeModelError as error:
        raise InputError(
            f"{shown}: {error}; export it with standard operators, without control flow and without the optimisations "
            "of a runtime"
        ) from error
    return proto


def _find_input(proto: onnx.ModelProto, path: Path) -> _ImageInput:
    """The input for images."""
    shown = printable_path(str(path))
    known = {weight.name for weight in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in known]
    told = ", ".join(f"{value.name} {_shape(value)}" for value in inputs)
    if len(inputs) != 1:
        raise InputError(
            f"{shown}: it has {len(inputs)} inputs ({told}), expected one for images: export the image model alone"
        )
    [value] = inputs
    shape, number = _shape(value), value.type.tensor_type.elem_type
    if number not in _NUMBERS or len(shape) != 4:
        kind = TensorProto.DataType.Name(number).lower()
        raise InputError(f"{shown}: its input {told} of {kind} takes no images: expected (N, 3, H, W) or (N, H, W, 3)")
    if shape[1] != 3 and shape[3] != 3:
        raise InputError(
            f"{shown}: its input {told} does not say where its three channels are: expected (N, 3, H, W) or "
            "(N, H, W, 3); export it with fixed channels"
        )
    channels_last = shape[1] != 3
    height, width = shape[1:3] if channels_last else shape[2:]
    if isinstance(height, int) and isinstance(width, int) and height != width:
        raise InputError(f"{shown}: its input {told} is not square, as images are here")
    side = next((size for size in (height, width) if isinstance(size, int)), None)
    batch = shape[0] if isinstance(shape[0], int) else None
    return _ImageInput(value.name, number, channels_last, batch, side)


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


def _find_preprocessor(path: Path, settings: OnnxSettings) -> Path | None:
    if settings.preprocessor is not None:
        return settings.preprocessor
    places = (path.parent / PREPROCESSOR, path.parent.parent / PREPROCESSOR)
    return next((place for place in places if place.is_file()), None)


def _read_preprocessor(path: Path | None) -> dict[str, Any]:
    """Size, interpolation, mean and deviation of a preprocessor file of transformers, or of timm's `config.json`."""
    if path is None:
        return {}
    shown = printable_path(str(path))
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if "pretrained_cfg" in values or "input_size" in values:
            return _read_timm(values.get("pretrained_cfg", values))
        if not any(name in values for name in ("image_mean", "do_normalize", "crop_size", "size")):
            raise InputError("it says nothing of images (no image_mean, size or crop_size)")
        return _read_transformers(values)
    except InputError as error:
        raise InputError(f"{shown}: {error}") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{shown}: not the preprocessor file of an image model: {_first_line(error)}") from error


def _read_timm(values: Mapping[str, Any]) -> dict[str, Any]:
    crop = int(values["input_size"][-1])
    return {
        "crop": crop,
        "resize": int(crop / float(values.get("crop_pct") or 1)),
        "mean": tuple(values["mean"]),
        "std": tuple(values["std"]),
        "interpolation": values.get("interpolation", "bilinear"),
    }


def _read_transformers(values: Mapping[str, Any]) -> dict[str, Any]:
    """As transformers' image processors read it: ConvNeXT crops below 384 pixels only, ALIGN shifts to -1..1."""
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


def _bring_into_form(
    proto: onnx.ModelProto, path: Path, *, side: int | None, settings: OnnxSettings
) -> onnx.ModelProto:
    """A foreign graph with one input `images` (N, 3, H, W) float32, normalised, and one output `features` (N, F)."""
    shown = printable_path(str(path))
    image = _find_input(proto, path)
    size = image.side or side or _USUAL_SIDE
    pixels = _draw_images(size, _describe(proto, path, settings))
    original = _start(proto.SerializeToString(), shown)
    outputs = _run_original(original, image, pixels, shown)
    name = _choose_output(outputs, settings.output, shown)
    if outputs[name].ndim == 3:
        _check_tokens(outputs[name].shape[1], settings.tokens, shown)
    expected = _pool(outputs[name], settings.tokens)
    if not np.isfinite(expected).all():
        raise InputError(f"{shown}: its output {name} is not finite for ordinary images")
    if np.abs(expected - expected[:1]).max() <= 1e-6 * np.abs(expected).max():
        raise InputError(f"{shown}: its output {name} is the same for all images")
    converted = _convert_opset(proto, shown)
    inputs = {IMAGES: pixels}
    problem = ""
    for change in (None, _unfix_batch):
        try:
            given = converted if change is None else change(converted)
        except (InputError, *_ERRORS) as error:
            problem = _first_line(error)
            break
        made = _wrap(given, image, outputs[name].shape, output=name, side=size, tokens=settings.tokens)
        try:
            [found] = _start(made.SerializeToString(), shown).run(None, inputs)
        except (InputError, *_ERRORS) as error:
            problem = _first_line(error)
            continue
        if found.shape == expected.shape and _lowest_cosine(found, expected) >= _MIN_COSINE:
            return made
        problem = f"cosine {_lowest_cosine(found, expected):.4f}" if found.shape == expected.shape else "other shapes"
    raise InputError(f"{shown}: wrapped, it does not give what it gave ({problem}); export it with a dynamic batch")


def draw_check_images(side: int, *, count: int) -> Pixels:
    """Fixed synthetic images (count, side, side, 3) for parity checks without photos."""
    coarse = np.random.default_rng(0).integers(0, 256, size=(count, 8, 8, 3), dtype=np.uint8)
    repeat = -(-side // 8)
    return np.ascontiguousarray(coarse.repeat(repeat, axis=1).repeat(repeat, axis=2)[:, :side, :side])


def _draw_images(side: int, preprocess: PreprocessConfig) -> Floats:
    """(N, 3, side, side) float32: check images, normalised as the model expects them."""
    pixels = draw_check_images(side, count=_PARITY_IMAGES) / 255
    normalised = (pixels - np.array(preprocess.mean)) / np.array(preprocess.std)
    return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2), dtype=np.float32)


def _run_original(session: Any, image: _ImageInput, pixels: Floats, shown: str) -> dict[str, npt.NDArray[Any]]:
    """All float outputs of a foreign model for (N, 3, H, W) images, as many at a time as its batch."""
    given = pixels.transpose(0, 2, 3, 1) if image.channels_last else pixels
    given = (np.round(given) if image.number == TensorProto.UINT8 else given).astype(_NUMBERS[image.number])
    names = [value.name for value in session.get_outputs() if "float" in value.type]
    size = image.batch or len(given)
    batches = [np.resize(given[start : start + size], (size, *given.shape[1:])) for start in range(0, len(given), size)]
    try:
        parts = [session.run(names, {image.name: np.ascontiguousarray(batch)}) for batch in batches]
    except _ERRORS as error:
        raise InputError(
            f"{shown}: it does not run on images of {pixels.shape[-1]} pixels: {_first_line(error)}"
        ) from error
    return {
        name: np.concatenate(found)[: len(given)]
        for name, found in zip(names, zip(*parts, strict=True), strict=True)
        if found[0].ndim
    }


def _choose_output(outputs: Mapping[str, npt.NDArray[Any]], wanted: str | None, shown: str) -> str:
    """The output to take: the wanted one, else a pooled one of a usual name, else the only one of its rank."""
    told = ", ".join(f"{name} (N, {', '.join(map(str, found.shape[1:]))})" for name, found in outputs.items())
    if wanted is not None:
        if wanted not in outputs:
            raise InputError(f"{shown}: no output {wanted} of floats; there is {told or 'none'}")
        return wanted
    for rank in (2, 3, 4):
        found = [name for name, values in outputs.items() if values.ndim == rank and not _CLASS_SCORES.search(name)]
        usual = [name for name in _KNOWN_OUTPUTS if name in found]
        if usual or len(found) == 1:
            return (usual or found)[0]
        if found:
            raise InputError(f"{shown}: it has several outputs ({told}): say which by `retrieval export --output NAME`")
    raise InputError(
        f"{shown}: it has no output of features, expected (N, F), (N, T, F) or (N, F, H, W) that are no scores of "
        f"classes; it has {told or 'none'}. To take one all the same: `retrieval export --output NAME`"
    )


def _count_prefix(tokens: int) -> int | None:
    """Tokens before those of a square of patches: a class token and registers; None where that cannot be told."""
    return next((extra for extra in (0, 1, 2, 5) if math.isqrt(tokens - extra) ** 2 == tokens - extra), None)


def _check_tokens(tokens: int, wanted: str | None, shown: str) -> None:
    prefix = _count_prefix(tokens)
    if prefix is None and wanted is None:
        raise InputError(
            f"{shown}: it gives {tokens} tokens, of which it cannot be told which are of the class and which of parts "
            "of the image; wrap it by `retrieval export` with --tokens class or mean"
        )
    if wanted == "class" and prefix == 0:
        raise InputError(f"{shown}: --tokens class: its {tokens} tokens are a square of patches without a class token")


def _takes_class_token(tokens: int, wanted: str | None) -> bool:
    """Whether (N, T, D) tokens are pooled by taking the first; `mean` averages the patches behind the prefix."""
    return wanted == "class" or (wanted is None and bool(_count_prefix(tokens)))


def _is_channels_last(shape: Sequence[int]) -> bool:
    return shape[1] == shape[2] != shape[3]


def _pool(found: npt.NDArray[Any], tokens: str | None) -> Floats:
    """(N, F) float32 of an output (N, F), (N, T, F), (N, F, H, W) or (N, H, W, F)."""
    values: Floats = found.astype(np.float32)
    if values.ndim == 3:
        if _takes_class_token(values.shape[1], tokens):
            return values[:, 0]
        return values[:, _count_prefix(values.shape[1]) or 0 :].mean(axis=1)
    if values.ndim == 4:
        return values.mean(axis=(1, 2) if _is_channels_last(values.shape) else (2, 3))
    return values.reshape(len(values), -1)


def _lowest_cosine(one: Floats, other: Floats) -> float:
    """The lowest cosine of rows less the mean row of `other`: features of all images may be nearly the same."""
    centre = other.mean(axis=0)
    one, other = one - centre, other - centre
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(axis=1) / np.maximum(norms, 1e-12)).min())


def _convert_opset(proto: onnx.ModelProto, shown: str) -> onnx.ModelProto:
    """The model in the opset of the graphs that torch writes, which it is put into."""
    version = next((opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")), OPSET)
    if version == OPSET:
        return proto
    if version > OPSET:
        raise InputError(f"{shown}: of ONNX opset {version}, expected at most {OPSET}: export it with that opset")
    try:
        return onnx.version_converter.convert_version(proto, OPSET)
    except (RuntimeError, ValueError, onnx.version_converter.ConvertError) as error:
        raise InputError(
            f"{shown}: its opset {version} cannot be brought to {OPSET}: {_first_line(error)}; export it with opset "
            f"{OPSET}"
        ) from error


def _wrap(
    proto: onnx.ModelProto, image: _ImageInput, shape: Sequence[int], *, output: str, side: int, tokens: str | None
) -> onnx.ModelProto:
    """The graph between our input and our output, its batch free."""
    own = _prefix(proto)
    before = _take_images(image, IMAGES, f"model/{image.name}")
    after = _give_features(f"model/{output}", FEATURES, shape, tokens=tokens)
    size: int | str = side if image.side else "side"
    return _make_model(
        own,
        [*before, *own.graph.node, *after],
        list(own.graph.initializer),
        [("batch", 3, size, size), ("batch", _width(shape))],
    )


def _unfix_batch(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model, written for one image, with its constant shapes of one image opened: reshapes, and what is joined.

    Whether the result is right for batches is for the caller to check.
    """
    own = _fold_constants(proto)
    image = _find_input(own, Path())
    constants = {weight.name: weight for weight in own.graph.initializer}
    constants |= {
        node.output[0]: attribute.t
        for node in own.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    nodes = [helper.make_node("Shape", [image.name], ["batch/shape"], start=0, end=1)]
    for number, node in enumerate(own.graph.node):
        if node.op_type in ("Reshape", "Expand") and node.input[1] in constants:
            shape = numpy_helper.to_array(constants[node.input[1]]).copy()
            if shape.size > 1 and shape[0] == 1:
                nodes += _join_shape(shape[1:], f"batch/{number}")
                node.input[1] = f"batch/{number}"
        elif node.op_type == "Concat":
            for place, name in enumerate(node.input):
                sizes = list(constants[name].dims) if name in constants else []
                if len(sizes) > 1 and sizes[0] == 1:
                    made = f"batch/{number}/{place}"
                    nodes += _join_shape(np.array(sizes[1:]), f"{made}/shape")
                    nodes.append(helper.make_node("Expand", [name, f"{made}/shape"], [made]))
                    node.input[place] = made
        nodes.append(node)
    made_nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del own.graph.node[:]
    own.graph.node.extend(made_nodes)
    return own


def _fold_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, with all that no image changes computed by ONNX Runtime."""
    options = _RUNTIME.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = _RUNTIME.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        _RUNTIME.InferenceSession(
            proto.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["MatMulAddFusion"],  # it makes reshapes of one image's size
        )
        return onnx.load(options.optimized_model_filepath)


def _join_shape(rest: npt.NDArray[np.int64], name: str) -> list[onnx.NodeProto]:
    """Nodes that give the shape (N, *rest), N of the images."""
    value = numpy_helper.from_array(rest.astype(np.int64), f"{name}/rest")
    return [
        helper.make_node("Constant", [], [f"{name}/rest"], value=value),
        helper.make_node("Concat", ["batch/shape", f"{name}/rest"], [name], axis=0),
    ]


def _prefix(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with `model/` before the names of all its values, so that nodes of ours can be put around it."""
    own = onnx.ModelProto()
    own.CopyFrom(proto)
    nodes = _copy_nodes(own.graph.node, "model/{}".format)
    del own.graph.node[:]
    own.graph.node.extend(nodes)
    for weight in own.graph.initializer:
        weight.name = f"model/{weight.name}"
    return own


def _width(shape: Sequence[int]) -> int:
    if len(shape) == 3:
        return shape[2]
    if len(shape) == 4:
        return shape[3] if _is_channels_last(shape) else shape[1]
    return int(np.prod(shape[1:]))


def _make_model(
    like: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    weights: list[TensorProto],
    shapes: Sequence[Sequence[int | str]],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "backbone",
        [helper.make_tensor_value_info(IMAGES, TensorProto.FLOAT, shapes[0])],
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, shapes[1])],
        weights,
    )
    return helper.make_model(graph, opset_imports=like.opset_import, ir_version=like.ir_version)


def _take_images(image: _ImageInput, given: str, wanted: str) -> list[onnx.NodeProto]:
    """Nodes from (N, 3, H, W) float32 to what a model takes."""
    nodes, value = [], given
    if image.number == TensorProto.UINT8:
        nodes.append(helper.make_node("Round", [value], ["in/round"]))
        value = "in/round"
    if image.channels_last:
        nodes.append(helper.make_node("Transpose", [value], ["in/last"], perm=[0, 2, 3, 1]))
        value = "in/last"
    return [*nodes, helper.make_node("Cast", [value], [wanted], to=image.number)]


def _give_features(given: str, wanted: str, shape: Sequence[int], *, tokens: str | None) -> list[onnx.NodeProto]:
    """Nodes from a model's output to (N, F) float32."""
    nodes = [helper.make_node("Cast", [given], ["out/float"], to=TensorProto.FLOAT)]
    value = "out/float"
    if len(shape) == 3 and _takes_class_token(shape[1], tokens):
        first = numpy_helper.from_array(np.array(0, dtype=np.int64), "out/first")
        nodes += [
            helper.make_node("Constant", [], ["out/first"], value=first),
            helper.make_node("Gather", [value, "out/first"], [wanted], axis=1),
        ]
        return nodes
    if len(shape) == 3 and (prefix := _count_prefix(shape[1])):
        starts, ends, axes = (
            numpy_helper.from_array(np.array([number], dtype=np.int64)) for number in (prefix, shape[1], 1)
        )
        for name, bound in (("starts", starts), ("ends", ends), ("axes", axes)):
            nodes.append(helper.make_node("Constant", [], [f"out/{name}"], value=bound))
        nodes.append(helper.make_node("Slice", [value, "out/starts", "out/ends", "out/axes"], ["out/patches"]))
        value = "out/patches"
    if len(shape) == 3 or (len(shape) == 4 and _is_channels_last(shape)):
        perm = [0, 2, 1] if len(shape) == 3 else [0, 3, 1, 2]
        nodes.append(helper.make_node("Transpose", [value], ["out/channels"], perm=perm))
        value = "out/channels"
    if len(shape) > 2:
        nodes.append(helper.make_node("GlobalAveragePool", [value], ["out/mean"]))
        value = "out/mean"
    return [*nodes, helper.make_node("Flatten", [value], [wanted], axis=1)]


_RUNTIME = import_onnxruntime()
_ERRORS: tuple[Any, ...] = (*list_errors(_RUNTIME), RuntimeError, ValueError)


def _start(data: bytes, shown: str) -> Any:
    """A session of ONNX Runtime on the CPU."""
    options = _RUNTIME.SessionOptions()
    options.log_severity_level = 4
    try:
        return _RUNTIME.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except _ERRORS as error:
        raise InputError(f"{shown}: ONNX Runtime cannot use it: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
