"""The demo as a command, and called again on what it made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from retrieval_app import evaluate
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
    folder, report = demo
    assert report["labels"]["given"] == 24 * 12
    stages = report["new_photos"]
    assert all(stage["asked"] == 24 * 6 for stage in stages.values())
    assert stages["before"]["product"]["recall"] > 0.7  # chance is 4 %
    assert stages["after training"]["product"]["recall"] > stages["before"]["product"]["recall"] - 0.05
    assert stages["after cleaning"]["label"]["recall"] > stages["before"]["label"]["recall"] + 0.05
    repeated = evaluate(folder / "gallery-cleaned", query=folder / "photos/new")
    assert repeated.scores.recall[1] == stages["after cleaning"]["label"]["recall"]
    assert report["labels"]["wrong_cleaned"] < 0.5 * report["labels"]["wrong"]
    assert "after cleaning" in (folder / "demo.html").read_text()


@pytest.mark.timeout(900)
def test_a_second_call_goes_on_with_what_is_there(
    demo: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = demo
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr("retrieval_app.demo.story.EDITED", 6)  # as many as its page shows
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = run_demo(Path(folder.name))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert [again[name] for name in ("new_photos", "labels", "verdict")] == [
        report[name] for name in ("new_photos", "labels", "verdict")
    ]
