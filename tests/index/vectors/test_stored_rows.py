import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import NO_ID
from index.vectors.stored_rows import RowSet, StoredRows
from tests.conftest import tries
from tests.index.vector_sources import VectorSource, exact_scores, split_rows, spread_ids

ROWS, WIDTH = 2311, 24
NOISE = 1e-5


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return VectorSource(width=WIDTH).draw_gallery(ROWS, seed=4)[0]


def store(vectors: np.ndarray, *, ends: list[int]) -> StoredRows:
    return StoredRows.of(split_rows(vectors, spread_ids(len(vectors)), ends=ends))


def check_scan(stored: StoredRows, vectors: np.ndarray, queries: np.ndarray, *, k: int, among: RowSet | None) -> None:
    """Compare a scan with float64, as far as float32 sums allow."""
    exact = exact_scores(queries, vectors)
    if among is not None:
        exact[:, ~among.mask] = -np.inf
    count = min(k, len(vectors) if among is None else len(among))
    scores, positions = stored.scan(queries, k=k, among=among)
    assert scores.shape == positions.shape == (len(queries), k)
    assert scores.dtype == np.float32
    assert positions.dtype == np.int64
    assert (positions[:, count:] == NO_ID).all()
    assert np.isneginf(scores[:, count:]).all()
    found = positions[:, :count]
    assert all(len(set(row)) == count for row in found.tolist())
    own = np.take_along_axis(exact, found, axis=1)
    assert np.isfinite(own).all()  # none that is not among them
    assert np.abs(scores[:, :count] - own).max(initial=0) < NOISE
    assert (np.diff(scores[:, :count], axis=1) <= 0).all()
    best = -np.sort(-exact, axis=1)[:, :count]
    assert np.abs(own - best).max(initial=0) < NOISE


@st.composite
def small_problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[int], np.ndarray | None, int]:
    """Few different small whole-number vectors: ties abound, and every sum is exact."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, width = draw(st.integers(1, 50)), draw(st.integers(1, 5))
    rows = random.integers(-1, 2, size=(count, width)).astype(np.float32)
    queries = random.integers(-1, 2, size=(draw(st.sampled_from([1, 3, 19, 20, 25])), width)).astype(np.float32)
    ends = sorted(draw(st.lists(st.integers(0, count), max_size=4)))  # some shards may be empty
    density = draw(st.sampled_from([None, 0.0, 0.1, 0.3, 0.5, 0.9, 1.0]))
    mask = None if density is None else random.random(count) < density
    return rows, queries, ends, mask, draw(st.integers(1, 60))


@pytest.mark.deep
@settings(max_examples=tries(37, deep=150), deadline=None)
@given(problem=small_problems(), at_once=st.sampled_from([4, 1 << 16]))
def test_scans_of_any_shards_with_ties_are_right(
    problem: tuple[np.ndarray, np.ndarray, list[int], np.ndarray | None, int], at_once: int
) -> None:
    rows, queries, ends, mask, k = problem
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.vectors.stored_rows._ROWS_AT_ONCE", at_once)
        check_scan(store(rows, ends=ends), rows, queries, k=k, among=None if mask is None else RowSet.of(mask))


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
