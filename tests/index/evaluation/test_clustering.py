import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import UNLABELLED
from index.errors import InputError
from index.evaluation.evaluate import nmi, normalised_mutual_information
from index.vectors.clusters import cluster_embeddings
from tests.conftest import tries

PARTITIONS = st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 6)), min_size=1, max_size=40)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])


def unit_blobs(labels: np.ndarray, *, width: int, noise: float) -> np.ndarray:
    """Unit rows around one axis for each label."""
    random = np.random.default_rng(0)
    rows = np.eye(width)[labels] + noise * random.standard_normal((len(labels), width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.deep
@settings(max_examples=tries(75, deep=300), deadline=None)
@given(pairs=PARTITIONS)
def test_mutual_information_agrees_with_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import normalized_mutual_info_score  # which takes seconds

    labels, clusters = arrays(pairs)
    expected = normalized_mutual_info_score(labels, clusters, average_method="arithmetic")
    assert normalised_mutual_information(labels, clusters) == pytest.approx(expected, abs=1e-9)


def test_degenerate_partitions_have_defined_information() -> None:
    one, many = np.zeros(4, np.int64), np.arange(4)
    assert normalised_mutual_information(one, one + 5) == 1
    assert normalised_mutual_information(one, many) == normalised_mutual_information(many, one) == 0
    with pytest.raises(InputError, match="nothing to compare"):
        normalised_mutual_information(one[:0], one[:0])
    with pytest.raises(ValueError, match="4 labels and 3 clusters"):
        normalised_mutual_information(one, one[:3])


def test_clusters_are_the_groups_that_are_there_and_the_same_for_a_seed() -> None:
    labels = np.repeat(np.arange(3), 50)
    rows = unit_blobs(labels, width=8, noise=0.05)
    found = [cluster_embeddings(rows, clusters=3, seed=seed) for seed in range(5)]
    assert found[0].dtype == np.int64
    assert max(normalised_mutual_information(labels, clusters) for clusters in found) == pytest.approx(1)
    for seed, clusters in enumerate(found):
        assert np.array_equal(cluster_embeddings(rows, clusters=3, seed=seed), clusters)


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 12), distinct=st.integers(1, 12), clusters=st.integers(1, 20))
def test_more_clusters_than_rows_or_distinct_rows_are_no_error(rows: int, distinct: int, clusters: int) -> None:
    vectors = unit_blobs(np.arange(rows) % distinct, width=12, noise=0)
    found = cluster_embeddings(vectors, clusters=clusters, seed=0)
    assert found.shape == (rows,)
    assert len(np.unique(found)) <= min(clusters, rows)
    for row in range(rows):  # equal rows are in one cluster
        assert found[row] == found[row % distinct]


def test_nmi_leaves_out_what_has_no_label() -> None:
    labels = np.repeat(np.arange(3), 20)
    rows = unit_blobs(labels, width=3, noise=0.3)
    expected = normalised_mutual_information(labels, cluster_embeddings(rows, clusters=3, seed=0))
    mixed = np.concatenate([labels, np.full(7, UNLABELLED)])
    assert nmi(np.concatenate([rows, rows[:7]]), mixed, seed=0) == expected
    with pytest.raises(InputError, match="none of 7 images has a label"):
        nmi(rows[:7], np.full(7, UNLABELLED), seed=0)
    with pytest.raises(InputError, match="cannot make 0 clusters of 60 images"):
        cluster_embeddings(rows, clusters=0, seed=0)
