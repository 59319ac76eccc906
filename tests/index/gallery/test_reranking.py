"""Results ranked again by the neighbours that they share with the query, against loops over the equation."""

from collections.abc import Callable
from math import exp
from pathlib import Path

import numpy as np
import pytest

from index.arrays import NO_ID, normalise_rows
from index.gallery.gallery import Gallery
from index.gallery.ranking import AVERAGED, DISTANCE_SHARE, NEIGHBOURS, POOL, rank_by_neighbours
from tests.conftest import draw_folder
from tests.index.galleries import build

Near = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def search_in(members: np.ndarray) -> Near:
    """What a store answers about rows of (N, D) unit vectors, whose ids are ten times their numbers."""

    def search_near(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cosines = members[ids // 10] @ members.T
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]
        missing = ((0, 0), (0, NEIGHBOURS - order.shape[1]))
        scores = np.take_along_axis(cosines, order, axis=1)
        return np.pad(scores, missing, constant_values=-np.inf), np.pad(10 * order, missing, constant_values=NO_ID)

    return search_near


def rank(query: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cosines = members @ query
    order = np.argsort(-cosines, kind="stable")
    return cosines[order], 10 * order


def order_by_loops(scores: np.ndarray, ids: np.ndarray, search_near: Near) -> list[int]:
    """Equations 7 to 12 of Zhong et al. with neighbours in place of reciprocal ones, and the first result kept."""
    pool = ids[:POOL].tolist()

    def describe(near: list[tuple[float, int]]) -> dict[int, float]:
        weights = {key: exp(-(2 - 2 * score)) for score, key in near if key != NO_ID}
        return {key: weight / sum(weights.values()) for key, weight in weights.items()}

    def average(parts: list[dict[int, float]]) -> dict[int, float]:
        keys = {key for part in parts for key in part}
        return {key: sum(part.get(key, 0.0) for part in parts) / len(parts) for key in keys}

    near = {
        key: [(float(s), int(n)) for s, n in zip(*(part[0] for part in search_near(np.array([key]))), strict=True)]
        for key in pool
    }
    described = {key: describe(near[key]) for key in pool}
    first = list(zip(scores[:NEIGHBOURS].tolist(), ids[:NEIGHBOURS].tolist(), strict=True))
    asking = average([describe(first), *(described[key] for key in pool[: AVERAGED - 1])])
    mixed = []
    for place, key in enumerate(pool):
        beside = [other for _, other in near[key][:AVERAGED] if other != key and other in described]
        own = average([described[key], *(described[other] for other in beside)][:AVERAGED])
        shared = sum(min(own.get(other, 0.0), asking.get(other, 0.0)) for other in own)
        jaccard = 1 - shared / (2 - shared)
        mixed.append(((1 - DISTANCE_SHARE) * jaccard + DISTANCE_SHARE * (1 - float(scores[place])), place))
    return [0, *(place for _, place in sorted(mixed) if place)]


@pytest.mark.parametrize("count", [3, 15, 140])
def test_the_order_is_that_of_the_equations(count: int) -> None:
    generator = np.random.default_rng(count)
    members = normalise_rows(generator.normal(size=(count, 6)).astype(np.float32))
    query = normalise_rows(generator.normal(size=(1, 6)).astype(np.float32))[0]
    scores, ids = rank(query, members)
    order = rank_by_neighbours(scores, ids, search_near=search_in(members))
    expected = order_by_loops(scores, ids, search_in(members))
    assert order.tolist() == expected + list(range(POOL, count))
    assert count == 3 or order.tolist() != sorted(order)


@pytest.mark.parametrize("count", [0, 2])
def test_two_results_or_fewer_stay_as_they_are(count: int) -> None:
    def refuse(_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("nothing is to be searched")

    order = rank_by_neighbours(np.ones(count, dtype=np.float32), np.arange(count), search_near=refuse)
    assert order.tolist() == list(range(count))


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    folder = tmp_path_factory.mktemp("reranking")
    build(draw_folder(folder / "images", per_class=12), folder / "gallery", tiny_model)
    return Gallery.open(folder / "gallery")


def test_a_gallery_reranks_its_results_and_a_short_list_begins_as_a_long_one(gallery: Gallery) -> None:
    own = int(gallery.ids[5])
    plain = gallery.search(gallery.vector(own), k=gallery.count, exclude_id=own)
    again = gallery.search(gallery.vector(own), k=gallery.count, exclude_id=own, rerank=True)
    assert {(hit.id, hit.score) for hit in again} == {(hit.id, hit.score) for hit in plain}
    assert again[0] == plain[0]
    assert [hit.id for hit in again] != [hit.id for hit in plain]
    assert [hit.rank for hit in again] == list(range(1, len(plain) + 1))
    assert gallery.search(gallery.vector(own), k=4, exclude_id=own, rerank=True) == again[:4]


def test_with_a_filter_only_what_it_keeps_is_anybody_s_neighbour(gallery: Gallery) -> None:
    where, vector = "label = 'red'", gallery.vector(int(gallery.ids[0]))
    found = gallery.search(vector, k=50, where=where, rerank=True)
    assert {hit.label for hit in found} == {"red"}
    plain = gallery.search(vector, k=50, where=where)
    members = np.stack([gallery.vector(hit.id) for hit in plain])
    places = {hit.id: place for place, hit in enumerate(plain)}
    scores, ids = np.array([hit.score for hit in plain], dtype=np.float32), 10 * np.arange(len(plain))
    expected = order_by_loops(scores, ids, search_in(members))
    assert [places[hit.id] for hit in found] == expected
