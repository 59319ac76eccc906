from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from index.commands.inspect_commands import info
from index.commands.reindex_commands import compact, tune
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.info import read_info
from index.gallery.selection import Selection
from index.writing.build import remove_from_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build_ann, few_for_an_index
from tests.index.invoking import invoke, run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Thirty images under a graph, and queries beside them."""
    folder = tmp_path_factory.mktemp("reindex")
    build_ann(draw_folder(folder / "images", per_class=10), folder / "my gallery", tiny_model)
    (folder / "queries").mkdir()
    for number in range(101):
        draw_image((number, 90, 200 - number), seed=1000 + number).save(folder / "queries" / f"{number}.png")
    return folder / "my gallery"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it that a test may change, with so few images enough for any index."""
    shutil.copytree(built, tmp_path / "my gallery")
    with few_for_an_index():
        yield tmp_path / "my gallery"


def test_tune_as_json_is_the_report_with_the_index(gallery: Path, built: Path) -> None:
    queries = built.parent / "queries"
    words = (gallery, queries, "--index-type", "ivf", "--memory-limit", "1 GiB", "--json")
    document = json.loads("\n".join(run(tune, *words)))
    assert (document["version"], document["changed"], document["new_images"], document["indexed"]) == (
        "000002",
        True,
        0,
        30,
    )
    index = document["index"]
    assert index == read_info(gallery).index
    assert (index["type"], index["memory_limit"], index["recall_target"]) == ("ivf", "1 GiB", 0.98)
    assert (index["queries"], index["own_queries"]) == (101, False)
    assert "101 queries given" in "\n".join(run(info, gallery))
    document = json.loads("\n".join(run(tune, gallery, "--memory-limit", "", "--json")))
    assert (document["index"]["type"], document["index"]["memory_limit"]) == ("ivf", "")


def test_compact_writes_one_index_over_what_is_left(gallery: Path) -> None:
    remove_from_gallery(gallery, selection=Selection(ids=(1, 2)), config=SMALL)
    assert any("deleted: 2; too few to compact" in line for line in run(info, gallery))
    assert run(compact, gallery)[0] == f"{gallery}: built version 000003, 28 images"
    assert not any("deleted:" in line for line in run(info, gallery))
    assert Gallery.open(gallery).manifest.index["type"] == "hnsw"
    assert json.loads("\n".join(run(compact, gallery, "--json")))["version"] == "000004"


def test_wishes_that_make_no_sense_are_refused(gallery: Path) -> None:
    assert invoke(tune, gallery, "--index-type", "tree").exit_code == 2
    assert invoke(tune, gallery, "--recall-target", "most").exit_code == 2
    for words, problem in (
        (
            ("--recall-target", "1"),
            "recall_target must be a share in 0.5..0.999, got 1.0; for all of them there is",
        ),
        (("--memory-limit", "much"), "memory_limit must be a size like 500MB or 4GB, got 'much'"),
        (("--memory-limit", "1KB"), "tune GALLERY --memory-limit SIZE`, or --index-type auto"),
        ((gallery.parent / "none",), "none"),
    ):
        refused = invoke(tune, gallery, *words).exception
        assert isinstance(refused, InputError), words
        assert problem in str(refused)
    assert Gallery.open(gallery).version == "000001"
