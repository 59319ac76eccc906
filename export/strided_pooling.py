"""Models that were exported with a pooling by strides: the positions that it computes are dropped.

torch pools what lies with its channels last to a view with strides, and ONNX has for that a gather of the flat features
by computed positions, which are 0, 1, 2 and so on: nothing moves. OpenVINO computes them wrongly where a layer is
quantised. New exports have none.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper


def drop_positions(proto: onnx.ModelProto) -> None:
    """Let what reads features gathered by computed positions read the flat features, in place."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    constants = {value.name: value for value in proto.graph.initializer}
    renamed = {
        node.output[0]: node.input[0]
        for node in proto.graph.node
        if node.op_type == "Gather" and _is_flat(node.input[0], makers, constants) and _is_computed(node, makers)
    }
    if not renamed:
        return
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
    _drop_unread(proto)


def _is_flat(name: str, makers: dict[str, onnx.NodeProto], constants: dict[str, onnx.TensorProto]) -> bool:
    node = makers.get(name)
    if node is None or node.op_type != "Reshape" or node.input[1] not in constants:
        return False
    return numpy_helper.to_array(constants[node.input[1]]).tolist() == [-1]


def _is_computed(gather: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> bool:
    """Whether its positions come from a `Range`, scaled and shifted."""
    name = gather.input[1]
    while (node := makers.get(name)) is not None and node.op_type in ("Add", "Mul", "Unsqueeze"):
        name = node.input[0]
    return node is not None and node.op_type == "Range"


def _drop_unread(proto: onnx.ModelProto) -> None:
    read = {value.name for value in proto.graph.output}
    kept = []
    for node in reversed(proto.graph.node):
        if read.intersection(node.output):
            kept.append(node)
            read.update(node.input)
    weights = [value for value in proto.graph.initializer if value.name in read]
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(reversed(kept))
    proto.graph.initializer.extend(weights)
