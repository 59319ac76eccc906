"""Lower precisions of a model, each compared with float32 on other images before it is written."""

import logging
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
from index.arrays import Floats, Labels, Mask, Vectors, centred_cosines
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
_WEIGHTED = ("Conv", "Gemm", "MatMul")
_OPERATIONS = (*_WEIGHTED, "Add", "Clip", "Relu", "GlobalAveragePool")
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_LEAST = 256  # smallest weight tensor that is stored in half precision
CALIBRATED, MEASURED = 128, 1000  # images at most
MIN_CALIBRATION_IMAGES = 16  # of either
_GROUPS = 8  # of layers that follow each other, of which the sensitive ones are left in float32
_PARTS = 6  # of the two most sensitive groups
_MOST_LEFT = 10  # layers in float32, beyond which int8 is hardly faster
_SOME = 64  # images that tell which layers are sensitive
_DEVIATIONS = 1.96  # standard errors within which a loss may be chance
_BATCH = 32


class Int8Converter:
    """Converts a float32 model to int8, with any of its layers left in float32.

    ONNX Runtime's static quantisation: QDQ, u8 activations by minimum and maximum, s8 weights by channel, in the ranges
    of `weight_scales`.

    Args:
        images: (N, side, side, 3) uint8, which give the ranges.
        folder: for its files; a temporary one.
    """

    def __init__(self, model: onnx.ModelProto, images: Pixels, folder: Path) -> None:
        self._prepared, self._ranges, self._images = folder / "prepared.onnx", folder / "ranges.json", images
        for number, node in enumerate(model.graph.node):
            node.name = node.name or f"node_{number}"
        source = folder / "float32.onnx"
        onnx.save(model, source)  # of a model in memory it leaves the weights in a folder that is gone
        with _quiet_root():
            import_quantization().shape_inference.quant_pre_process(source, self._prepared, skip_symbolic_shape=True)
        graph = onnx.load(self._prepared).graph
        layers = [node for node in graph.node if node.op_type in _WEIGHTED]
        self.layers: tuple[str, ...] = tuple(node.name for node in layers)
        self._scales, values = dict[str, list[dict[str, Any]]](), {one.name: one for one in graph.initializer}
        for node in layers:
            if (found := values.get(node.input[1])) is None or (node.op_type == "MatMul" and len(found.dims) != 2):
                continue
            by_row = node.op_type == "Conv" or any(one.name == "transB" and one.i for one in node.attribute)
            weights, axis = numpy_helper.to_array(found), 0 if by_row else 1
            self._scales[found.name] = [
                {"axis": axis, "scale": scale, "zero_point": 0}
                for scale in weight_scales(np.moveaxis(weights, axis, 0))
            ]

    def convert(self, *, leave: Sequence[str] = ()) -> onnx.ModelProto:
        """The model in int8 except for the layers of these names; only the first call runs the images."""
        library, written = import_quantization(), self._prepared.with_name("int8.onnx")
        with _quiet_root():
            library.quantize_static(
                self._prepared,
                written,
                _reader(library, self._images),
                quant_format=library.QuantFormat.QDQ,
                per_channel=True,
                activation_type=library.QuantType.QUInt8,
                weight_type=library.QuantType.QInt8,
                calibrate_method=library.CalibrationMethod.MinMax,
                op_types_to_quantize=list(_OPERATIONS),
                nodes_to_exclude=list(leave),
                reduce_range=True,  # of weights that have no scales of ours
                calibration_cache_path=self._ranges,
                extra_options={"TensorQuantOverrides": self._scales},
            )
        return onnx.load(written)


def weight_scales(weights: Floats) -> Floats:
    """(C,) float32 scales of weights (C, K) or (C, K, h, w), with which no processor's sums overflow.

    Without VNNI a processor adds two neighbouring products of u8 and s8 in 16 bits. 255 (a + b) fits where neighbours
    of the same sign add up to at most 128. Depthwise layers (K = 1) are computed in 32 bits.
    """
    rows = weights.reshape(len(weights), -1)
    scales = np.abs(rows).max(axis=1, initial=1e-9) / 127
    by_position = np.moveaxis(weights, 1, -1).reshape(len(weights), -1)  # as kernels for NHWC have their neighbours
    for order in (rows, -rows, by_position, -by_position) if weights.shape[1] > 1 else ():
        part = order.clip(min=0)
        scales = np.maximum(scales, (part[:, 1:] + part[:, :-1]).max(axis=1) / 127.5)  # which rounding makes 128
    return scales.astype(np.float32)


@contextmanager
def _quiet_root() -> Iterator[None]:
    """The root logger for errors only: ONNX Runtime's quantization warns on it of what does not matter here."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        yield
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
    """Write a model in another precision, unless that costs more Recall@1 than is allowed, beyond chance: `InputError`.

    Where int8 costs too much, up to ten layers stay in float32, some more at a time, until the bound holds (see
    `_convert`).

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
    tried: list[MeasuredPrecision] = []
    with TemporaryDirectory() as folder:
        judge = _Judge(model, pixels[held], labels[held], progress=progress)
        for proto, left in _convert(model, precision, pixels[:calibrated], judge, folder=Path(folder)):
            contract = replace(judge.contract, precision=precision, measured=None)
            found, beyond_chance = judge.compare(proto, float_layers=left)
            tried.append(found)
            if beyond_chance <= max_recall_drop:
                write_model_file(proto, out, contract=replace(contract, measured=found))
                size = out.stat().st_size
                return replace(
                    report, model=str(out), sha256=hash_file(out), bytes=size, precision=precision, measured=found
                )
    best = max(tried, key=lambda one: one.recall_at_1)
    how = f", with up to {tried[-1].float_layers} layers left in float32" if precision == "int8" else ""
    raise InputError(
        f"{out}: {precision} costs {best.recall_at_1_float32 - best.recall_at_1:.4f} of Recall@1 on "
        f"{best.images:,} images, more than the {max_recall_drop:g} of --max-recall-drop beyond chance{how}; "
        "take another --precision, or allow more. Nothing was written."
    )


def _convert(
    model: Path, precision: str, calibration: Pixels, judge: "_Judge", *, folder: Path
) -> Iterator[tuple[onnx.ModelProto, int]]:
    """Models in a precision with the number of layers left in float32, the fastest first.

    The layers that change embeddings most when they alone are in int8 stay in float32 first: parts of the two worst
    of some groups.
    """
    proto = onnx.load(model)
    if precision in HALVES:
        keep_in_half(proto, precision)
        yield proto, 0
        return
    logger.info("converting to int8, with ranges from %d images", len(calibration))
    converter = Int8Converter(proto, calibration, folder)
    yield converter.convert(), 0
    logger.info("int8 costs too much: looking for layers to leave in float32")

    def sort_by_cost(names: Sequence[str], count: int) -> list[list[str]]:
        """Groups of layers that follow each other, those first that change embeddings most."""
        groups = [list(group) for group in np.array_split(np.array(names), count) if len(group)]
        judge.expect(_SOME, models=len(groups))
        return sorted(groups, key=lambda group: judge.cosine(converter.convert(leave=without(group))))

    def without(group: Sequence[str]) -> list[str]:
        return [name for name in converter.layers if name not in group]

    groups, left = sort_by_cost(converter.layers, _GROUPS), list[str]()
    worst = [name for name in converter.layers if name in {*groups[0], *(groups[1] if len(groups) > 1 else ())}]
    for part in sort_by_cost(worst, _PARTS):
        left += part[: _MOST_LEFT - len(left)]
        judge.expect(MEASURED)
        yield converter.convert(leave=left), len(left)
        if len(left) == _MOST_LEFT:
            return


class _Judge:
    """Compares models with the float32 one on the same images."""

    def __init__(self, model: Path, pixels: Pixels, labels: Labels, *, progress: Progress) -> None:
        self._pixels, self._labels, self._progress = pixels, labels, progress
        self._done, self._total = 0, 2 * len(pixels)
        embedder = Embedder(model, backend=USUAL_BACKEND)
        self.contract = embedder.contract
        self._outputs = tuple(self.contract.widths)
        self._expected = self._embed(embedder, len(pixels))
        self._hits = {name: find_own_label(vectors, labels) for name, vectors in self._expected.items()}

    def expect(self, images: int, *, models: int = 1) -> None:
        """Add images, of which some may be missing, by each of further models to the total of the progress."""
        self._total += models * min(images, len(self._pixels))

    def compare(self, proto: onnx.ModelProto, *, float_layers: int) -> tuple[MeasuredPrecision, float]:
        """Recall@1 and cosine of a model, and the loss of Recall@1 that is beyond chance; of two outputs the worse.

        That is the lower bound of the loss at 95 %, paired over the queries.
        """
        found = self._embed_model(proto, len(self._pixels))
        losses = {
            name: self._hits[name].astype(np.float64) - find_own_label(vectors, self._labels)
            for name, vectors in found.items()
        }
        worst = max(losses, key=lambda name: losses[name].mean())
        loss, hits = losses[worst], float(self._hits[worst].mean())
        measured = MeasuredPrecision(
            images=len(self._pixels),
            recall_at_1=round(hits - float(loss.mean()), 6),
            recall_at_1_float32=round(hits, 6),
            centred_cosine=round(self._cosine(found), 6),
            float_layers=float_layers,
        )
        return measured, float(loss.mean() - _DEVIATIONS * loss.std() / np.sqrt(len(loss)))

    def cosine(self, proto: onnx.ModelProto) -> float:
        """Mean cosine of centred embeddings, of some of the images."""
        return self._cosine(self._embed_model(proto, min(_SOME, len(self._pixels))))

    def _cosine(self, found: dict[str, Vectors]) -> float:
        return min(
            float(centred_cosines(vectors, self._expected[name][: len(vectors)]).mean())
            for name, vectors in found.items()
        )

    def _embed_model(self, proto: onnx.ModelProto, count: int) -> dict[str, Vectors]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write_model_file(proto, path, contract=self.contract)
            return self._embed(Embedder(path, backend=USUAL_BACKEND), count)

    def _embed(self, embedder: Embedder, count: int) -> dict[str, Vectors]:
        parts: dict[str, list[Vectors]] = {name: [] for name in self._outputs}
        for start in range(0, count, _BATCH):
            batch = self._pixels[start : min(start + _BATCH, count)]
            for name in self._outputs:
                parts[name].append(embedder.with_outputs(name).embed_batch(batch))
            self._done += len(batch)
            self._progress(self._done, max(self._done, self._total))
        return {name: np.concatenate(vectors) for name, vectors in parts.items()}


def find_own_label(vectors: Vectors, labels: Labels) -> Mask:
    """(N,) whether the nearest other one of (N, D) unit rows has the same of (N,) labels."""
    nearest = search(vectors, vectors, k=1, own=np.arange(len(vectors))).rows[:, 0]
    return np.asarray(labels[nearest] == labels)


def recall_at_1(vectors: Vectors, labels: Labels) -> float:
    """Share of (N, D) unit rows whose nearest other row has the same of (N,) labels."""
    return float(find_own_label(vectors, labels).mean())
