"""Models in a lower precision: what they cost is measured, and none is written that costs too much."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from export import precision as precision_module
from export.exports import export_run
from export.precision import keep_in_half, lower_precision, recall_at_1, weight_scales
from export.public import ExportConfig, export
from export.to_onnx import ExportedModel
from index.arrays import centred_cosines
from index.durable import hash_file
from index.errors import InputError
from index.model.backends.backend import INPUT_NAME, OUTPUT_NAME
from index.model.contract import METADATA_KEY, ModelContract
from index.model.embedder import Embedder
from tests.export.test_to_onnx import export_backbone
from tests.models import PREPROCESS, tiny_contract, write_model, write_tiny_model, write_two_output_model
from tests.training.conftest import FinishedRun


def draw_pixels(count: int = 80) -> dict[str, np.ndarray]:
    """Images of four colours, with noise."""
    random, side = np.random.default_rng(0), PREPROCESS.crop
    labels = random.integers(4, size=count)
    colours = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [180, 180, 40]])
    noise = random.normal(scale=25, size=(count, side, side, 3)) + random.normal(scale=12, size=(count, 1, 1, 3))
    pixels = (colours[labels][:, None, None] + noise).clip(0, 255).astype(np.uint8)
    return {"pixels": pixels, "labels": labels}


def as_report(model: Path) -> ExportedModel:
    return ExportedModel(str(model), hash_file(model), 16, 1.0, model.stat().st_size)


def write_sensitive_model(path: Path) -> Path:
    """Of two layers the first has a value a million times the others, which the second never sees."""
    random = np.random.default_rng(0)
    first = random.normal(size=(3, 8)).astype(np.float32)
    first[:, 0] *= 1e6
    mask = np.ones(8, dtype=np.float32)
    mask[0] = 0
    constants = {"first": first, "mask": mask, "second": random.normal(size=(8, 16)).astype(np.float32)}
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        sensitive (uint8[N, {PREPROCESS.crop}, {PREPROCESS.crop}, 3] {INPUT_NAME}) => (float[N, 16] {OUTPUT_NAME}) {{
            floats = Cast <to = 1> ({INPUT_NAME})
            colour = ReduceMean <axes = [1, 2], keepdims = 0> (floats)
            hidden = MatMul (colour, first)
            seen = Mul (hidden, mask)
            raw = MatMul (seen, second)
            length = ReduceL2 <axes = [1], keepdims = 1> (raw)
            {OUTPUT_NAME} = Div (raw, length)
        }}"""
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    helper.set_model_props(model, {METADATA_KEY: tiny_contract().to_json()})
    return write_model(model, path)


@pytest.mark.parametrize("precision", ["int8", "float16", "bfloat16"])
def test_what_is_written_tells_its_cost_and_is_nearly_equal(precision: str, tiny_model: Path, tmp_path: Path) -> None:
    images, out = draw_pixels(), tmp_path / "lower.onnx"
    report = lower_precision(as_report(tiny_model), out, precision, **images, max_recall_drop=1)
    full, lower = Embedder(tiny_model), Embedder(out)
    assert (report.model, report.sha256, report.precision) == (str(out), lower.sha256, precision)
    assert lower.contract == replace(full.contract, precision=precision, measured=report.measured)
    found = report.measured
    assert found is not None
    held = images["pixels"][40:]
    one, two = full.embed_batch(held[:32]), lower.embed_batch(held[:32])
    one, two = (np.concatenate([one, full.embed_batch(held[32:])]), np.concatenate([two, lower.embed_batch(held[32:])]))
    assert found.images == 40
    assert found.recall_at_1 == pytest.approx(recall_at_1(two, images["labels"][40:]), abs=1e-6)
    assert found.recall_at_1_float32 == pytest.approx(recall_at_1(one, images["labels"][40:]), abs=1e-6)
    assert found.centred_cosine == pytest.approx(centred_cosines(two, one).mean(), abs=1e-5)
    assert 0.97 < found.centred_cosine <= 1
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("parts", [6, 1])
def test_what_a_layer_does_not_bear_stays_in_float32(
    parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_module, "_PARTS", parts)
    monkeypatch.setattr(precision_module, "_MOST_LEFT", 1)  # of one part of both layers there is room for the first
    images, model = draw_pixels(160), write_sensitive_model(tmp_path / "model.onnx")
    report = lower_precision(as_report(model), tmp_path / "int8.onnx", "int8", **images)
    assert report.measured.float_layers == 1
    assert report.measured.recall_at_1 >= report.measured.recall_at_1_float32 - 0.003
    nodes = onnx.load(tmp_path / "int8.onnx").graph.node
    assert any(node.op_type == "QuantizeLinear" for node in nodes)
    makers = {name: node for node in nodes for name in node.output}
    first = next(node for node in nodes if node.op_type == "MatMul")
    assert "DequantizeLinear" not in {makers[name].op_type for name in first.input if name in makers}


@pytest.mark.parametrize("shape", [(4, 9), (5, 6, 3, 3), (3, 2, 1, 1), (6, 1, 3, 3)])
def test_weights_use_eight_bits_as_far_as_neighbours_add_up_in_sixteen(shape: tuple[int, ...]) -> None:
    weights = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    weights[0] = 0
    values = np.round(weights / weight_scales(weights).reshape(-1, *[1] * (len(shape) - 1)))
    assert 64 < np.abs(values[1:]).reshape(shape[0] - 1, -1).max(axis=1).min() <= np.abs(values).max() <= 127
    if shape[1] == 1:  # depthwise: no pairs
        assert (np.abs(values[1:]).reshape(shape[0] - 1, -1).max(axis=1) == 127).all()
        return
    for order in (values.reshape(shape[0], -1), np.moveaxis(values, 1, -1).reshape(shape[0], -1)):
        for side in (order, -order):
            part = side.clip(min=0)
            assert (255 * (part[:, 1:] + part[:, :-1])).max() <= 32_767


def test_nothing_is_written_where_it_costs_too_much(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"int8 costs -?[\d.]+ of Recall@1 on 40 images.*Nothing was written"):
        lower_precision(as_report(tiny_model), tmp_path / "int8.onnx", "int8", **draw_pixels(), max_recall_drop=-1)
    assert list(tmp_path.iterdir()) == []


def test_of_two_outputs_the_one_that_loses_more_counts(tmp_path: Path) -> None:
    model = write_two_output_model(tmp_path / "two.onnx")
    report = lower_precision(as_report(model), tmp_path / "int8.onnx", "int8", **draw_pixels(), max_recall_drop=1)
    written = Embedder(tmp_path / "int8.onnx").contract
    assert written.copy_dim > 0
    assert written.measured == report.measured
    assert ModelContract.from_json(written.to_json()) == written


def test_recall_and_centred_cosine_are_what_their_names_say() -> None:
    random = np.random.default_rng(1)
    found, expected = random.normal(size=(2, 30, 5)).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    labels = random.integers(3, size=30)
    hits = 0
    for row in range(30):
        best = max((other for other in range(30) if other != row), key=lambda other: float(found[row] @ found[other]))
        hits += labels[best] == labels[row]
    assert recall_at_1(found, labels) == pytest.approx(hits / 30)
    middle = expected.astype(np.float64).mean(axis=0)
    cosines = [
        float((a - middle) @ (b - middle) / np.linalg.norm(a - middle) / np.linalg.norm(b - middle))
        for a, b in zip(found, expected, strict=True)
    ]
    assert centred_cosines(found, expected).mean() == pytest.approx(np.mean(cosines), abs=1e-5)


@pytest.mark.slow
def test_a_run_is_measured_by_its_images(finished_run: FinishedRun, exported: ExportedModel, tmp_path: Path) -> None:
    report = export_run(finished_run.path, tmp_path / "int8.onnx", ExportConfig(precision="int8", max_recall_drop=1))
    assert report.measured.images >= 16
    assert report.measured.centred_cosine > 0.7  # of random weights
    assert report.min_cosine == pytest.approx(exported.min_cosine, abs=1e-6)
    assert report.bytes < exported.bytes / 3
    assert Embedder(tmp_path / "int8.onnx").contract.run_id == Embedder(Path(exported.model)).contract.run_id


LOWER = {"precision": "fp16", "max_recall_drop": 1}


@pytest.mark.slow
def test_a_backbone_is_measured_on_images_that_are_given(pictures: Path, tmp_path: Path) -> None:
    report = export_backbone(tmp_path / "raw.onnx", images=pictures, **LOWER)
    assert report.measured.images == 24
    with pytest.raises(InputError, match="give a folder of them by --images"):
        export_backbone(tmp_path / "other.onnx", **LOWER)


def test_a_few_images_measure_nothing(pictures: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(pictures.rglob("*.jpg"))[::10]):
        (tmp_path / f"kind {number % 2}").mkdir(exist_ok=True)
        (tmp_path / f"kind {number % 2}" / path.name).symlink_to(path)
    with pytest.raises(InputError, match="at least 32 readable images of two or more labels; found 5 of 2"):
        export_backbone(tmp_path / "raw.onnx", images=tmp_path, **LOWER)


@pytest.mark.parametrize("is_whitened", [False, True])
def test_images_of_one_label_measure_nothing_and_whiten(pictures: Path, tmp_path: Path, is_whitened: bool) -> None:
    flat, one = tmp_path / "flat", tmp_path / "one"
    kind = next(path for path in sorted(pictures.iterdir()) if path.is_dir())
    flat.symlink_to(kind)
    one.mkdir()
    (one / "kind").symlink_to(kind)
    whitening = {"whiten": flat, "embedding_dim": 4} if is_whitened else {}
    with pytest.raises(InputError, match="two or more labels; found"):
        export_backbone(tmp_path / "raw.onnx", images=one, **LOWER, **whitening)


def test_every_runtime_computes_int8_alike(tiny_model: Path, tmp_path: Path) -> None:
    images, out = draw_pixels(), tmp_path / "int8.onnx"
    lower_precision(as_report(tiny_model), out, "int8", **images, max_recall_drop=1)
    usual, other = Embedder(out, backend="onnxruntime"), Embedder(out, backend="openvino")
    assert other.precision in ("int8", "int8 and bfloat16"), "the latter where the processor has it"
    assert other.agreement > 0.9
    assert (
        centred_cosines(other.embed_batch(images["pixels"][:32]), usual.embed_batch(images["pixels"][:32])).mean() > 0.9
    )


def test_a_model_file_is_not_written_over_itself(pictures: Path, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model.onnx")
    before = model.read_bytes()
    (tmp_path / "link.onnx").symlink_to(model)
    for out in (model, tmp_path / "link.onnx"):
        with pytest.raises(InputError, match=r"is the model that is read.*another --out"):
            export(model, out, precision="int8", images=pictures)
    assert model.read_bytes() == before


def test_a_model_file_is_made_int8_with_all_that_it_gives(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    model = write_two_output_model(tmp_path / "two.onnx")
    report = export(model, out, precision="int8", images=pictures, max_recall_drop=1)
    assert report.min_cosine is None
    assert report.measured is not None
    written = Embedder(out).contract
    assert (written.precision, written.copy_dim) == ("int8", Embedder(model).contract.copy_dim)
    with pytest.raises(InputError, match="can only be converted to int8"):
        export(out, tmp_path / "again.onnx", precision="int8", images=pictures)
    with pytest.raises(InputError, match="can only be converted to int8"):
        export(model, tmp_path / "half.onnx", precision="fp16", images=pictures)
    with pytest.raises(InputError, match="measured on images with labels: give a folder of them by --images"):
        export(model, tmp_path / "none.onnx", precision="int8")


def test_what_float16_cannot_hold_stays_as_it_is() -> None:
    large = numpy_helper.from_array(np.full(300, 1e6, dtype=np.float32), "large")
    small = numpy_helper.from_array(np.full(3, 0.1, dtype=np.float32), "small")
    whole = numpy_helper.from_array(np.arange(300), "whole")
    proto = onnx.ModelProto()
    proto.graph.initializer.extend([large, small, whole])
    keep_in_half(proto, "float16")
    assert list(proto.graph.initializer) == [large, small, whole]
    assert not proto.graph.node
