"""The exact search of what is in memory: the nearest rows of a matrix, of all, or of the same and of other labels.

A product in float32 finds candidates by a proven bound on its error, and those are multiplied exactly; so answers are
those of float64 at the price of float32. `search.VectorSearch` has the search of stored vectors: they are mapped, and
faiss scans them where they lie, filtered, for a query alone as soon as for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, UNIT_TOLERANCE, Floats, Ids, Labels, rows_by_value
from index.progress import Progress, no_progress
from index.vectors.products import bound_error, limit_cosines, multiply_pairs

_PRODUCTS_AT_ONCE = 1 << 24  # 64 MB
_CAST_AT_ONCE = 1 << 23  # numbers held in float64: 64 MB
_DENSE_SHARE = 1 / 8  # of the products being candidates: then all are taken in float64
_MOST_ROUNDS, _HEAPS = 64, 4  # of dealing columns out, to so many heaps for each neighbour
_LARGEST = 1e37  # product that float32 holds with room to spare
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True, slots=True)
class Nearest:
    """The k nearest of n queries: `cosines` (n, k) float32 falling, or other products, and `rows` (n, k) int64.

    Ties go to the smaller row; where there are fewer than k, `NO_ID` with -inf fills up.
    """

    cosines: Floats
    rows: Ids

    @classmethod
    def none(cls, count: int, k: int) -> Nearest:
        """Nobody near anybody."""
        return cls(np.full((count, k), -np.inf, dtype=np.float32), np.full((count, k), NO_ID, dtype=np.int64))

    def of(self, place: int) -> list[tuple[int, float]]:
        """(row, cosine) of those of one query, nearest first."""
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
    """The k nearest rows of a gallery for every query; memory is bounded.

    Args:
        queries: (Q, D) float32.
        gallery: (N, D) float32.
        k: at least 1.
        own: (Q,) int64, a row of the gallery that each query does not find, `NO_ID` for none; None: they find all.
        groups: (N,) int64; a query does not find the rows of the group of its own row either.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    found, blocks = Nearest.none(len(queries), k), _Blocks(queries, gallery)
    together = _list_together(groups)
    for places in _cut(np.arange(len(queries)), len(gallery)):
        block = blocks.multiply(places)
        if own is not None:
            asking = np.flatnonzero(own[places] != NO_ID)
            block.products[asking, own[places[asking]]] = -np.inf
            for place in asking.tolist():
                if (row := int(own[places[place]])) in together:
                    block.products[place, together[row]] = -np.inf
        block.take(found, places)
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
    """The k nearest others with the same label, and the k with another one; memory is bounded.

    Args:
        vectors: (N, D) float32.
        labels: (N,) int64.
        k: of each, at least 1.
        asked: (n,) int64 rows; None asks for all.
        groups: (N,) int64; rows of one group are duplicates, and do not find each other.
        progress: told (done, total) of the rows that are asked for.
    """
    rows = np.arange(len(labels)) if asked is None else asked
    same, other = Nearest.none(len(rows), k), Nearest.none(len(rows), k)
    of_label = {int(labels[members[0]]): members for members in rows_by_value(labels)}
    together = _list_together(groups)
    blocks, done = _Blocks(vectors if asked is None else vectors[rows], vectors), 0
    for places in _cut(np.argsort(labels[rows], kind="stable"), len(labels)):
        here, block = rows[places], blocks.multiply(places)
        block.products[np.arange(len(here)), here] = -np.inf
        for place, row in enumerate(here.tolist()):
            if row in together:
                block.products[place, together[row]] = -np.inf
        for part in rows_by_value(labels[here]):
            own = of_label[int(labels[here[part[0]]])]
            block.of(part, own).take(same, places[part])
            block.products[np.ix_(part, own)] = -np.inf
        block.take(other, places)
        done += len(places)
        progress(done, len(rows))
    return same, other


def _list_together(groups: Ids | None) -> dict[int, Ids]:
    """The rows of its group by each row that is not alone in it."""
    together: dict[int, Ids] = {}
    for members in [] if groups is None else rows_by_value(groups):
        if len(members) > 1:
            together.update(dict.fromkeys(members.tolist(), members))
    return together


def _cut(places: Ids, width: int) -> Iterator[Ids]:
    """As many queries at a time as their products with so many rows leave memory for."""
    size = max(1, _PRODUCTS_AT_ONCE // max(1, width))
    return (places[start : start + size] for start in range(0, len(places), size))


class _Blocks:
    def __init__(self, queries: Floats, gallery: Floats) -> None:
        self.queries, self.gallery = queries, gallery
        with np.errstate(over="ignore"):  # a norm that is too large for float32 is out of range
            norms, others = (np.sqrt(np.einsum("nd,nd->n", rows, rows)) for rows in (queries, gallery))
        largest = float(others.max(initial=0.0))
        self._errors = bound_error(norms, largest=largest, dim=queries.shape[1])
        self.is_in_range = bool((norms * largest < _LARGEST).all())  # else float32 may not even hold the products
        self.are_cosines = all((abs(some - 1) <= UNIT_TOLERANCE).all() for some in (norms, others))

    def multiply(self, places: Ids) -> _Block:
        with np.errstate(over="ignore", invalid="ignore"):
            products = self.queries[places] @ self.gallery.T
        return _Block(self, places, None, products, self._errors[places])


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries at some `places` and some rows of the gallery (None: all), with what float32 makes of their products.

    A product that is set to -inf is of a pair that is not to be found.
    """

    whole: _Blocks
    places: Ids
    columns: Ids | None
    products: Floats
    errors: Floats

    def of(self, part: Ids, columns: Ids) -> _Block:
        products = self.products[np.ix_(part, columns)]
        return _Block(self.whole, self.places[part], columns, products, self.errors[part])

    def take(self, found: Nearest, places: Ids) -> None:
        """Let places of what was found have the nearest of the columns."""
        count = self.products.shape[1]
        k = min(found.rows.shape[1], count)
        if not k or not len(places):
            return
        if not self.whole.is_in_range:
            self._take_all(found, places, k=k)
            return
        best = _bound_best(self.products, k)
        if self.whole.are_cosines:
            best = np.minimum(best, 1)  # all above count as 1
        limits = np.maximum(best - 2 * self.errors, _LOWEST)
        hits = np.flatnonzero(self.products >= limits[:, None])
        if len(hits) > max(4 * k * len(places), _DENSE_SHARE * self.products.size):
            self._take_all(found, places, k=k)
            return
        lines, columns = np.divmod(hits, count)
        rows = columns if self.columns is None else self.columns[columns]
        exact = multiply_pairs(self.whole.queries, self.whole.gallery, self.places[lines], rows)
        if self.whole.are_cosines:
            limit_cosines(exact)
        order = np.lexsort((rows, -exact, lines))
        lines, rows, exact = lines[order], rows[order], exact[order]
        ranks = np.arange(len(lines)) - np.searchsorted(lines, lines)
        first = ranks < k
        here = places[lines[first]], ranks[first]
        found.cosines[here], found.rows[here] = exact[first], rows[first]

    def _take_all(self, found: Nearest, places: Ids, *, k: int) -> None:
        """The same where most pairs are candidates: most rows are wanted, or equal, or too large for float32."""
        for line, place in enumerate(places.tolist()):
            with np.errstate(over="ignore"):
                exact = self._multiply_exactly(line)
            exact[np.isneginf(self.products[line])] = -np.inf
            chosen = np.flatnonzero(exact >= -np.partition(-exact, k - 1)[k - 1])
            chosen = chosen[np.argsort(-exact[chosen], kind="stable")[:k]]
            chosen = chosen[exact[chosen] != -np.inf]
            found.cosines[place, : len(chosen)] = exact[chosen]
            found.rows[place, : len(chosen)] = chosen if self.columns is None else self.columns[chosen]

    def _multiply_exactly(self, line: int) -> Floats:
        query, gallery = self.whole.queries[self.places[line]].astype(np.float64), self.whole.gallery
        size, exact = max(1, _CAST_AT_ONCE // gallery.shape[1]), np.empty(self.products.shape[1], np.float32)
        for start in range(0, len(exact), size):
            part = slice(start, start + size)
            rows = gallery[part] if self.columns is None else gallery[self.columns[part]]
            exact[part] = np.einsum("nd,d->n", rows.astype(np.float64), query)
        return limit_cosines(exact) if self.whole.are_cosines else exact


def _bound_best(products: Floats, k: int) -> npt.NDArray[np.float32]:
    """(B,) numbers that at least k of the columns of each of (B, N) products reach, and few more than k.

    The columns are dealt out to more than k heaps; k of the heaps' maxima reach the k-th best maximum.
    """
    best: npt.NDArray[np.float32]
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
