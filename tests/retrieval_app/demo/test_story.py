"""The demo as a command, and called again on what it made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from retrieval_app.demo.story import run_demo

pytestmark = pytest.mark.slow  # which trains


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the report of the command."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "retrieval_app", "demo", "--no-serve", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return folder / "demo-out", json.loads(done.stdout)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(InputError, match="choose another --out"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.timeout(900)
def test_the_demo_runs_to_the_end_as_a_command(demo: tuple[Path, dict[str, Any]]) -> None:
    _, report = demo
    assert report["gallery"]["indexed"] == 24 * 18
    trained = report["recall_at_1"]["default"]["recall"]
    assert trained > 0.4  # chance is 4 %
    served = report["trained_gallery"]["recall"]["1"]  # float32, where training may have used bfloat16
    assert abs(served - trained) < 0.02
    assert report["wrong_labels"]["wrong_among_least_confident"] > 65  # chance is 39 of 130


@pytest.mark.timeout(900)
def test_a_second_call_goes_on_with_what_is_there(
    demo: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = demo
    monkeypatch.chdir(folder.parent)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = run_demo(Path(folder.name))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert [again[name] for name in ("recall_at_1", "audit")] == [report[name] for name in ("recall_at_1", "audit")]
