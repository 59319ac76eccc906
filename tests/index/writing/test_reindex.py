"""Galleries whose index is written anew: what was wished for is remembered, and the images stay as they are."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from index.catalog.reader import read_catalog
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.vectors.ann_config import INDEX_SETTING, AnnConfig
from index.versions.versions import find_version
from index.writing.build import update_gallery
from index.writing.copying import tune_gallery
from tests.conftest import draw_folder
from tests.index.galleries import SMALL, build_ann, few_for_an_index, stopped_at, vectors

PER_CLASS = 20


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of sixty images whose index is a graph."""
    folder = tmp_path_factory.mktemp("reindex")
    build_ann(draw_folder(folder / "images", per_class=PER_CLASS), folder / "g", tiny_model, recall_target=0.9)
    return folder / "g"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it that a test may change, with so few images enough for any index."""
    shutil.copytree(built, tmp_path / "g", symlinks=True)
    with few_for_an_index():
        yield tmp_path / "g"


def described(gallery: Path) -> dict[str, object]:
    return Gallery.open(gallery).manifest.index


def remembered(gallery: Path) -> AnnConfig:
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as catalog:
        return AnnConfig.from_text(catalog.setting(INDEX_SETTING))


def check(gallery: Path, *, kind: str, count: int = 3 * PER_CLASS, **config: object) -> None:
    """The gallery is sound, it goes by this config, and its index is of this type."""
    assert verify_gallery(gallery, sample=5, seed=0).problems == []
    opened, wanted = Gallery.open(gallery), AnnConfig(**config)  # type: ignore[arg-type]
    assert (opened.count, opened.manifest.index["type"]) == (count, kind)
    assert remembered(gallery) == wanted
    assert {name: opened.manifest.index[name] for name in asdict(wanted)} == asdict(wanted)
    assert (find_version(gallery).folder / "index.faiss").exists() == (kind != "flat")
    assert not (gallery / "building").exists()


def untouched(gallery: Path, refused: Callable[[], object], *, match: str) -> None:
    """The command is refused, and the gallery, its versions and its wishes are what they were."""
    before = find_version(gallery), remembered(gallery), sorted(os.listdir(gallery / "versions"))
    with pytest.raises(InputError, match=match):
        refused()
    assert (find_version(gallery), remembered(gallery), sorted(os.listdir(gallery / "versions"))) == before
    assert not (gallery / "building").exists()
    assert not update_gallery(gallery, config=SMALL).changed


def test_every_type_can_become_every_other_and_finds_the_same(gallery: Path) -> None:
    stored = vectors(gallery)
    queries = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    exact = None
    for wanted in ("flat", "ivf", "hnsw", "auto"):
        tune_gallery(gallery, changes={"index_type": wanted, "recall_target": 0.999})
        check(gallery, kind="flat" if wanted == "auto" else wanted, index_type=wanted, recall_target=0.999)
        assert vectors(gallery) == stored
        found = Gallery.open(gallery).search_many(queries, k=10)
        exact = exact or found
        overlap = [len({hit.id for hit in a} & {hit.id for hit in b}) for a, b in zip(found, exact, strict=True)]
        assert overlap == [10] * 5 if wanted in ("flat", "auto") else sum(overlap) >= 40


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"memory_limit": "1K", "index_type": "auto"}, "--memory-limit"),
        ({"memory_limit": "1K"}, "as hnsw, 1,000 are allowed"),
        ({"recall_target": 1.0}, "--recall-target must be in 0.5..0.999"),
        ({"index_type": "tree"}, "--index-type must be one of"),
    ],
)
def test_wishes_that_cannot_be_fulfilled_leave_the_gallery_as_it_is(
    gallery: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], problem: str
) -> None:
    monkeypatch.setattr("index.vectors.ann_building.FLAT_ROWS", 20)
    untouched(gallery, lambda: tune_gallery(gallery, changes=changes), match=problem)
    check(gallery, kind="hnsw", index_type="hnsw", recall_target=0.9)


@pytest.mark.parametrize(
    ("moment", "finish"),
    [
        ("vectors.files.write_shards", update_gallery),
        ("writing.publishing._describe", tune_gallery),
        ("versions.versions.set_current", tune_gallery),
    ],
)
def test_any_command_finishes_a_stopped_tuning(gallery: Path, moment: str, finish: Callable[[Path], object]) -> None:
    wished = {"index_type": "ivf", "recall_target": 0.7}
    stored = vectors(gallery)
    with stopped_at(moment):
        tune_gallery(gallery, changes=wished)
    assert described(gallery)["type"] == "hnsw"
    assert (gallery / "building").exists()
    finish(gallery)
    check(gallery, kind="ivf", **wished)
    assert vectors(gallery) == stored
