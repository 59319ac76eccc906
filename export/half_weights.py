"""Weights in half the bytes: kept as float16 or bfloat16, computed with as float32, so that only rounding is lost."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_LEAST = 256  # numbers of what is worth it


def keep_in_half(proto: onnx.ModelProto, precision: str) -> None:
    """Let the graph hold its larger float32 weights in one of `HALVES`, each with a node that casts it back.

    Those that it cannot hold, being too large, stay as they are.
    """
    kept, casts = [], []
    for weight in proto.graph.initializer:
        half = _round(weight, HALVES[precision])
        if half is not None:
            casts.append(helper.make_node("Cast", [half.name], [weight.name], to=TensorProto.FLOAT))
        kept.append(half or weight)
    nodes = [*casts, *proto.graph.node]
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.initializer.extend(kept)
    proto.graph.node.extend(nodes)


def _round(weight: onnx.TensorProto, dtype: np.dtype[Any]) -> onnx.TensorProto | None:
    if weight.data_type != TensorProto.FLOAT:
        return None
    values = numpy_helper.to_array(weight)
    if values.size < _LEAST or np.abs(values).max() > float(ml_dtypes.finfo(dtype).max):
        return None
    return numpy_helper.from_array(values.astype(dtype), f"{weight.name}_half")
