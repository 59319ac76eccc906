"""What a user reads of an index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.gallery.info import GalleryInfo
from index.gallery.info_text import describe_index
from index.vectors.ann_building import build_ann_index
from index.vectors.ann_config import AnnConfig
from index.vectors.shards import VectorRows
from tests.index.vector_sources import VectorSource, split_rows, spread_ids

ROWS = 1500
GALLERY = Path("photos")


@pytest.fixture(scope="module")
def shards() -> list[VectorRows]:
    vectors, _ = VectorSource(width=160, decay=1.0).draw_gallery(ROWS, seed=3)
    return split_rows(vectors, spread_ids(ROWS), ends=[])


@pytest.fixture(scope="module")
def indexes(
    shards: list[VectorRows], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patched:
        for module in ("tuning", "ann_building"):
            patched.setattr(f"index.vectors.{module}.usable_cores", lambda: 1)
        yield {
            name: build_ann_index(
                shards,
                config=AnnConfig(index_type=name, recall_target=0.9, memory_limit=memory_limit),
                folder=tmp_path_factory.mktemp(name),
            )
            for name, memory_limit in (("flat", ""), ("hnsw", ""), ("ivf", ""), ("pq", "290kB"))
        }


def floor(share: float) -> str:
    """In percent, rounded down: only all is 100."""
    return f"{math.floor(round(share * 10_000, 6)) / 100:.2f}"


def tell(index: dict[str, Any], *, beside: int = 0, deleted: int = 0, gallery: Path = GALLERY) -> list[str]:
    info = GalleryInfo(
        gallery="photos", version="1", made="", model={}, counts={"indexed": ROWS, "deleted": deleted}, sources=[],
        labels={}, settings={}, index=index, disk_bytes={"vectors": 4 * 160 * ROWS}, beside_index=beside,
        unfinished=None,
    )  # fmt: skip
    return list(describe_index(info, gallery=gallery))


@pytest.mark.parametrize("name", ["flat", "hnsw", "ivf", "pq"])
def test_every_line_fits_a_wide_terminal(indexes: dict[str, dict[str, Any]], name: str) -> None:
    for beside, deleted in ((0, 0), (5, 3), (5000, 3)):
        for line in tell(indexes[name], beside=beside, deleted=deleted):
            assert len(line) <= 120, line
            assert line == line.rstrip()
            assert "\n" not in line


def test_a_flat_index_is_called_exact(indexes: dict[str, dict[str, Any]]) -> None:
    text = "\n".join(tell(indexes["flat"]))
    assert "Flat: every search reads all vectors, 960 kB; asked for" in text
    assert "exact" in text
    assert "ms for a query alone" in text
    assert "target" not in text


@pytest.mark.parametrize(("name", "factory"), [("hnsw", "HNSW"), ("ivf", "IVF"), ("pq", "PQ")])
def test_type_memory_recall_and_cost_are_told(indexes: dict[str, dict[str, Any]], name: str, factory: str) -> None:
    index = indexes[name]
    text = "\n".join(tell(index))
    assert factory in text
    assert index["factory"] in text
    assert "in memory" in text
    assert f"finds {floor(index['recall_at_10'])} % (± {200 * index['recall_error']:.1f})" in text
    assert "target 90 % met" in text
    assert "ms for a query alone" in text
    assert "a second in" in text
    assert f"measured with {index['queries']} of its own vectors, before it held them" in text
    for point in index["filtered"]:
        assert f"{100 * point['kept']:g} %" in text


@pytest.mark.parametrize("name", ["hnsw", "ivf", "pq"])
def test_the_setting_in_use_is_marked_once_and_the_best_one_drawn(
    indexes: dict[str, dict[str, Any]], name: str
) -> None:
    index = indexes[name]
    lines = tell(index)
    [used] = [line for line in lines if line.endswith("in use")]
    assert f"{floor(index['recall_at_10'])} %" in used
    drawn = [line for line in lines if "█" in line]
    assert 1 <= len(drawn) <= 11
    assert f"{floor(index['curve'][-1]['recall_at_10'])} %" in drawn[-1]
    assert max(line.count("█") for line in drawn) == 30


def test_the_setting_in_use_is_drawn_even_where_it_is_bad(indexes: dict[str, dict[str, Any]]) -> None:
    index = indexes["ivf"]
    worst = index["curve"][0]
    bad = {**index, "parameters": worst["parameters"], "recall_at_10": 0.31, "target_met": False}
    bad["curve"] = [{**point, "recall_at_10": 0.31} for point in index["curve"][:1]]
    lines = tell(bad)
    assert sum(line.endswith("in use") for line in lines) == 1


def test_a_target_that_is_not_met_is_said_with_what_to_do(indexes: dict[str, dict[str, Any]]) -> None:
    missed = {**indexes["pq"], "target_met": False}
    text = "\n".join(tell(missed))
    assert "NOT met" in text
    assert "retrieval index tune photos --index-type flat" in text


def test_what_a_better_recall_costs_is_told_as_a_command(indexes: dict[str, dict[str, Any]]) -> None:
    point = {"recall_error": 0.0005, "latency_ms_median": 0.25, "parameters": {"nprobe": 3, "candidates": 20}}
    better = {
        **point,
        "recall_at_10": 0.9962,
        "latency_ms_median": 0.5,
        "parameters": {"nprobe": 9, "candidates": 20},
    }
    index = {
        **indexes["ivf"], "parameters": point["parameters"], "recall_at_10": 0.971, "recall_target": 0.95,
        "curve": [{**point, "recall_at_10": 0.971}, better],
    }  # fmt: skip
    text = "\n".join(tell(index))
    assert "98 % would take 0.500 ms: retrieval index tune photos --recall-target 0.98" in text
    best = {**index, "recall_at_10": 0.9995, "curve": [{**point, "recall_at_10": 0.9995}]}
    assert "would take" not in "\n".join(tell(best))


def test_commands_can_be_copied_whatever_the_gallery_is_called(indexes: dict[str, dict[str, Any]]) -> None:
    text = "\n".join(tell({**indexes["ivf"], "target_met": False}, gallery=Path("my photos/a'b")))
    assert """retrieval index tune 'my photos/a'"'"'b' --index-type flat""" in text


def test_what_lies_beside_is_told_and_when_it_is_worth_compacting(indexes: dict[str, dict[str, Any]]) -> None:
    for name in ("flat", "ivf"):
        assert "added since" not in "\n".join(tell(indexes[name]))
        few = "\n".join(tell(indexes[name], beside=7, deleted=2))
        assert "vectors added since: 7, deleted: 2; too few to compact" in few
        many = "\n".join(tell(indexes[name], beside=5000))
        assert "vectors added since: 5,000, deleted: 0; worth retrieval index compact photos" in many


def test_queries_that_were_given_are_called_so(indexes: dict[str, dict[str, Any]]) -> None:
    text = "\n".join(tell({**indexes["hnsw"], "own_queries": False, "queries": 1234}))
    assert "measured with 1,234 queries given" in text


def test_a_recall_that_is_not_perfect_is_never_shown_as_such(indexes: dict[str, dict[str, Any]]) -> None:
    nearly = {**indexes["ivf"], "recall_at_10": float(np.float64(0.99996))}
    assert "finds 100.00 %" not in "\n".join(tell(nearly))
