"""What can be compared, and how it is called."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from index.errors import InputError
from index.model.in_the_box import BOX
from retrieval_app.comparing.candidates import Candidate, read_candidates, split_name
from tests.models import write_tiny_model


def read(given: list[str]) -> list[Candidate]:
    return read_candidates([split_name(text) for text in given])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with two models of one file name, and the folder of a run."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_tiny_model(tmp_path / folder / "model.onnx")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text('{"run_id": "1"}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_models_runs_galleries_and_the_box_are_told_apart_and_named(place: Path, small_gallery: Path) -> None:
    shutil.copytree(small_gallery, "found")
    Path("a=b.onnx").write_bytes(Path("one/model.onnx").read_bytes())
    assert read(
        ["box", "one/model.onnx", "two/model.onnx", "run", "found", "small=box", "a=b.onnx", "c=a=b.onnx"]
    ) == [
        Candidate("box", "model", BOX),
        Candidate("one/model", "model", Path("one/model.onnx")),  # of one name, and so called by their folders
        Candidate("two/model", "model", Path("two/model.onnx")),
        Candidate("run", "run", Path("run")),
        Candidate("found", "gallery", Path("found")),
        Candidate("small", "model", BOX),
        Candidate("a=b", "model", Path("a=b.onnx")),
        Candidate("c", "model", Path("a=b.onnx")),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["box"], "expected 2 to 8 candidates to compare, got 1"),
        (["a=box", "a=run"], "2 candidates are called 'a'; give each a name of its own: NAME=PATH"),
        (["box", "nothing"], "nothing: no such file or folder; a candidate is an .onnx file"),
        (["box", "one"], "one: a folder, but neither a gallery .* nor a run"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(place: Path, given: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(given)
