import doctest
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest

import index.arrays
import index.evaluation.groups
import index.evaluation.metrics
import index.sources.table_rows
import index.text
from index.errors import InputError
from index.evaluation.metrics import Labelled, RetrievalScores, score_retrieval


def score_among(
    vectors: np.ndarray, labels: np.ndarray, *, groups: np.ndarray | None = None, ks: Sequence[int]
) -> RetrievalScores:
    """Every image searches all others."""
    ids = 1 + np.arange(len(labels))  # none is its position
    images = Labelled(vectors, labels, ids, groups)
    return score_retrieval(images, images, ks=ks)


def test_recall_excludes_the_query_by_id_when_duplicates_tie() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    scores = score_among(vectors, np.array([0, 1, 0]), ks=[1, 2])
    assert scores.hits[1].tolist() == [0.0, 1.0]  # the first's nearest other is its double with another label
    assert scores.hits[2].tolist() == [1.0, 1.0]
    assert scores.lone_queries == 1
    assert scores.labels.tolist() == [0, 0]  # not that of the lone query


def test_a_query_whose_label_is_only_in_its_group_is_counted_and_left_out() -> None:
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], dtype=np.float32)
    groups = np.array([5, 5, 6, 7])
    scores = score_among(vectors, np.array([0, 0, 0, 1]), groups=groups, ks=[1, 2])
    assert scores.hits[1].tolist() == [0.0, 0.0, 0.0], "the nearest that may be found has another label"
    assert scores.hits[2].tolist() == [1.0, 1.0, 1.0]
    assert scores.lone_queries == 1, "the one image of label 1"
    assert scores.average_precision.tolist() == [0.0, 0.0, 0.25], "with one relevant item for those of the group"
    with pytest.raises(InputError, match="outside its group: all 4 labelled queries stand alone"):
        score_among(vectors, np.array([0, 0, 1, 2]), groups=groups, ks=[1])


def test_the_mean_over_classes_counts_a_small_class_like_a_large_one() -> None:
    vectors = np.array([[1, 0]] * 8 + [[0, 1], [1, 0]], dtype=np.float32)
    scores = score_among(vectors, np.array([4] * 8 + [7] * 2), ks=[1])
    assert scores.per_class_recall(1) == {4: 1.0, 7: 0.0}
    assert scores.mean_class_recall(1) == 0.5
    assert scores.recall[1] == 0.8


def test_a_k_below_one_is_refused() -> None:
    images = Labelled(np.ones((2, 2), np.float32), np.array([0, 0]))
    for ks in ([], [0, 1]):
        with pytest.raises(InputError, match="k must be whole numbers"):
            score_retrieval(images, images, ks=ks)


MODULES = (index.evaluation.metrics, index.evaluation.groups, index.arrays, index.text, index.sources.table_rows)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_are_right(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"np": np})
    assert result.attempted > 0
    assert result.failed == 0
