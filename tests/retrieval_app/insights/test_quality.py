"""How well a gallery finds its own labels."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.evaluation.evaluate import evaluate_gallery
from index.gallery.gallery import Gallery
from index.writing.build import update_gallery
from retrieval_app.insights import quality
from retrieval_app.insights.quality import KS, assess_quality, find_nearest_by_label
from tests.index.vector_sources import VectorSource
from tests.retrieval_app.insights.conftest import MISLABELLED


def test_quality_says_what_the_evaluation_does(labelled: Gallery) -> None:
    found, evaluation = assess_quality(labelled), evaluate_gallery(labelled, ks=KS)
    assert {one.k: one.value for one in found.recall_at} == evaluation.scores.recall
    assert all(one.interval[0] <= one.value <= one.interval[1] for one in found.recall_at)
    assert found.map_at_r is not None
    assert found.map_at_r.value == evaluation.scores.to_json()["map_at_r"]
    assert {one.label: (one.images, one.recall_at_1) for one in found.classes} == {
        label: (score.queries, score.recall_at_1) for label, score in evaluation.per_class.items()
    }
    assert [one.recall_at_1 for one in found.classes] == sorted(one.recall_at_1 for one in found.classes)


def test_the_worst_queries_meet_another_label_first(labelled: Gallery, ids: dict[str, int]) -> None:
    found = assess_quality(labelled)
    assert {query.id for query in found.worst} >= {ids[path] for path in MISLABELLED}
    for query in found.worst:
        first, *_ = hits = labelled.search(labelled.vector(query.id), k=query.misses, exclude_id=query.id)
        assert query.label not in {hit.label for hit in hits}
        assert (query.hit.id, query.hit.label) == (first.id, first.label)
        assert query.hit.score == pytest.approx(first.score, abs=1e-6)
    assert [query.misses for query in found.worst] == sorted((q.misses for q in found.worst), reverse=True)
    assert sum(pair.count for pair in found.confusion) == len(found.worst)
    assert {image_id for pair in found.confusion for image_id in pair.ids} == {query.id for query in found.worst}


@pytest.mark.parametrize("others", [{"c/1.png": "green", "c/2.png": "green"}, {}])
def test_copies_do_not_count(build: Callable[[dict[str, str]], Gallery], others: dict[str, str]) -> None:
    gallery = build({"a/1.png": "red", "b/1.png": "blue", **others})
    source = Path(gallery.sources[1].root)
    for name in "ab":
        shutil.copyfile(source / name / "1.png", source / name / "same.png")
    update_gallery(gallery.path)
    found = assess_quality(Gallery.open(gallery.path))
    assert found.apart is not None
    assert (found.queries, found.recall_at[0].value) == (4 + len(others), 1.0)
    assert (found.apart.found_by, found.apart.scenes, found.apart.images) == ("copies", 2, 4)
    # a and b have duplicates only, and so c alone asks
    assert (found.apart.value, found.apart.queries) == ((1.0, 2) if others else (None, 0))
    assert found.apart.flattered or others


def test_the_nearest_of_the_same_and_of_another_label_are_those_of_a_full_comparison() -> None:
    vectors, labels = VectorSource(width=8).draw(500, seed=2)
    labels[0] = 99  # alone
    asked = np.r_[0, np.random.default_rng(0).permutation(np.arange(1, 500))[:300]]
    groups = np.random.default_rng(1).integers(0, 250, size=500)
    found = find_nearest_by_label(vectors, labels, asked, groups=groups, progress=lambda done, total: None)
    products = vectors @ vectors.T
    np.fill_diagonal(products, -np.inf)
    same = (labels[:, None] == labels)[asked]
    products = products[asked]
    np.testing.assert_allclose(found.same, np.where(same, products, -np.inf).max(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.different, np.where(same, -np.inf, products).max(axis=1), atol=1e-6)
    assert found.same[0] == -np.inf
    products[(groups[:, None] == groups)[asked]] = -np.inf
    np.testing.assert_allclose(found.same_apart, np.where(same, products, -np.inf).max(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.different_apart, np.where(same, -np.inf, products).max(axis=1), atol=1e-6)
    assert (labels[found.different_row] != labels[asked]).all()


def test_of_many_members_a_sample_asks(labelled: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {one.id: one for one in assess_quality(labelled).worst}
    monkeypatch.setattr(quality, "MOST_QUERIES", 25)
    found = assess_quality(labelled)
    assert (found.sampled, found.queries) == (True, 25)
    assert found.worst
    for query in found.worst:
        same = whole[query.id]
        assert (query.hit.id, query.misses) == (same.hit.id, same.misses)
        assert query.hit.score == pytest.approx(same.hit.score, abs=1e-6)
