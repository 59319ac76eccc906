"""The demo at a small size, twice, and the full one as a command."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.outputs import KIND, PICTURE
from retrieval_app.demo.demo_report import format_report
from retrieval_app.demo.story import DemoConfig, run_demo

pytestmark = pytest.mark.slow  # which trains
Demo = tuple[Path, dict[str, Any], list[str]]
SMALL = DemoConfig(kinds=8, photos_per_kind=8)


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A finished small demo: its folder, its report, and what it said."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    said: list[str] = []
    return folder, run_demo(folder, config=SMALL, say=said.append), said


def test_the_demo_goes_from_photos_to_a_gallery_of_kinds_that_were_not_trained_on(small_demo: Demo) -> None:
    folder, report, said = small_demo
    gallery = Gallery.open(folder / "gallery")
    assert gallery.count == report["gallery"]["indexed"] == 4 * 8
    assert list(gallery.embedder.contract.widths) == [KIND, PICTURE]
    trained = Gallery.open(folder / "gallery-trained")
    assert trained.embedder.contract.method == report["exports"]
    assert not {path.name for path in (folder / "photos/training").iterdir()} & {
        path.name for path in (folder / "photos/unseen").iterdir()
    }
    assert len(said) == len(report["step_seconds"])
    assert report["found_first"]["asked"] == 32
    assert max(report["found_first"][by] for by in (KIND, PICTURE)) > 8, "by chance it is one"


def test_the_demo_leaves_an_audit_page_and_counts_its_verdicts_against_the_truth(small_demo: Demo) -> None:
    folder, report, _ = small_demo
    with (folder / "run/audit/audit.csv").open(newline="", encoding="utf-8") as file:
        rows = [{**row, "truth": Path(row["path"]).parent.name} for row in csv.DictReader(file)]
    suspects = [row for row in rows if row["verdict"] != "keep"]
    relabelled = [row for row in suspects if row["verdict"] == "change"]
    audit = report["audit"]
    assert len(rows) == report["wrong_labels"]["labels"]
    assert len(suspects) == audit["suspects"]  # perhaps none: of so few photos
    assert sum(row["label"] != row["truth"] for row in suspects) == audit["wrong_suspects"]
    assert len(relabelled) == audit["relabelled"]
    assert sum(row["new_label"] == row["truth"] for row in relabelled) == audit["relabelled_to_truth"]
    assert (folder / "run/audit/audit.html").is_file()
    assert format_report(report)


def test_a_second_call_goes_on_with_what_is_there(small_demo: Demo) -> None:
    folder, report, _ = small_demo
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = run_demo(folder, config=SMALL)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    for name in ("found_first", "recall_at_1", "wrong_labels", "audit"):
        assert again[name] == report[name]


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(InputError, match="choose another --out"):
        run_demo(tmp_path, config=SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.timeout(900)
def test_the_full_demo_runs_to_the_end_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "retrieval_app", "demo", "--no-serve", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["gallery"]["indexed"] == 24 * 18
    trained = report["recall_at_1"]["default"]["recall"]
    assert trained > 0.4  # chance is 4 %
    served = report["trained_gallery"]["recall"]["1"]  # float32, where training may have used bfloat16
    assert abs(served - trained) < 0.02
    assert report["wrong_labels"]["wrong_among_least_confident"] > 65  # chance is 39 of 130
