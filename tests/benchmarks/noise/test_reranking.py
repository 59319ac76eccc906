"""Re-ranking: the paper's encoding against sets, and what it does where neighbourhoods tell more than distances."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.noise.reranking import RANKINGS, expand_queries, rerank_by_neighbours, score_distances
from index.arrays import normalise_rows
from index.evaluation.metrics import score_retrieval


def _rows(*, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(8), 12)
    centres = chance.normal(size=(8, 6))[labels]
    return normalise_rows((centres + spread * chance.normal(size=centres.shape)).astype(np.float32)), labels


def test_plain_distances_score_as_the_metrics_do() -> None:
    rows, labels = _rows(spread=1.0)
    ids = np.arange(len(rows), dtype=np.int64)
    expected = score_retrieval(
        rows, labels, gallery=rows, gallery_labels=labels, gallery_ids=ids, query_ids=ids, ks=(1,)
    )
    found = score_distances(RANKINGS["plain"](rows), labels)
    assert found == pytest.approx((expected.recall[1], expected.average_precision.mean()), abs=1e-6)


def test_without_the_averaging_the_jaccard_distance_is_that_of_the_sets_of_neighbours() -> None:
    rows, _ = _rows(spread=0.7)
    k1 = 4
    distances = 2 - 2 * rows @ rows.T
    distances /= distances.max(axis=1, keepdims=True)
    order = np.argsort(distances, axis=1, kind="stable")

    def reciprocal(row: int, k: int) -> set[int]:
        return {int(n) for n in order[row, : k + 1] if row in order[n, : k + 1]}

    sets = []
    for row in range(len(rows)):
        members = reciprocal(row, k1)
        found = set(members)
        for member in members:
            own = reciprocal(member, k1 // 2)
            if len(own & members) > 2 / 3 * len(own):
                found |= own
        sets.append(found)
    found = rerank_by_neighbours(rows, k1=k1, k2=1, share=0.0)
    assert ((found < 1 - 1e-6) == [[bool(a & b) for b in sets] for a in sets]).all()
    np.testing.assert_allclose(np.diag(found), 0, atol=1e-5)
    np.testing.assert_allclose(rerank_by_neighbours(rows, k1=k1, k2=1, share=1.0), distances, atol=1e-5)


def test_neighbourhoods_raise_the_precision_of_clusters_and_expanded_queries_stay_unit_rows() -> None:
    rows, labels = _rows(spread=0.6)
    plain, better = (score_distances(RANKINGS[name](rows), labels)[1] for name in ("plain", "k-reciprocal"))
    assert better > plain + 0.05
    np.testing.assert_allclose(np.linalg.norm(expand_queries(rows), axis=1), 1, atol=1e-5)
