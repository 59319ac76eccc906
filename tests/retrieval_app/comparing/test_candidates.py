"""What can be compared, and how it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import InputError
from index.model.in_the_box import BOX
from index.writing.build import build_gallery
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


def test_models_runs_galleries_and_the_box_are_told_apart(
    place: Path, tiny_model: Path, image_folder: Path
) -> None:
    build_gallery(model_path=tiny_model, sources=[image_folder], out=place / "found")
    assert read(["box", "one/model.onnx", "run", "found"]) == [
        Candidate("box", "model", BOX),
        Candidate("model", "model", Path("one/model.onnx")),
        Candidate("run", "run", Path("run")),
        Candidate("found", "gallery", Path("found")),
    ]


def test_files_of_one_name_are_called_by_their_folders_too(place: Path) -> None:
    names = [one.name for one in read(["one/model.onnx", "two/model.onnx", "run"])]
    assert names == ["one/model", "two/model", "run"]


def test_a_name_may_be_given_and_a_path_may_have_an_equals_sign_in_it(place: Path) -> None:
    Path("a=b.onnx").write_bytes(Path("one/model.onnx").read_bytes())
    found = read(["small=box", "a=b.onnx", "c=a=b.onnx", f"{place}/one/model.onnx"])
    assert [(one.name, one.path) for one in found] == [
        ("small", BOX),
        ("a=b", Path("a=b.onnx")),
        ("c", Path("a=b.onnx")),
        ("model", place / "one/model.onnx"),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["box"], "expected 2 to 8 candidates to compare, got 1"),
        (["box"] * 9, "expected 2 to 8 candidates to compare, got 9"),
        (["a=box", "a=run"], "2 candidates are called 'a'; give each a name of its own: NAME=PATH"),
        (["box", "nothing"], "nothing: no such file or folder; a candidate is an .onnx file"),
        (["box", "one"], "one: a folder, but neither a gallery .* nor a run"),
        (["box", "run/config.json"], "run/config.json: no model; a candidate is"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(place: Path, given: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(given)
