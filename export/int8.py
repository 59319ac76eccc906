"""Layers in 8-bit integers: activations unsigned, weights signed, their ranges read off real images."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from index.images.preprocess import Pixels
from index.model.backends.backend import INPUT_NAME
from index.model.backends.onnxruntime import import_quantization

_OPERATIONS = ("Conv", "Gemm", "MatMul", "Add", "Clip", "Relu", "GlobalAveragePool")
_BATCH = 16


class Int8Converter:
    """Makes models in int8 of one in float32, with any of its layers left as they are.

    ONNX Runtime's static quantisation: QDQ, u8 activations by their least and greatest values, s8 weights by channel.
    (On processors without VNNI its sums of u8 x s8 may overflow, which costs accuracy that is not seen elsewhere.)

    Args:
        model: in float32.
        images: (N, side, side, 3) uint8 to read the ranges off.
    """

    def __init__(self, model: onnx.ModelProto, images: Pixels) -> None:
        self._model, self._images = model, images
        for number, node in enumerate(model.graph.node):
            node.name = node.name or f"node_{number}"
        with self._prepared() as path:
            nodes = onnx.load(path).graph.node
        self.layers: tuple[str, ...] = tuple(node.name for node in nodes if node.op_type in _OPERATIONS)

    def convert(self, *, leave: Sequence[str] = ()) -> onnx.ModelProto:
        """The model in int8 but for the layers of these names."""
        library = import_quantization()
        with self._prepared() as path:
            written = path.with_name("int8.onnx")
            library.quantize_static(
                path, written, _reader(library, self._images), quant_format=library.QuantFormat.QDQ, per_channel=True,
                activation_type=library.QuantType.QUInt8, weight_type=library.QuantType.QInt8,
                calibrate_method=library.CalibrationMethod.MinMax, op_types_to_quantize=list(_OPERATIONS),
                nodes_to_exclude=list(leave),
            )  # fmt: skip
            return onnx.load(written)

    @contextmanager
    def _prepared(self) -> Iterator[Path]:
        """The model as ONNX Runtime wants it, in a folder of its own."""
        library = import_quantization()
        logger, level = logging.getLogger(), logging.getLogger().level
        with tempfile.TemporaryDirectory() as folder:
            path, source = Path(folder) / "prepared.onnx", Path(folder) / "float32.onnx"
            onnx.save(self._model, source)  # of a model in memory it leaves the weights in a folder that is gone
            logger.setLevel(logging.ERROR)  # it warns on the root logger of what does not matter here
            try:
                library.shape_inference.quant_pre_process(source, path, skip_symbolic_shape=True)
                yield path
            finally:
                logger.setLevel(level)


def _reader(library: Any, images: Pixels) -> Any:
    class Reader(library.CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = (images[start : start + _BATCH] for start in range(0, len(images), _BATCH))

        def get_next(self) -> dict[str, Pixels] | None:
            batch = next(self._batches, None)
            return None if batch is None else {INPUT_NAME: batch}

    return Reader()
