"""A tiny real model for tests: the contract, the graph and the file are what the exporter writes, only smaller."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from index.images.preprocess import Pixels, PreprocessConfig
from index.model.backends.backend import COPY_NAME, INPUT_NAME, OUTPUT_NAME, UNTRAINED_NAME
from index.model.checksum import CHECKSUM_KEY, add_checksum
from index.model.contract import METADATA_KEY, ModelContract
from index.model.embedder import Embedder

PREPROCESS = PreprocessConfig(resize=40, crop=32)
EMBEDDING_DIM, COPY_DIM, UNTRAINED_DIM = 16, 12, 10


def tiny_contract(*, embedding_dim: int = EMBEDDING_DIM) -> ModelContract:
    return ModelContract(
        backbone="tiny", method="raw", embedding_dim=embedding_dim, preprocess=PREPROCESS, run_id="", class_count=0
    )


def two_output_contract(*, threshold: float = 0.9) -> ModelContract:
    """That of the tiny model with a second output."""
    return replace(tiny_contract(), copy_dim=COPY_DIM, copy_threshold=threshold)


def write_two_output_model(path: Path, *, seed: int = 0, threshold: float = 0.9) -> Path:
    """The tiny model, whose second output is of other fixed random weights."""
    return write_tiny_model(path, seed=seed, contract=two_output_contract(threshold=threshold).to_json(), two=True)


def write_three_output_model(path: Path) -> Path:
    """The tiny model as of a training with labels and copies, with an output that saw no label."""
    contract = replace(two_output_contract(), method="spa", untrained_dim=UNTRAINED_DIM)
    return write_tiny_model(path, contract=contract.to_json(), two=True, untrained=True)


def write_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    two: bool = False,
    untrained: bool = False,
    contract: str | None = None,
    without_contract: bool = False,
    blind_to_black: bool = False,
    only_batches_of: int | None = None,
    width: int = EMBEDDING_DIM,
) -> Path:
    """Write a model that embeds the brightness and colour of a 4 x 4 grid through fixed random weights.

    Args:
        contract: metadata text to write instead of the right one.
        without_contract: write no metadata, and so no checksum.
        blind_to_black: give black images the zero vector, which is no embedding.
        only_batches_of: fail at run time on batches of any other size.
        width: of the embedding.
    """
    random = np.random.default_rng(seed)
    mean, std = (np.array(v, dtype=np.float32).reshape(1, 3, 1, 1) for v in (PREPROCESS.mean, PREPROCESS.std))
    if blind_to_black:
        mean = np.zeros_like(mean)
    kernel = random.normal(size=(8, 3, 3, 3)).astype(np.float32) / 5
    linear = random.normal(size=(8 * 16, width)).astype(np.float32)
    constants = {
        "one": np.ones((), dtype=np.float32),
        "scale": np.float32(255),
        "mean": mean,
        "std": std,
        "kernel": kernel,
        "linear": linear,
        "tiny": np.full((1,), 1e-12, dtype=np.float32),
    }
    nodes = [
        helper.make_node("Cast", [INPUT_NAME], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["float"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Div", ["planes", "scale"], ["unit"]),
        helper.make_node("Sub", ["unit", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "std"], ["normal"]),
        helper.make_node("Conv", ["normal", "kernel"], ["maps"], pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["maps"], ["active"], alpha=0.2),
        helper.make_node("AveragePool", ["active"], ["pooled"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        *_make_output("linear", OUTPUT_NAME),
    ]
    outputs = {OUTPUT_NAME: width}
    if two:
        constants["second"] = random.normal(size=(8 * 16, COPY_DIM)).astype(np.float32)
        nodes += _make_output("second", COPY_NAME)
        outputs[COPY_NAME] = COPY_DIM
    if untrained:
        constants["third"] = random.normal(size=(8 * 16, UNTRAINED_DIM)).astype(np.float32)
        nodes += _make_output("third", UNTRAINED_NAME)
        outputs[UNTRAINED_NAME] = UNTRAINED_DIM
    if only_batches_of is not None:
        del constants["one"]
        constants |= {
            "right_size": np.int64(only_batches_of),
            "first": np.int64(0),
            "ones": np.ones(1, dtype=np.float32),
        }
        nodes[:0] = [  # reads past the end of `ones` unless the batch has the right size
            helper.make_node("Shape", [INPUT_NAME], ["input_shape"]),
            helper.make_node("Gather", ["input_shape", "first"], ["batch_size"]),
            helper.make_node("Sub", ["batch_size", "right_size"], ["difference"]),
            helper.make_node("Abs", ["difference"], ["distance"]),
            helper.make_node("Gather", ["ones", "distance"], ["one"]),
        ]
    side = PREPROCESS.crop
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["N", side, side, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", dim]) for name, dim in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if not without_contract:
        helper.set_model_props(model, {METADATA_KEY: contract or tiny_contract(embedding_dim=width).to_json()})
    onnx.checker.check_model(model)
    return write_model(model, path)


def _make_output(weights: str, name: str) -> list[onnx.NodeProto]:
    """Unit rows of the features through some weights."""
    raw, length, divisor, rows = (f"{part}_{weights}" for part in ("raw", "length", "divisor", "rows"))
    return [
        helper.make_node("MatMul", ["flat", weights], [raw]),
        helper.make_node("ReduceL2", [raw], [length], axes=[1], keepdims=1),
        helper.make_node("Max", [length, "tiny"], [divisor]),
        helper.make_node("Div", [raw, divisor], [rows]),
        helper.make_node("Mul", [rows, "one"], [name]),
    ]


def write_model(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model as the exporter does, with a checksum where its contract has the place."""
    data = model.SerializeToString()
    path.write_bytes(add_checksum(data) if f'"{CHECKSUM_KEY}"'.encode() in data else data)
    return path


def read_pixels(embedder: Embedder, path: Path) -> Pixels:
    """An image file as the model's input."""
    return embedder.preprocess(path.read_bytes(), name=path.name)
