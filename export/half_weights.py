"""Weights in half the bytes: kept as float16, computed with as float32, so that nothing but their rounding is lost."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LEAST = 256  # numbers of what is worth it


def keep_in_half(proto: onnx.ModelProto) -> None:
    """Let the graph hold its larger float32 weights as float16, each with a node that casts it back.

    Those that float16 cannot hold, being too large, stay as they are.
    """
    kept, casts = [], []
    for weight in proto.graph.initializer:
        half = _round(weight)
        if half is not None:
            casts.append(helper.make_node("Cast", [half.name], [weight.name], to=TensorProto.FLOAT))
        kept.append(half or weight)
    nodes = [*casts, *proto.graph.node]
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.initializer.extend(kept)
    proto.graph.node.extend(nodes)


def _round(weight: onnx.TensorProto) -> onnx.TensorProto | None:
    if weight.data_type != TensorProto.FLOAT:
        return None
    values = numpy_helper.to_array(weight)
    if values.size < _LEAST or np.abs(values).max() > np.finfo(np.float16).max:
        return None
    return numpy_helper.from_array(values.astype(np.float16), f"{weight.name}_half")
