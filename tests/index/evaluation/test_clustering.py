import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from index.vectors.clusters import cluster_embeddings


def unit_blobs(labels: np.ndarray, *, width: int, noise: float) -> np.ndarray:
    """Unit rows around one axis for each label."""
    random = np.random.default_rng(0)
    rows = np.eye(width)[labels] + noise * random.standard_normal((len(labels), width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_clusters_are_the_groups_that_are_there_and_the_same_for_a_seed() -> None:
    labels = np.repeat(np.arange(3), 50)
    rows = unit_blobs(labels, width=8, noise=0.05)
    told: list[tuple[int, int]] = []
    found = [
        cluster_embeddings(rows, clusters=3, seed=seed, progress=lambda *now: told.append(now)) for seed in range(5)
    ]
    assert told[:20] == [(done, 20) for done in range(1, 21)]
    assert found[0].dtype == np.int64
    assert any(len(np.unique(np.stack([labels, clusters]), axis=1)[0]) == 3 for clusters in found)
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
