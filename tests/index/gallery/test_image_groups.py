"""Results of which each group has only its best: by a column, the label or the folder, against a plain loop."""

import json
from pathlib import Path

import pytest

from index.commands.search_command import search
from index.errors import InputError
from index.gallery import ranking
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit
from index.writing.build import build_gallery
from tests.conftest import draw_folder
from tests.index.galleries import SMALL, invoke


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Sixty images of three folders, of five products and some of none."""
    folder = tmp_path_factory.mktemp("groups")
    draw_folder(folder / "photos", per_class=20)
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*.*g"))
    lines = [f"{path},{'' if n % 9 == 0 else f'p{n % 5}'},{n}" for n, path in enumerate(paths)]
    (folder / "photos.csv").write_text("\n".join(["path,product id,number", *lines]) + "\n")
    build_gallery(model_path=tiny_model, sources=[folder / "photos.csv"], out=folder / "g", config=SMALL)
    return Gallery.open(folder / "g")


def value_of(hit: Hit, by: str) -> object:
    values = {"folder": hit.path.rpartition("/")[0], "label": hit.label}
    return (values[by] if by in values else hit.metadata.get(by)) or f"alone {hit.id}"


def fold(hits: list[Hit], by: str) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for hit in hits:
        groups.setdefault(value_of(hit, by), []).append(hit.id)
    return list(groups.values())


@pytest.mark.parametrize("by", ["product id", "label", "folder", "number"])
@pytest.mark.parametrize("options", [{}, {"min_score": 0.3}, {"where": "number > 20"}])
@pytest.mark.parametrize("measured", [1000, 3], ids=["", "large groups"])
def test_only_the_best_of_a_group_is_a_hit(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, by: str, options: dict, measured: int
) -> None:
    monkeypatch.setattr(ranking, "_MEASURED", measured)
    query, is_cut = gallery.vector(7), "min_score" in options
    plain = gallery.search(query, k=None if is_cut else 60, exclude_id=7, **options)
    expected = fold(plain, by)
    for k in (1, 4, 60):
        hits = gallery.search(query, k=k, exclude_id=7, group_by=by, **options)
        assert [hit.id for hit in hits] == [ids[0] for ids in expected[:k]]
        assert [hit.duplicates_count for hit in hits] == [len(ids) - 1 for ids in expected[:k]]
        assert [[number for number, _ in hit.duplicates] for hit in hits] == [ids[1:] for ids in expected[:k]]


def test_the_command_counts_the_others(gallery: Gallery) -> None:
    words = (gallery.path, "--id", "7", "-k", "2", "--group-by", "product id")
    assert "of this product id)" in invoke(search, *words).stdout
    counts = [hit.get("duplicates_count", 0) for hit in json.loads(invoke(search, *words, "--json").stdout)["results"]]
    assert max(counts) > 5
    with pytest.raises(InputError, match="did you mean"):
        gallery.search(gallery.vector(7), group_by="prodct id")
    with pytest.raises(InputError, match="any number of tags"):
        gallery.search(gallery.vector(7), group_by="tag")
