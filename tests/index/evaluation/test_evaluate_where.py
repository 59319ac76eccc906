"""Which images of a gallery ask, by a filter."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import InputError
from index.public import build, evaluate
from tests.conftest import draw_folder


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A table that says which of its fifteen images are for a test, its columns separated by semicolons."""
    folder = tmp_path_factory.mktemp("where")
    paths = sorted(path.relative_to(folder) for path in draw_folder(folder / "images").rglob("*.*"))
    rows = [
        f"{path};{path.parent.name};{'test' if number % 5 < 2 else 'train'}" for number, path in enumerate(paths)
    ]
    (folder / "table.csv").write_text("path;label;split\n" + "\n".join(rows) + "\n")
    build(tiny_model, folder / "table.csv", folder / "gallery")
    return folder / "gallery"


def test_only_what_fulfils_the_filter_asks_and_everything_is_searched(gallery: Path) -> None:
    scores = evaluate(gallery, where="split = 'test'", k=[1, 4]).scores
    assert scores.queries == 6
    assert evaluate(gallery).scores.queries == 15
    assert scores.recall[4] == 1.0  # of four others of its label, only one is for the test


@pytest.mark.parametrize("given", [{"query": "elsewhere"}, {"gallery": None, "model": "m.onnx", "data": "d"}])
def test_a_filter_goes_with_a_gallery_alone(gallery: Path, given: dict[str, str | None]) -> None:
    with pytest.raises(InputError, match="where says which images of a gallery ask"):
        evaluate(**{"gallery": gallery, "where": "split = 'test'", **given})
