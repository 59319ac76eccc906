import numpy as np
import pytest

from index.vectors.stored_rows import StoredRows
from tests.index.vector_sources import VectorSource, split_rows, spread_ids

ROWS, WIDTH = 2311, 24


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return VectorSource(width=WIDTH).draw_gallery(ROWS, seed=4)[0]


def store(vectors: np.ndarray, *, ends: list[int]) -> StoredRows:
    return StoredRows.of(split_rows(vectors, spread_ids(len(vectors)), ends=ends))


@pytest.mark.parametrize("ends", [[], [777, 778, 2300]])
def test_rows_are_gathered_by_positions_of_any_shape(vectors: np.ndarray, ends: list[int]) -> None:
    stored, random = store(vectors, ends=ends), np.random.default_rng(8)
    for shape in ((), (1,), (50,), (0,), (4, 30), (0, 5), (3, 0), (2, 3, 4)):
        positions = np.asarray(random.integers(0, ROWS, size=shape))
        rows = stored.gather(positions)
        assert rows.dtype == np.float32
        assert np.array_equal(rows, vectors[positions])
    boundaries = np.array([0, *ends, *(end - 1 for end in ends), ROWS - 1])
    assert np.array_equal(stored.gather(boundaries), vectors[boundaries])
