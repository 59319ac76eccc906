"""A model as small as one can be: a photo's 16 x 16 thumbnail through fixed random weights, 384-d."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from benchmarks.common.record import write_atomically
from index.images.preprocess import PreprocessConfig
from index.model.backends.backend import INPUT_NAME, OUTPUT_NAME
from index.model.checksum import add_checksum
from index.model.contract import METADATA_KEY, ModelContract

SIDE, POOL, WIDTH = 64, 4, 384


def write_thumbnail_model(path: Path, *, seed: int = 0) -> Path:
    """It tells little of what a photo shows, as it is there for speed."""
    values = 3 * (SIDE // POOL) ** 2
    random = np.random.default_rng(seed).normal(size=(values, WIDTH)).astype(np.float32)
    centred = random - random.mean(axis=0)  # the brightness of the whole picture says nothing
    nodes = [
        helper.make_node("Cast", [INPUT_NAME], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["float"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("AveragePool", ["planes"], ["pooled"], kernel_shape=[POOL, POOL], strides=[POOL, POOL]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["raw"]),
        helper.make_node("ReduceL2", ["raw"], ["length"], axes=[1], keepdims=1),
        helper.make_node("Max", ["length", "least"], ["divisor"]),
        helper.make_node("Div", ["raw", "divisor"], [OUTPUT_NAME]),
    ]
    graph = helper.make_graph(
        nodes,
        "thumbnail",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["N", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, ["N", WIDTH])],
        [numpy_helper.from_array(centred, "weights"), numpy_helper.from_array(np.full(1, 1e-6, np.float32), "least")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    preprocess = PreprocessConfig(resize=SIDE, crop=SIDE)
    contract = ModelContract(
        backbone="thumbnail", method="raw", embedding_dim=WIDTH, preprocess=preprocess, run_id="", class_count=0
    )
    helper.set_model_props(model, {METADATA_KEY: contract.to_json()})
    checker.check_model(model)
    write_atomically(path, lambda file: file.write(add_checksum(model.SerializeToString())))
    return path
