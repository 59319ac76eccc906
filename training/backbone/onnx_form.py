"""Foreign ONNX graphs in one form: float32 images (N, 3, H, W), normalised, in; pooled float32 features (N, F) out.

N is dynamic. Layout, number type, class or patch tokens and a fixed batch become nodes around or inside the graph. The
result is compared with the original graph on a few images.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from index.arrays import Floats, centred_cosines
from index.errors import InputError
from index.images.preprocess import Pixels, PreprocessConfig
from index.model.backends.onnxruntime import import_onnxruntime, list_errors

IMAGES, FEATURES = "images", "features"
OPSET = 20  # of the graphs that torch writes
USUAL_SIDE = 224
_NUMBERS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.UINT8: np.uint8}
_KNOWN_OUTPUTS = ("image_embeds", "pooler_output", "embeddings", "embedding", "image_features", "features")
_CLASS_SCORES = re.compile("logit|prob|score|softmax|class", re.IGNORECASE)
_MIN_COSINE = 0.9999
_PARITY_IMAGES = 3
_BATCH = "batch/shape"

_RUNTIME = import_onnxruntime()
ERRORS: tuple[Any, ...] = (*list_errors(_RUNTIME), RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class ImageInput:
    """The one input of a graph: `side` and `batch` are None if dynamic."""

    name: str
    number: int
    channels_last: bool
    batch: int | None
    side: int | None


def find_input(proto: onnx.ModelProto, *, shown: str) -> ImageInput:
    """The input for images; `shown` names the model in errors."""
    known = {weight.name for weight in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in known]
    shapes = [
        tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
        for dims in (value.type.tensor_type.shape.dim for value in inputs)
    ]
    told = ", ".join(f"{value.name} {shape}" for value, shape in zip(inputs, shapes, strict=True))
    if len(inputs) != 1:
        problem = f"it has {len(inputs)} inputs ({told}), expected one for images: export the image model alone"
        raise InputError(problem, at=shown)
    [value], [shape] = inputs, shapes
    number = value.type.tensor_type.elem_type
    if number not in _NUMBERS or len(shape) != 4:
        kind = TensorProto.DataType.Name(number).lower()
        raise InputError(f"its input {told} of {kind} takes no images: expected (N, 3, H, W) or (N, H, W, 3)", at=shown)
    if shape[1] != 3 and shape[3] != 3:
        raise InputError(
            f"{shown}: its input {told} does not say where its three channels are: expected (N, 3, H, W) or "
            "(N, H, W, 3); export it with fixed channels"
        )
    sides = {size for size in (shape[2:] if shape[1] == 3 else shape[1:3]) if isinstance(size, int)}
    if len(sides) > 1:
        raise InputError(f"its input {told} is not square, as images are here", at=shown)
    batch = shape[0] if isinstance(shape[0], int) else None
    return ImageInput(value.name, number, shape[1] != 3, batch, next(iter(sides), None))


def bring_into_form(
    proto: onnx.ModelProto,
    preprocess: PreprocessConfig,
    *,
    side: int | None = None,
    output: str | None = None,
    tokens: str | None = None,
    shown: str,
) -> onnx.ModelProto:
    """The graph with one input `images` (N, 3, H, W) and one output `features` (N, F), both float32.

    `side` is the size of images where the graph has no fixed size, `output` and `tokens` are as in `OnnxSettings`,
    and `shown` names the model in errors.
    """
    image = find_input(proto, shown=shown)
    size = image.side or side or USUAL_SIDE
    pixels = (draw_check_images(size, count=_PARITY_IMAGES) / 255 - np.array(preprocess.mean)) / preprocess.std
    images = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    outputs = _run_original(proto, image, images, shown)
    name = _choose_output(outputs, output, shown)
    shape = outputs[name].shape
    patches = _find_patches(shape[1], tokens, shown) if len(shape) == 3 else 0
    expected = _pool(outputs[name], patches)
    if not np.isfinite(expected).all():
        raise InputError(f"its output {name} is not finite for ordinary images", at=shown)
    if np.abs(expected - expected[:1]).max() <= 1e-6 * np.abs(expected).max():
        raise InputError(f"its output {name} is the same for all images", at=shown)
    converted = _convert_opset(proto, shown)
    free: int | str = size if image.side else "side"
    problem = ""
    for opens_batch in (False, True):
        try:
            own = onnx.compose.add_prefix(_open_batch(converted, image) if opens_batch else converted, "model/")
            for node in own.graph.node:
                node.name = ""
            graph = helper.make_graph(
                [
                    *_take_images(image, f"model/{image.name}"),
                    *own.graph.node,
                    *_give_features(f"model/{name}", shape, patches),
                ],
                "backbone",
                [helper.make_tensor_value_info(IMAGES, TensorProto.FLOAT, ("batch", 3, free, free))],
                [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ("batch", expected.shape[1]))],
                own.graph.initializer,
            )
            made = helper.make_model(graph, opset_imports=own.opset_import, ir_version=own.ir_version)
            [found] = start_session(made.SerializeToString(), shown=shown).run(None, {IMAGES: images})
        except (InputError, *ERRORS) as error:
            problem = first_line(error)
            continue
        if found.shape != expected.shape:
            problem = "other shapes"
        elif (cosine := centred_cosines(found, expected).min()) >= _MIN_COSINE:
            return made
        else:
            problem = f"cosine {cosine:.4f}"
    raise InputError(f"wrapped, it does not give what it gave ({problem}); export it with a dynamic batch", at=shown)


def draw_check_images(side: int, *, count: int) -> Pixels:
    """Fixed synthetic images (count, side, side, 3) for parity checks without photos."""
    coarse = np.random.default_rng(0).integers(0, 256, size=(count, 8, 8, 3), dtype=np.uint8)
    repeat = -(-side // 8)
    return np.ascontiguousarray(coarse.repeat(repeat, axis=1).repeat(repeat, axis=2)[:, :side, :side])


def _run_original(proto: onnx.ModelProto, image: ImageInput, images: Floats, shown: str) -> dict[str, npt.NDArray[Any]]:
    """All float outputs of a foreign model for (N, 3, H, W) images, as many at a time as its batch."""
    session = start_session(proto.SerializeToString(), shown=shown)
    given = images.transpose(0, 2, 3, 1) if image.channels_last else images
    given = (np.round(given) if image.number == TensorProto.UINT8 else given).astype(_NUMBERS[image.number])
    names = [value.name for value in session.get_outputs() if "float" in value.type]
    size = image.batch or len(given)
    batches = [np.resize(given[start : start + size], (size, *given.shape[1:])) for start in range(0, len(given), size)]
    try:
        parts = [session.run(names, {image.name: np.ascontiguousarray(batch)}) for batch in batches]
    except ERRORS as error:
        problem = f"it does not run on images of {images.shape[-1]} pixels: {first_line(error)}"
        raise InputError(problem, at=shown) from error
    return {
        name: np.concatenate(found)[: len(given)]
        for name, found in zip(names, zip(*parts, strict=True), strict=True)
        if found[0].ndim
    }


def _choose_output(outputs: Mapping[str, npt.NDArray[Any]], wanted: str | None, shown: str) -> str:
    """The output to take: the wanted one, else a pooled one of a known name, else the only one of its rank."""
    told = ", ".join(f"{name} (N, {', '.join(map(str, found.shape[1:]))})" for name, found in outputs.items())
    if wanted is not None:
        if wanted not in outputs:
            raise InputError(f"no output {wanted} of floats; there is {told or 'none'}", at=shown)
        return wanted
    for rank in (2, 3, 4):
        found = [name for name, values in outputs.items() if values.ndim == rank and not _CLASS_SCORES.search(name)]
        known = [name for name in _KNOWN_OUTPUTS if name in found]
        if known or len(found) == 1:
            return (known or found)[0]
        if found:
            raise InputError(f"{shown}: it has several outputs ({told}): say which by `retrieval export --output NAME`")
    raise InputError(
        f"{shown}: it has no output of features, expected (N, F), (N, T, F) or (N, F, H, W) that are not scores of "
        f"classes; it has {told or 'none'}. To take one all the same: `retrieval export --output NAME`"
    )


def _find_patches(tokens: int, wanted: str | None, shown: str) -> int | None:
    """Index of the first token to average; None where the class token is taken.

    Tokens of patches form a square; a class token and registers go before them.
    """
    before = next((extra for extra in (0, 1, 2, 5) if math.isqrt(tokens - extra) ** 2 == tokens - extra), None)
    if before is None and wanted is None:
        raise InputError(
            f"{shown}: it gives {tokens} tokens, of which it cannot be told which are of the class and which of parts "
            "of the image; wrap it by `retrieval export` with --tokens class or mean"
        )
    if wanted == "class" and before == 0:
        raise InputError(f"--tokens class: its {tokens} tokens are a square of patches without a class token", at=shown)
    return None if wanted == "class" or (wanted is None and before) else before or 0


def _is_channels_last(shape: Sequence[int]) -> bool:
    return shape[1] == shape[2] != shape[3]


def _pool(found: npt.NDArray[Any], patches: int | None) -> Floats:
    """(N, F) float32 of an output (N, F), (N, T, F), (N, F, H, W) or (N, H, W, F); what `_give_features` computes."""
    values: Floats = found.astype(np.float32)
    if values.ndim == 3:
        return values[:, 0] if patches is None else values[:, patches:].mean(axis=1)
    if values.ndim == 4:
        return values.mean(axis=(1, 2) if _is_channels_last(values.shape) else (2, 3))
    return values.reshape(len(values), -1)


def _convert_opset(proto: onnx.ModelProto, shown: str) -> onnx.ModelProto:
    """The model in the opset of the graphs that torch writes, which it is put into."""
    version = next((opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")), OPSET)
    if version == OPSET:
        return proto
    if version > OPSET:
        raise InputError(f"of ONNX opset {version}, expected at most {OPSET}: export it with that opset", at=shown)
    try:
        return onnx.version_converter.convert_version(proto, OPSET)
    except (RuntimeError, ValueError, onnx.version_converter.ConvertError) as error:
        problem = f"its opset {version} cannot be brought to {OPSET}: {first_line(error)}; export it with opset {OPSET}"
        raise InputError(problem, at=shown) from error


def _open_batch(proto: onnx.ModelProto, image: ImageInput) -> onnx.ModelProto:
    """The model, written for one image, with the constants of one image opened for N.

    These are the shapes of reshapes, and what is joined to images, such as a class token. Whether the result is right
    for batches is for the caller to check.
    """
    own = _fold_constants(proto)
    constants = {weight.name: weight for weight in own.graph.initializer}
    nodes = [helper.make_node("Shape", [image.name], [_BATCH], start=0, end=1)]
    for number, node in enumerate(own.graph.node):
        for place, name in enumerate(node.input):
            sizes, made = list(constants[name].dims) if name in constants else [], f"batch/{number}/{place}"
            if node.op_type == "Reshape" and sizes and place == 1:
                shape = numpy_helper.to_array(constants[name]).copy()
                if shape.size > 1 and shape[0] == 1:
                    shape[0] = 0 if -1 in shape else -1  # as the input has, or as many as are left
                    own.graph.initializer.append(numpy_helper.from_array(shape, made))
                    node.input[place] = made
            elif node.op_type == "Concat" and len(sizes) > 1 and sizes[0] == 1:
                ones = numpy_helper.from_array(np.ones(len(sizes) - 1, dtype=np.int64), f"{made}/ones")
                own.graph.initializer.append(ones)
                nodes.append(helper.make_node("Concat", [_BATCH, ones.name], [f"{made}/shape"], axis=0))
                nodes.append(helper.make_node("Expand", [name, f"{made}/shape"], [made]))
                node.input[place] = made
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del own.graph.node[:]
    own.graph.node.extend(nodes)
    return own


def _fold_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Constant folding by ONNX Runtime: nodes that do not depend on the image become constants."""
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


def _take_images(image: ImageInput, wanted: str) -> list[onnx.NodeProto]:
    """Nodes from (N, 3, H, W) float32 to what a model takes."""
    nodes, value = [], IMAGES
    if image.number == TensorProto.UINT8:
        nodes.append(helper.make_node("Round", [value], ["in/round"]))
        value = "in/round"
    if image.channels_last:
        nodes.append(helper.make_node("Transpose", [value], ["in/last"], perm=[0, 2, 3, 1]))
        value = "in/last"
    return [*nodes, helper.make_node("Cast", [value], [wanted], to=image.number)]


def _give_features(given: str, shape: Sequence[int], patches: int | None) -> list[onnx.NodeProto]:
    """Nodes from a model's output to (N, F) float32; `patches` are of `_find_patches`."""
    nodes = [helper.make_node("Cast", [given], ["out/float"], to=TensorProto.FLOAT)]

    def add(operation: str, output: str, constants: Mapping[str, Any] | None = None, **attributes: Any) -> None:
        inputs = [nodes[-1].output[0]]
        for name, number in (constants or {}).items():
            value = numpy_helper.from_array(np.array(number, dtype=np.int64), f"out/{name}")
            nodes.append(helper.make_node("Constant", [], [value.name], value=value))
            inputs.append(value.name)
        nodes.append(helper.make_node(operation, inputs, [output], **attributes))

    if patches is None:
        add("Gather", FEATURES, {"first": 0}, axis=1)
        return nodes
    if patches:
        add("Slice", "out/patches", {"starts": [patches], "ends": [shape[1]], "axes": [1]})
    if len(shape) == 3:
        add("Transpose", "out/channels", perm=[0, 2, 1])
    elif len(shape) == 4 and _is_channels_last(shape):
        add("Transpose", "out/channels", perm=[0, 3, 1, 2])
    if len(shape) > 2:
        add("GlobalAveragePool", "out/mean")
    add("Flatten", FEATURES, axis=1)
    return nodes


def start_session(data: bytes, *, shown: str) -> Any:
    """A session of ONNX Runtime on the CPU."""
    options = _RUNTIME.SessionOptions()
    options.log_severity_level = 4
    try:
        return _RUNTIME.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except ERRORS as error:
        raise InputError(f"ONNX Runtime cannot use it: {first_line(error)}", at=shown) from error


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
