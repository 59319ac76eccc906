"""Exact search in memory with NumPy: the nearest rows of a matrix, or the nearest of the same and of other labels.

A blocked float32 product finds candidates by a proven error bound. Candidates are multiplied in float64 and rounded
once to float32, so that equal rows tie. `search.VectorSearch` searches stored vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, UNIT_TOLERANCE, Floats, Ids, Labels, rows_by_value
from index.progress import Progress, no_progress

_PRODUCTS_AT_ONCE = 1 << 24  # 64 MB
_CANDIDATES_AT_ONCE = 1 << 20
_PAIRS_AT_ONCE = 512  # whose rows stay in the processor's cache
_MOST_ROUNDS, _HEAPS = 64, 4  # columns are dealt to so many heaps for each neighbour
_LARGEST = 1e37  # product that float32 holds with room to spare
_LOWEST = np.finfo(np.float32).min
_UNIT = 2.0**-24  # of one rounding to float32
_SPARE_ROUNDINGS = 32
_UNDERFLOW = 1e-20  # above the error of underflow

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Nearest:
    """The k nearest of n queries: (n, k) float32 descending `cosines`, or other products, and (n, k) int64 `rows`.

    Ties go to the smaller row; fewer than k are padded with `NO_ID` and -inf.
    """

    cosines: Floats
    rows: Ids

    @classmethod
    def none(cls, count: int, k: int) -> "Nearest":
        return cls(np.full((count, k), -np.inf, dtype=np.float32), np.full((count, k), NO_ID, dtype=np.int64))

    def of(self, place: int) -> list[tuple[int, float]]:
        """(row, cosine) of one query, nearest first."""
        pairs = zip(self.rows[place].tolist(), self.cosines[place].tolist(), strict=True)
        return [(row, cosine) for row, cosine in pairs if row != NO_ID]


def search(
    queries: Floats,
    gallery: Floats,
    *,
    k: int,
    own: Ids | None = None,
    groups: Ids | None = None,
    progress: Progress = no_progress,
) -> Nearest:
    """The k nearest rows of an (N, D) float32 gallery for each of (Q, D) float32 queries; memory is bounded.

    A query does not find its `own` (Q,) int64 row (`NO_ID` for none), nor that row's group of (N,) int64 `groups`.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    found, pairs, members = Nearest.none(len(queries), k), _Pairs(queries, gallery), _list_members(groups)
    for places in _cut(np.arange(len(queries)), len(gallery)):
        products = pairs.multiply(places)
        if own is not None:
            _exclude(products, own[places], members)
        pairs.take(found, places, products, places)
        progress(int(places[-1]) + 1, len(queries))
    return found


def search_labels(
    vectors: Floats,
    labels: Labels,
    *,
    k: int,
    asked: Ids | None = None,
    groups: Ids | None = None,
    progress: Progress = no_progress,
) -> tuple[Nearest, Nearest]:
    """The k nearest others with the same label, and the k with another one, of `asked` (n,) int64 rows or all N.

    Rows of one group of (N,) int64 `groups` are duplicates, and do not find each other.
    """
    rows = np.arange(len(labels)) if asked is None else asked
    same, other = Nearest.none(len(rows), k), Nearest.none(len(rows), k)
    of_label = {int(labels[own[0]]): own for own in rows_by_value(labels)}
    pairs, members, done = _Pairs(vectors if asked is None else vectors[rows], vectors), _list_members(groups), 0
    for places in _cut(np.argsort(labels[rows], kind="stable"), len(labels)):
        products = pairs.multiply(places)
        _exclude(products, rows[places], members)
        for part in rows_by_value(labels[rows[places]]):
            own = of_label[int(labels[rows[places[part[0]]]])]
            within = np.ix_(part, own)
            pairs.take(same, places[part], products[within], places[part], columns=own)
            products[within] = -np.inf
        pairs.take(other, places, products, places)
        done += len(places)
        progress(done, len(rows))
    return same, other


def _list_members(groups: Ids | None) -> dict[int, Ids]:
    """The rows of a row's group, by row, for groups of several."""
    members: dict[int, Ids] = {}
    for rows in [] if groups is None else rows_by_value(groups):
        if len(rows) > 1:
            members.update(dict.fromkeys(rows.tolist(), rows))
    return members


def _exclude(products: Floats, own: Ids, members: dict[int, Ids]) -> None:
    """Set the products of (B,) own rows, and of their groups, to -inf."""
    asking = np.flatnonzero(own != NO_ID)
    products[asking, own[asking]] = -np.inf
    for line, row in zip(asking.tolist(), own[asking].tolist(), strict=True):
        if row in members:
            products[line, members[row]] = -np.inf


def _cut(places: Ids, width: int) -> Iterator[Ids]:
    """Blocks of queries whose products with so many rows fit into memory."""
    size = max(1, _PRODUCTS_AT_ONCE // max(1, width))
    return (places[start : start + size] for start in range(0, len(places), size))


class _Pairs:
    """(Q, D) queries and (N, D) gallery rows, with the error bound of their float32 products."""

    def __init__(self, queries: Floats, gallery: Floats) -> None:
        self._queries, self._gallery = queries, gallery
        with np.errstate(over="ignore"):  # a norm that is too large for float32 is out of range
            norms, others = (np.sqrt(np.einsum("nd,nd->n", rows, rows)) for rows in (queries, gallery))
        largest = float(others.max(initial=0.0))
        self._errors = bound_error(norms, largest=largest, dim=queries.shape[1])
        self._is_in_range = bool((norms * largest < _LARGEST).all())  # else float32 may not hold the products
        self._are_cosines = all((abs(some - 1) <= UNIT_TOLERANCE).all() for some in (norms, others))

    def multiply(self, places: Ids) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            products: Floats = self._queries[places] @ self._gallery.T
        return products

    def take(self, found: Nearest, at: Ids, products: Floats, places: Ids, *, columns: Ids | None = None) -> None:
        """Write the nearest of the columns to the rows `at` of `found`, by (B, n) products of queries at `places`."""
        k = min(found.rows.shape[1], products.shape[1])
        if not k or not len(places):
            return
        if self._is_in_range:
            most = 1.0 if self._are_cosines else np.inf  # all above count as 1
            hits = find_candidates(products, k=k, errors=self._errors[places], most=most)
        else:
            hits = np.flatnonzero(~np.isneginf(products))
        if len(hits) > _CANDIDATES_AT_ONCE and len(places) > 1:
            middle = len(places) // 2
            for half in (slice(middle), slice(middle, None)):
                self.take(found, at[half], products[half], places[half], columns=columns)
            return
        lines, rows = np.divmod(hits, products.shape[1])
        if columns is not None:
            rows = columns[rows]
        with np.errstate(over="ignore"):
            exact = multiply_pairs(self._queries, self._gallery, places[lines], rows)
        if self._are_cosines:
            limit_cosines(exact)
        order = np.lexsort((rows, -exact, lines))
        lines, rows, exact = lines[order], rows[order], exact[order]
        ranks = np.arange(len(lines)) - np.searchsorted(lines, lines)
        first = ranks < k
        here = at[lines[first]], ranks[first]
        found.cosines[here], found.rows[here] = exact[first], rows[first]


def find_candidates(products: Floats, *, k: int, errors: Floats, most: float = np.inf) -> Ids:
    """Rising flat positions in (B, n) float32 products of all candidates for the k best of their line.

    `errors` are the (B,) float32 error bounds of a product; products above `most` count as equal, -inf never counts.
    """
    limits = np.maximum(np.minimum(_bound_best(products, k), np.float32(most)) - 2 * errors, _LOWEST)
    return np.flatnonzero(products >= limits[:, None])


def _bound_best(products: Floats, k: int) -> Floats:
    """(B,) lower bounds of the k-th best of (B, n) products: the k-th best maximum of heaps of columns."""
    best: Floats
    if k == 1:
        best = products.max(axis=1)
        return best
    rounds = min(_MOST_ROUNDS, products.shape[1] // (_HEAPS * k))
    maxima = products
    if rounds > 1:
        width = products.shape[1] // rounds
        maxima = products[:, :width].copy()
        for start in range(width, rounds * width, width):
            np.maximum(maxima, products[:, start : start + width], out=maxima)
    count = maxima.shape[1]
    best = np.partition(maxima, count - k, axis=1)[:, count - k]
    return best


def bound_error(norms: npt.NDArray[np.floating], *, largest: float, dim: int) -> Floats:
    """(N,) float32: error bound of a float32 product of a row with a row of norm up to `largest`.

    In any order of summation each product is rounded at most D times, and their absolute values add up to at most the
    product of the norms (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1).
    """
    roundings = (dim + _SPARE_ROUNDINGS) * _UNIT * 1.01
    return (roundings * norms * largest + _UNDERFLOW * max(1.0, largest)).astype(np.float32)


def measure_cosines(rows: Floats, queries: Floats) -> Floats:
    """(..., C) float32 exact products of (..., C, D) unit rows with (..., D) unit queries, 1 at most."""
    # Not a matrix product: BLAS would use other cores, and wait for them.
    exact = np.vecdot(rows.astype(np.float64), queries.astype(np.float64)[..., None, :])
    return limit_cosines(exact.astype(np.float32))


def limit_cosines(cosines: Floats) -> Floats:
    """Clip to [-1, 1], in place."""
    np.maximum(cosines, -1, out=cosines)  # np.clip is slower for few numbers
    return np.minimum(cosines, 1, out=cosines)


def multiply_pairs(left: Floats, right: Floats, rows: Integers, places: Integers, *, scale: float = 1.0) -> Floats:
    """(n,) float32 exact products of `rows` of (N, D) with `places` of (M, D), scaled before rounding."""
    products = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        first, second = left[rows[part]].astype(np.float64), right[places[part]].astype(np.float64)
        products[part] = np.einsum("nd,nd->n", first, second) * scale
    return products
