"""The demo as a command, and called again on what it made."""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from retrieval_app import evaluate
from retrieval_app.commands.cli import main
from retrieval_app.demo import story
from training.options import resolve

pytestmark = pytest.mark.slow  # which trains
KINDS, PER_KIND = 9, 18  # kinds of product with labels, of as many without, and photos of each


@pytest.fixture(scope="module", autouse=True)
def short_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A third of the photos, and few steps of training."""
    few = tmp_path_factory.mktemp("few") / "photos.tar"
    with tarfile.open(story.PHOTOS) as every, tarfile.open(few, "w") as chosen:
        for member in every.getmembers()[: 2 * KINDS * PER_KIND]:
            chosen.addfile(member, every.extractfile(member))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "DEFAULT", {**resolve.DEFAULT, "head_steps": 40})
        patch.setattr(story, "PHOTOS", few)
        yield


@pytest.fixture(scope="module")
def demo(short_demo: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the report of the command."""
    folder, printed = tmp_path_factory.mktemp("demo") / "demo-out", io.StringIO()
    with redirect_stdout(printed):
        assert main(["demo", "--no-serve", "--json", "--out", str(folder)]) == 0
    return folder, json.loads(printed.getvalue())


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(InputError, match="choose another --out"):
        story.run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.timeout(900)
def test_the_demo_runs_to_the_end_as_a_command(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, report = demo
    assert report["labels"]["given"] == KINDS * 12
    stages = report["new_photos"]
    assert all(stage["asked"] == KINDS * 6 for stage in stages.values())
    assert stages["before"]["product"]["recall"] > 0.7  # chance is 8 %
    assert stages["after training"]["product"]["recall"] > stages["before"]["product"]["recall"] - 0.05
    assert stages["after cleaning"]["label"]["recall"] > stages["before"]["label"]["recall"] + 0.05
    repeated = evaluate(folder / "gallery-cleaned", query=folder / "photos/new")
    assert repeated.scores.recall[1] == stages["after cleaning"]["label"]["recall"]
    assert report["labels"]["wrong_cleaned"] < 0.5 * report["labels"]["wrong"]


@pytest.mark.timeout(900)
def test_a_second_call_goes_on_with_what_is_there(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, report = demo
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = story.run_demo(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert [again[name] for name in ("new_photos", "labels", "verdict")] == [
        report[name] for name in ("new_photos", "labels", "verdict")
    ]
