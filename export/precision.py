"""Lower precisions of a model, each compared with float32 on other images before it is written."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.public import MAX_RECALL_DROP
from export.to_onnx import ExportedModel, write_model_file
from index.arrays import Labels, Vectors, centred_cosines
from index.durable import hash_file
from index.errors import InputError
from index.images.preprocess import Pixels
from index.model.backends.backend import INPUT_NAME, USUAL_BACKEND
from index.model.backends.onnxruntime import import_quantization
from index.model.contract import MeasuredPrecision
from index.model.embedder import Embedder
from index.progress import Progress, no_progress
from index.vectors.exact import search

logger = logging.getLogger(__name__)
_OPERATIONS = ("Conv", "Gemm", "MatMul", "Add", "Clip", "Relu", "GlobalAveragePool")
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_LEAST = 256  # smallest weight tensor that is stored in half precision
CALIBRATED, MEASURED = 128, 2000  # images at most
MIN_CALIBRATION_IMAGES = 16  # of either
_GROUPS = 8  # of layers that follow each other, of which the sensitive ones are left in float32
_BATCH = 32


class Int8Converter:
    """Converts a float32 model to int8, with any of its layers left in float32.

    ONNX Runtime's static quantisation: QDQ, u8 activations by minimum and maximum, s8 weights by channel. Weights have
    7 bits, with which sums of u8 x s8 do not overflow on processors without VNNI.

    Args:
        images: (N, side, side, 3) uint8, which give the ranges.
    """

    def __init__(self, model: onnx.ModelProto, images: Pixels) -> None:
        self._model, self._images = model, images
        for number, node in enumerate(model.graph.node):
            node.name = node.name or f"node_{number}"
        with self._prepared() as path:
            nodes = onnx.load(path).graph.node
        self.layers: tuple[str, ...] = tuple(node.name for node in nodes if node.op_type in _OPERATIONS)

    def convert(self, *, leave: Sequence[str] = ()) -> onnx.ModelProto:
        """The model in int8 except for the layers of these names."""
        library = import_quantization()
        with self._prepared() as path:
            written = path.with_name("int8.onnx")
            library.quantize_static(
                path,
                written,
                _reader(library, self._images),
                quant_format=library.QuantFormat.QDQ,
                per_channel=True,
                activation_type=library.QuantType.QUInt8,
                weight_type=library.QuantType.QInt8,
                calibrate_method=library.CalibrationMethod.MinMax,
                op_types_to_quantize=list(_OPERATIONS),
                nodes_to_exclude=list(leave),
                reduce_range=True,
            )
            return onnx.load(written)

    @contextmanager
    def _prepared(self) -> Iterator[Path]:
        """The model after ONNX Runtime's preprocessing, in a folder of its own."""
        library = import_quantization()
        root, level = logging.getLogger(), logging.getLogger().level
        with tempfile.TemporaryDirectory() as folder:
            path, source = Path(folder) / "prepared.onnx", Path(folder) / "float32.onnx"
            onnx.save(self._model, source)  # of a model in memory it leaves the weights in a folder that is gone
            root.setLevel(logging.ERROR)  # it warns on the root logger of what does not matter here
            try:
                library.shape_inference.quant_pre_process(source, path, skip_symbolic_shape=True)
                yield path
            finally:
                root.setLevel(level)


def _reader(library: Any, images: Pixels) -> Any:
    class Reader(library.CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = (images[start : start + _BATCH] for start in range(0, len(images), _BATCH))

        def get_next(self) -> dict[str, Pixels] | None:
            batch = next(self._batches, None)
            return None if batch is None else {INPUT_NAME: batch}

    return Reader()


def keep_in_half(proto: onnx.ModelProto, precision: str) -> None:
    """Store the graph's larger float32 weights in one of `HALVES`, each with a node that casts it back.

    Weights out of its range stay in float32.
    """
    kept, casts, dtype = [], [], HALVES[precision]
    for weight in proto.graph.initializer:
        values = numpy_helper.to_array(weight) if weight.data_type == TensorProto.FLOAT else np.empty(0)
        if values.size >= _LEAST and np.abs(values).max() <= float(ml_dtypes.finfo(dtype).max):
            name, weight = weight.name, numpy_helper.from_array(values.astype(dtype), f"{weight.name}_half")
            casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT))
        kept.append(weight)
    nodes = [*casts, *proto.graph.node]
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.initializer.extend(kept)
    proto.graph.node.extend(nodes)


def lower_precision(
    report: ExportedModel,
    out: Path,
    precision: str,
    *,
    pixels: Pixels,
    labels: Labels,
    max_recall_drop: float = MAX_RECALL_DROP,
    progress: Progress = no_progress,
) -> ExportedModel:
    """Write a model in another precision, if that costs no more Recall@1 than is allowed, else `InputError`.

    Where int8 costs too much, groups of consecutive layers stay in float32, one more at a time, until the bound holds:
    first those that change embeddings most when they alone are in int8.

    Args:
        report: of the export in float32.
        precision: of the contract: `float16`, `bfloat16` or `int8`.
        pixels: (N, side, side, 3) uint8. `CALIBRATED` of them, or half, give int8 its ranges. On the others Recall@1
            by their `labels` (N,) is measured, and the cosine of centred embeddings.
        max_recall_drop: 0..1, of Recall@1.
        progress: called with (done, total) images.
    """
    model = Path(report.model)
    calibrated = min(CALIBRATED, len(pixels) // 2)
    held = slice(calibrated, calibrated + MEASURED)
    logger.info("measuring the precision on %d images", len(pixels[held]))
    judge = _Judge(model, pixels[held], labels[held], progress=progress)
    tried: list[MeasuredPrecision] = []
    for proto, left in _convert(model, precision, pixels[:calibrated], judge):
        contract = replace(judge.contract, precision=precision, measured=None)
        found = judge.compare(proto, float_layers=left)
        tried.append(found)
        if found.recall_at_1 >= found.recall_at_1_float32 - max_recall_drop:
            write_model_file(proto, out, contract=replace(contract, measured=found))
            size = out.stat().st_size
            return replace(
                report, model=str(out), sha256=hash_file(out), bytes=size, precision=precision, measured=found
            )
    best = max(tried, key=lambda one: one.recall_at_1)
    raise InputError(
        f"{out}: {precision} costs {best.recall_at_1_float32 - best.recall_at_1:.4f} of Recall@1 on "
        f"{best.images:,} images, more than the {max_recall_drop:g} of --max-recall-drop, whatever layers are "
        f"left in float32; take another --precision, or allow more. Nothing was written."
    )


def _convert(
    model: Path, precision: str, calibration: Pixels, judge: "_Judge"
) -> Iterator[tuple[onnx.ModelProto, int]]:
    """Models in a precision with the number of layers left in float32, the fastest first."""
    proto = onnx.load(model)
    if precision in HALVES:
        keep_in_half(proto, precision)
        yield proto, 0
        return
    logger.info("converting to int8, with ranges from %d images", len(calibration))
    converter = Int8Converter(proto, calibration)
    yield converter.convert(), 0
    logger.info("int8 costs too much: looking for layers to leave in float32, by up to %d conversions", 2 * _GROUPS - 1)
    groups = [list(group) for group in np.array_split(np.array(converter.layers), _GROUPS) if len(group)]

    def sensitivity(group: Sequence[str]) -> float:
        others = [name for name in converter.layers if name not in group]
        return judge.compare(converter.convert(leave=others), float_layers=len(others)).centred_cosine

    left: list[str] = []
    for group in sorted(groups, key=sensitivity)[:-1]:
        left += group
        yield converter.convert(leave=left), len(left)


class _Judge:
    """Compares models with the float32 one on the same images."""

    def __init__(self, model: Path, pixels: Pixels, labels: Labels, *, progress: Progress) -> None:
        self._pixels, self._labels, self._progress = pixels, labels, progress
        embedder = Embedder(model, backend=USUAL_BACKEND)
        self.contract = embedder.contract
        self._outputs = tuple(self.contract.widths)
        self._expected = self._embed(embedder)
        self._recalls = {name: recall_at_1(vectors, self._labels) for name, vectors in self._expected.items()}

    def compare(self, proto: onnx.ModelProto, *, float_layers: int) -> MeasuredPrecision:
        """Recall@1 and cosine of a model; of two outputs, those of the one that lost more."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_model_file(proto, path, contract=self.contract)
            found = self._embed(Embedder(path, backend=USUAL_BACKEND))
        drops = {name: self._recalls[name] - recall_at_1(vectors, self._labels) for name, vectors in found.items()}
        worst = max(drops, key=lambda name: drops[name])
        cosines = [float(centred_cosines(found[name], self._expected[name]).mean()) for name in self._outputs]
        return MeasuredPrecision(
            images=len(self._pixels),
            recall_at_1=round(self._recalls[worst] - drops[worst], 6),
            recall_at_1_float32=round(self._recalls[worst], 6),
            centred_cosine=round(min(cosines), 6),
            float_layers=float_layers,
        )

    def _embed(self, embedder: Embedder) -> dict[str, Vectors]:
        parts: dict[str, list[Vectors]] = {name: [] for name in self._outputs}
        for start in range(0, len(self._pixels), _BATCH):
            batch = self._pixels[start : start + _BATCH]
            for name in self._outputs:
                parts[name].append(embedder.with_outputs(name).embed_batch(batch))
            self._progress(start + len(batch), len(self._pixels))
        return {name: np.concatenate(vectors) for name, vectors in parts.items()}


def recall_at_1(vectors: Vectors, labels: Labels) -> float:
    """Share of (N, D) unit rows whose nearest other row has the same of (N,) labels."""
    nearest = search(vectors, vectors, k=1, own=np.arange(len(vectors))).rows[:, 0]
    return float((labels[nearest] == labels).mean())
