"""Arrays that the modules exchange: vectors, ids and labels."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Vectors = Floats  # rows of unit norm
Ids = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]
NO_ID = -1
UNLABELLED = -1
UNIT_TOLERANCE = 1e-3


def unit_rows(vectors: Vectors) -> Mask:
    """Which rows of (N, D) are finite and of unit norm: (N,) bool."""
    with np.errstate(over="ignore", invalid="ignore"):  # vectors with values that overflow are not unit vectors
        norms: npt.NDArray[np.float32] = np.linalg.norm(vectors, axis=1)
        usable: Mask = np.abs(norms - 1) <= UNIT_TOLERANCE  # False for NaN
    return usable


def normalise_rows(vectors: Floats) -> Floats:
    """(N, D) rows scaled to unit norm; zero rows stay zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = (vectors / np.maximum(norms, np.finfo(np.float32).tiny)).astype(np.float32, copy=False)
    return unit


def centred_cosines(found: Floats, expected: Floats) -> Floats:
    """(N,) cosines of (N, D) rows with the expected ones, both less the mean of these, which would hide differences."""
    middle = expected.mean(axis=0)
    one, two = found - middle, expected - middle
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    cosines: Floats = np.einsum("nd,nd->n", one, two) / np.maximum(norms, np.finfo(np.float32).tiny)
    return cosines


def rows_by_value(values: Ids) -> list[Ids]:
    """The sorted rows of every value in (N,) int64, by value."""
    order = np.argsort(values, kind="stable")
    cuts = (np.flatnonzero(np.diff(values[order])) + 1).tolist()
    return [order[start:stop] for start, stop in pairwise([0, *cuts, len(order)])] if len(order) else []


def connect_rows(pairs: Ids, *, count: int) -> Ids:
    """(count,) int64: the smallest row that each row is connected to by (P, 2) pairs of rows.

    >>> connect_rows(np.array([[3, 1], [3, 4]]), count=5).tolist()
    [0, 1, 2, 1, 1]
    """
    smallest = np.arange(count, dtype=np.int64)
    left, right = pairs[:, 0], pairs[:, 1]
    while True:
        low = np.minimum(smallest[left], smallest[right])
        joined = smallest.copy()
        for ends in (smallest[left], smallest[right]):  # also update the rows that the ends are connected to
            np.minimum.at(joined, ends, low)
        joined = joined[joined]
        if np.array_equal(joined, smallest):
            return smallest
        smallest = joined


def number_labels(names_by_row: Sequence[str | None]) -> tuple[Labels, list[str]]:
    """(n,) int64 positions of n labels in their sorted names, `UNLABELLED` without a label, and the names."""
    names = sorted({name for name in names_by_row if name is not None})
    number = {name: position for position, name in enumerate(names)}
    labels = [UNLABELLED if name is None else number[name] for name in names_by_row]
    return np.array(labels, dtype=np.int64), names
