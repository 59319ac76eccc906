"""Scores, intervals and pairs, beside what is counted by hand and what `evaluate` says."""

import numpy as np
import pytest

from index.arrays import UNLABELLED, Floats, Labels, normalise_rows
from index.errors import InputError
from index.evaluation.comparison import bootstrap_interval
from index.evaluation.groups import GroupSources
from index.evaluation.metrics import score_retrieval
from retrieval_app.comparing.scoring import Scoring, score_candidates

NAMES = ["a", "b", "c", "lone"]


def draw_vectors(labels: Labels, *, noise: float, seed: int, width: int = 8) -> Floats:
    chance = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(len(NAMES), width))
    return normalise_rows((centres[labels] + noise * chance.normal(size=(len(labels), width))).astype(np.float32))


@pytest.fixture(scope="module")
def labels() -> Labels:
    """120 images of three labels, one of a label of its own, and three without."""
    labels = np.arange(120, dtype=np.int64) % 3
    return np.concatenate([labels, [3], [UNLABELLED] * 3])


def group_sources(count: int, *, given: list[str | None] | None = None) -> GroupSources:
    names = [f"{np.random.default_rng(n).integers(1 << 40):x}.jpg" for n in range(count)]
    return GroupSources(names, np.full(count, np.nan), given=given)


def score(labels: Labels, *, given: list[str | None] | None = None) -> tuple[list[Floats], Scoring]:
    vectors = [
        draw_vectors(labels, noise=0.8, seed=1),
        draw_vectors(labels, noise=1.5, seed=2, width=6),
        draw_vectors(labels, noise=1.6, seed=3),
    ]
    return vectors, score_candidates(
        vectors, labels, NAMES, group_sources=group_sources(len(labels), given=given), ks=[4]
    )


def nearest(vectors: Floats, row: int) -> int:
    products = vectors @ vectors[row]
    products[row] = -np.inf
    return int(products.argmax())


def test_figures_are_those_of_evaluate_over_the_same_queries(labels: Labels) -> None:
    vectors, scoring = score(labels)
    assert scoring.queries.tolist() == list(range(120))
    assert scoring.lone == 1
    for rows, one in zip(vectors, scoring.scored, strict=True):
        ids = np.arange(len(rows))
        plain = score_retrieval(
            rows, labels, gallery=rows, gallery_labels=labels, gallery_ids=ids, query_ids=ids, ks=[1, 4]
        )
        assert {k: figure.value for k, figure in one.recall.items()} == plain.recall
        interval = bootstrap_interval(plain.hits[1], seed=0)
        assert (one.recall[1].low, one.recall[1].high) == interval
        assert one.map_at_r.value == pytest.approx(plain.average_precision.mean())


def test_right_is_the_first_hit_and_pairs_count_who_is(labels: Labels) -> None:
    vectors, scoring = score(labels)
    right = [
        np.array([labels[nearest(rows, row)] == labels[row] for row in scoring.queries.tolist()]) for rows in vectors
    ]
    for one, expected in zip(scoring.scored, right, strict=True):
        assert np.array_equal(one.right, expected)
    assert [(pair.first, pair.second) for pair in scoring.pairs] == [(0, 1), (0, 2), (1, 2)]
    for pair in scoring.pairs:
        a, b = right[pair.first], right[pair.second]
        assert (pair.only_first, pair.only_second) == ((a & ~b).sum(), (b & ~a).sum())
        assert (pair.both_right, pair.both_wrong) == ((a & b).sum(), (~a & ~b).sum())
        assert pair.recall_at_1.mean == pytest.approx(b.mean() - a.mean())
    assert (scoring.pair(0, 1).verdict, scoring.pair(0, 1).recall_at_1.mean < 0) == ("worse", True)


def test_given_groups_are_kept_apart_and_drawn_as_wholes(labels: Labels) -> None:
    given = [f"group {n // 12}" for n in range(len(labels))]
    _, plain = score(labels)
    _, scoring = score(labels, given=list(given))
    assert (plain.over_groups, scoring.over_groups) == (False, True)
    assert scoring.groups is not None
    assert scoring.groups.found_by == "the column 'group'"
    for one, other in zip(scoring.scored, plain.scored, strict=True):
        assert one.grouped is not None
        assert one.recall[1].value == other.recall[1].value
        assert (one.recall[1].low, one.recall[1].high) != (other.recall[1].low, other.recall[1].high)


def test_without_two_images_of_a_label_there_is_nothing_to_compare() -> None:
    labels = np.array([0, 1, 2, UNLABELLED])
    vectors = draw_vectors(np.array([0, 1, 2, 3]), noise=0.1, seed=0)
    with pytest.raises(InputError, match="no query has another image of its label"):
        score_candidates([vectors, vectors], labels, NAMES, group_sources=group_sources(4), ks=[1])


def test_what_few_queries_tell_is_not_called_clear() -> None:
    labels = np.array([0, 0, 1, 1], dtype=np.int64)
    right = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    wrong = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
    scoring = score_candidates([wrong, right], labels, ["a", "b"], group_sources=group_sources(4), ks=[1])
    pair = scoring.pair(0, 1)
    assert (pair.only_second, pair.recall_at_1.low) == (4, 1.0)
    assert (pair.is_enough, pair.verdict) == (False, "not clear")
