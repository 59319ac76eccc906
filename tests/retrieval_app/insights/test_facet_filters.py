"""What members can be told apart by, with filters that select just what was counted."""

import csv
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from index.filters.condition import join
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from retrieval_app.insights.facet_filters import MOST_SHOWN, MOST_VALUES, Facets, count_facets
from tests.conftest import CLASSES, draw_image

COUNT = MOST_VALUES + 10


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """A gallery of a CSV and a Parquet table with metadata of many kinds."""
    folder = tmp_path_factory.mktemp("tables")
    paths = [f"set {i % 3}/o'{i % 2}/{i}.png" if i % 5 else f"{i}.png" for i in range(COUNT)]
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        draw_image(list(CLASSES.values())[number % 3], seed=number, size=(32, 32)).save(folder / path)
    with (folder / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "size", "many", "on sale", "label ", "price"])
        for i, path in enumerate(paths[:-6]):
            size = ("S", "42", "042", "1e1", "", "10")[i % 6]
            writer.writerow([path, ("", "it's", "b")[i % 3], size, i, ("x", 'it\'s "y"')[i % 2], i % 60, i % 4 / 2])
    rest = {
        "path": paths[-6:],
        "label": ["b"] * 6,
        "code": ["042", "42", "7", "7", None, "a"],
        "new": [True, False, True, None, True, True],
        "id": [1, 2, 2, 2, 3, 3],
        "when": ["2024-01-01"] * 6,
    }
    pyarrow.parquet.write_table(pyarrow.table(rest), folder / "rest.parquet")
    build_gallery(model_path=tiny_model, sources=[folder / "all.csv", folder / "rest.parquet"], out=folder / "gallery")
    return Gallery.open(folder / "gallery")


def by_name(facets: Facets) -> dict[str, dict[object, int]]:
    return {facet.name: {value.value: value.count for value in facet.values} for facet in facets.facets}


def test_labels_folders_sources_and_metadata_are_counted(tables: Gallery) -> None:
    facets = count_facets(tables, None)
    counts = by_name(facets)
    assert facets.total == tables.count == COUNT
    assert counts["label"] == {None: 68, "it's": 68, "b": 74}
    assert counts["folder"]["set 1"] == counts["folder"]["set 1/o'0"] + counts["folder"]["set 1/o'1"]
    assert sum(counts["folder"][name] for name in ("", "set 0", "set 1", "set 2")) == COUNT
    assert sorted(counts["source"].values()) == [6, COUNT - 6]
    assert counts["size"] == {"S": 34, 42: 68, 10: 68}
    assert counts["code"] == {"7": 2, "042": 1, "42": 1, "a": 1}
    assert counts["new"] == {True: 4, False: 1}
    assert counts["metadata.id"] == {2: 3, 3: 2, 1: 1}
    assert counts['"on sale"'] == {"x": 102, 'it\'s "y"': 102}
    assert "many" not in counts  # too many values
    crowded = next(facet for facet in facets.facets if facet.name == '"label "')
    assert (len(crowded.values), crowded.more) == (MOST_SHOWN, 10)


@pytest.mark.parametrize("text", [None, "label IS NOT NULL", "price < 1 AND NOT path LIKE '%/%'", "id < 0"])
def test_every_value_is_selected_by_its_own_filter(tables: Gallery, text: str | None) -> None:
    chosen = [] if text is None else [parse_filter(text)]
    facets = count_facets(tables, chosen[0] if chosen else None)
    with tables.catalog() as catalog:
        for facet in facets.facets:
            for value in facet.values:
                kept = catalog.matching_ids(join([*chosen, parse_filter(value.where)]))
                assert len(kept) == value.count, value.where


def test_values_are_found_by_a_part_among_those_that_are_not_shown(tables: Gallery) -> None:
    everything = count_facets(tables, None)
    crowded = next(facet for facet in everything.facets if facet.more)
    shown = {str(value.value) for value in crowded.values}
    found = [
        value
        for digit in "0123456789"
        for facet in count_facets(tables, None, only=crowded.name, part=digit).facets
        for value in facet.values
    ]
    assert {str(value.value) for value in found} - shown
    assert all(value.count > 0 for value in found)
    named = count_facets(tables, None, only="label", part="IT'")
    assert by_name(named) == {"label": {"it's": 68}}
    assert set(by_name(count_facets(tables, None, part="it's"))) == {"label", '"on sale"'}
    assert by_name(count_facets(tables, None, only="nothing")) == {}
