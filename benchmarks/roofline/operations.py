"""What a model file has to do for an image: operations of its products, and the bytes that these move."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import shape_inference

from index.errors import InputError

_BYTES = {"int8": 1}  # of a number that is computed with; four else


class Work(NamedTuple):
    """Of a batch: multiplications and additions of its convolutions and products, and the bytes of these.

    A layer reads its inputs and its weights once and writes its outputs once.
    """

    operations: int
    bytes_moved: int


def count_work(path: Path, *, batch: int, precision: str) -> Work:
    """Of a model file, for a batch of images.

    Raises:
        InputError: the file does not say the shape of a layer.
    """
    model = onnx.load(str(path))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    for values in (model.graph.value_info, model.graph.output):
        del values[:]  # which name the batch, not its size
    shapes = _read_shapes(shape_inference.infer_shapes(model, data_prop=True))
    operations = moved = 0
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        try:
            weight = shapes[node.input[1]]
            if node.op_type == "Gemm":  # of a row of features an image
                layer = batch * prod(weight), batch * sum(weight)
            else:
                given, out = shapes[node.input[0]], shapes[node.output[0]]
                inner = prod(weight[1:]) if node.op_type == "Conv" else given[-1]
                layer = prod(out) * inner, prod(given) + prod(out)
        except KeyError as error:
            raise InputError(f"{path}: no shape of {error.args[0]}, of {node.op_type} {node.name}") from error
        operations += 2 * layer[0]
        moved += layer[1] + prod(weight)
    return Work(operations, moved * _BYTES.get(precision, 4))


def _read_shapes(model: onnx.ModelProto) -> Mapping[str, tuple[int, ...]]:
    """Of all that has a known one."""
    shapes = {one.name: tuple(one.dims) for one in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if value.type.tensor_type.HasField("shape"):
            sides = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if all(sides):
                shapes[value.name] = tuple(sides)
    return shapes
