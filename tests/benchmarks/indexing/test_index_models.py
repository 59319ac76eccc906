"""Indexing by model, precision and runtime: which rows there are, what their ratios are, what the loop finds."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from benchmarks.indexing.__main__ import parse_options
from benchmarks.indexing.index_bench import Bench
from benchmarks.indexing.index_images import list_images
from benchmarks.indexing.index_models import Row, format_models, judge, list_rows, score_loop
from index.model.in_the_box import find_box
from tests.models import PREPROCESS


@pytest.fixture
def bench(tiny_model: Path, tmp_path: Path) -> Bench:
    return Bench(tmp_path, tmp_path, Path("weights"), tiny_model, PREPROCESS, on_gpu=False)


def test_models_as_they_are_have_one_row_a_runtime(bench: Bench, tiny_model: Path) -> None:
    given = ["--out", "out", "--model", str(tiny_model), "--model", "box", "--model", "mobilenet_v2"]
    options = parse_options([*given, "--precision", "fp32", "--backend", "onnxruntime"])
    rows = list_rows(bench, options, {})
    assert [(row.precision, row.backbone, row.file) for row in rows] == [
        ("as it is", "mobilenet_v2", tiny_model.resolve()),
        ("as it is", "mobilenet_v2", find_box()),
        ("fp32", "mobilenet_v2", tiny_model),
    ]
    options = parse_options([*given[:4], "--precision", "fp32", "--precision", "int8", "--backend", "onnxruntime"])
    assert len(list_rows(bench, options, {})) == 1


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--out", "out", "--model", "tea.onnx"])
    assert "--model tea.onnx: neither a file nor one of mobilenet_v2, resnet50, box" in capsys.readouterr().err


def test_a_row_is_judged_by_medians_and_has_recall_beside_it(tiny_model: Path) -> None:
    row = Row("box", "as it is", "onnxruntime", tiny_model, "mobilenet_v2")
    decoding = f"decoding-{PREPROCESS.resize}-{PREPROCESS.crop}"
    medians = {row.name: 60.0, "loop-mobilenet_v2": 10.0, decoding: 300.0, f"alone-{row.name}": 100.0}
    rates = {name: {"median": each, "least": each, "most": each} for name, each in medians.items()}
    recall = {row.name: [{"recall_at_1": 0.5}], "loop-mobilenet_v2": [{"recall_at_1": 0.25}]}
    found = judge(row, {"rates": rates, "rounds": recall}, on_gpu=False)
    assert (found["over_loop"], found["allowed"], found["of_bound"]) == pytest.approx((6, 75, 0.8))
    assert judge(row, {"rates": rates, "rounds": recall}, on_gpu=True)["allowed"] == 100
    table = format_models({"images": 3, "mib": 1, "rows": [{**found, "weights": "trained"}]})
    assert "| 6.00 | 75.0 | 0.80 | 50.00 | 25.00 |" in table


def test_recall_of_the_loop_is_over_the_photos_folders(image_folder: Path, tmp_path: Path) -> None:
    paths = list_images(image_folder)
    folders = sorted({path.parent.name for path in paths})
    vectors = np.array([np.eye(3)[folders.index(path.parent.name)] for path in paths], dtype=np.float32)
    flat = faiss.IndexFlatIP(3)
    flat.add(vectors)
    faiss.write_index(flat, str(tmp_path / "loop.faiss"))
    assert score_loop(tmp_path / "loop.faiss", paths, photos=image_folder) == 1.0
