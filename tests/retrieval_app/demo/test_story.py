"""The demo at a small size, twice; the full one is a slow test."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.demo.demo_report import format_report
from retrieval_app.demo.story import DemoConfig, run_demo
from training.backbone.pretrain import PretrainConfig
from training.options.losses import RIVALS
from training.run.phases import Watcher

SMALL = DemoConfig(
    pictures_per_kind=8,
    kinds=4,
    pretrain=PretrainConfig(backbone="squeezenet1_1", epochs=2, batch_size=16),
    paper_epochs=3,
    resize=40,
    crop=32,
    embedding_dim=8,
)


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """A finished small demo: its folder, its report, and what it said."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    said: list[str] = []
    epochs: list[str] = []

    @contextmanager
    def watch() -> Iterator[Watcher]:
        yield Watcher(on_epoch=lambda report: epochs.append(report.phase))

    report = run_demo(folder, config=SMALL, say=said.append, watch=watch)
    assert epochs[:2] == ["backbone", "backbone"]
    assert {"confidence", "embedding"} <= set(epochs)
    return folder, report, said


def test_the_demo_goes_from_drawing_to_a_gallery_of_unseen_kinds(
    small_demo: tuple[Path, dict[str, Any], list[str]],
) -> None:
    folder, report, said = small_demo
    gallery = Gallery.open(folder / "gallery")
    assert gallery.count == report["gallery"]["indexed"] == 4 * 8
    assert gallery.embedder.contract.method == report["ships"]
    assert len(said) == 9
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(report))


def test_the_demo_reports_every_method_with_an_interval_around_its_recall(
    small_demo: tuple[Path, dict[str, Any], list[str]],
) -> None:
    _, report, _ = small_demo
    assert list(report["recall_at_1"]) == ["default", "spa", "proxy-anchor", *RIVALS]
    for row in report["recall_at_1"].values():
        low, high = row["interval"]
        assert 0 <= low <= row["recall"] <= high <= 1
    text = format_report(report)
    assert all(name in text for name in report["recall_at_1"])


def test_the_demo_makes_exactly_thirty_percent_of_the_labels_wrong(
    small_demo: tuple[Path, dict[str, Any], list[str]],
) -> None:
    _, report, _ = small_demo
    found = report["wrong_labels"]
    assert found["labels"] == 32
    assert found["wrong"] == round(0.3 * 32)
    assert 0 <= found["wrong_among_least_confident"] <= found["wrong"]


def test_the_demo_leaves_an_audit_page_and_counts_its_verdicts_against_the_truth(
    small_demo: tuple[Path, dict[str, Any], list[str]],
) -> None:
    folder, report, _ = small_demo
    with (folder / "run-default" / "audit" / "audit.csv").open(newline="", encoding="utf-8") as file:
        rows = [{**row, "truth": Path(row["path"]).parent.name} for row in csv.DictReader(file)]
    suspects = [row for row in rows if row["verdict"] != "keep"]
    relabelled = [row for row in suspects if row["verdict"] == "change"]
    audit = report["audit"]
    assert len(rows) == report["wrong_labels"]["labels"]
    assert len(suspects) == audit["suspects"]  # perhaps none: so small a backbone turns on the last bit of a sum
    assert sum(row["label"] != row["truth"] for row in suspects) == audit["wrong_suspects"]
    assert len(relabelled) == audit["relabelled"]
    assert sum(row["new_label"] == row["truth"] for row in relabelled) == audit["relabelled_to_truth"]
    page = folder / "run-default" / "audit" / "audit.html"
    assert page.is_file()
    assert f"Audit page: {page}\n" in format_report(report)


def test_a_second_call_goes_on_with_what_is_there(small_demo: tuple[Path, dict[str, Any], list[str]]) -> None:
    folder, report, _ = small_demo
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = run_demo(folder, config=SMALL)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert {name: again[name] for name in ("recall_at_1", "wrong_labels", "audit")} == {
        name: report[name] for name in ("recall_at_1", "wrong_labels", "audit")
    }


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(InputError, match="choose another --out"):
        run_demo(tmp_path, config=SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_full_demo_runs_to_the_end_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "retrieval_app", "demo", "--no-serve", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["gallery"]["indexed"] == 1200
    trained = report["recall_at_1"]["default"]["recall"]
    assert trained > 0.25  # chance is 3 %
    served = report["gallery"]["evaluation"]["recall"]["1"]  # float32, where training may have used bfloat16
    assert abs(served - trained) < 0.02
    assert report["wrong_labels"]["wrong_among_least_confident"] > 180  # chance is 108 of 360
