"""The demo at a small size, twice, and the full one as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
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


def test_a_second_call_goes_on_with_what_is_there(small_demo: Demo) -> None:
    folder, report, _ = small_demo
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = run_demo(folder, config=SMALL)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert [again[name] for name in ("recall_at_1", "audit")] == [
        report[name] for name in ("recall_at_1", "audit")
    ]
