"""The exact scores of a query's relevant items, those of its label, as far as they may be among its first results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids
from index.errors import InputError
from index.threads import map_ahead, multiplying_workers
from index.vectors.products import Doubles, Places, arrange, bound_error, find_scale, measure_norms, multiply_pairs

_SAMPLE_SHARE, _LEAST_SAMPLE, _LARGEST_SAMPLE = 16, 2048, 16384  # rows of the gallery that bound the first scores
_BLOCK_ROWS, _BLOCK_SCORES = 2048, 1 << 22  # scored at once
_MANY_RELEVANT = 64  # items of a label, from which on a sample tells how many others there are
_SURE = 3.0  # standard errors by which a sample may have shown too many others
_KEYS_OF_A_ROW = np.int64(1) << 32
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


@dataclass(frozen=True, slots=True)
class Asked:
    """Labelled queries among a labelled gallery.

    Attributes:
        queries: (Q, D) float32. The gallery itself, the same array, where it is asked about all of its rows.
        labels: (Q,) int64.
        own: (Q,) int64 place of the query in the gallery, -1 where it is no member.
        relevant: (Q,) int64, how many items of the gallery that it may find have its label; 0 where it shall not be
            asked.
        gallery: (N, D) float32.
        gallery_labels: (N,) int64.
        gallery_ids: (N,) int64, unique.
        groups, gallery_groups: (Q,) and (N,) int64; a query finds nothing of its own group. Both or none.
    """

    queries: Floats
    labels: Ids
    own: Places
    relevant: Places
    gallery: Floats
    gallery_labels: Ids
    gallery_ids: Ids
    groups: Ids | None = None
    gallery_groups: Ids | None = None

    @property
    def is_square(self) -> bool:
        """Whether the queries are the gallery."""
        return self.queries is self.gallery

    def take(self, rows: Places) -> Asked:
        """Some of the queries."""
        return replace(
            self,
            queries=self.queries[rows],
            labels=self.labels[rows],
            own=self.own[rows],
            relevant=self.relevant[rows],
            groups=None if self.groups is None else self.groups[rows],
        )

    def bar(self, rows: Places, places: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Where queries may not find gallery items: themselves, and those of their group."""
        barred: npt.NDArray[np.bool_] = self.own[rows] == places
        if self.groups is not None and self.gallery_groups is not None:
            barred |= self.groups[rows] == self.gallery_groups[places]
        return barred


class ExactProducts:
    """Products summed in float64 and rounded once to float32, so that equal rows tie wherever they stand.

    Rows too large for it are scaled by powers of two, which changes no order.

    Attributes:
        query_scale, gallery_scale: these powers, mostly 1.
        errors: (Q,) float32, how far a scaled product that was summed in float32 may be from the exact one.

    Raises:
        InputError: a number is NaN or infinite.
    """

    def __init__(self, queries: Floats, gallery: Floats) -> None:
        self._queries, self._gallery = queries, gallery
        norms = _measure_finite_norms(queries)
        others = norms if queries is gallery else _measure_finite_norms(gallery)
        self.query_scale, self.gallery_scale = find_scale(norms), find_scale(others)
        largest = float(others.max()) * self.gallery_scale
        self.errors = bound_error(norms * self.query_scale, largest=largest, dim=queries.shape[1])

    def of_pairs(self, rows: Places, places: Places) -> Floats:
        """(n,) float32 products of `rows` of the queries with `places` of the gallery."""
        scale = self.query_scale * self.gallery_scale
        return multiply_pairs(self._queries, self._gallery, rows, places, scale=scale)

    def of_groups(self, rows: Places, places: Places) -> Floats:
        """(C, n, m) float32 products of (C, n) queries with (C, m) of the gallery."""
        left, right = self._queries[rows].astype(np.float64), self._gallery[places].astype(np.float64)
        exact = (left @ right.transpose(0, 2, 1)) * self.query_scale * self.gallery_scale
        products: Floats = exact.astype(np.float32)
        return products


def _measure_finite_norms(rows: Floats) -> Doubles:
    norms = measure_norms(rows)
    unusable = np.flatnonzero(~np.isfinite(norms))
    if len(unusable):
        raise InputError(
            f"{len(unusable)} of {len(norms)} vectors, the first in row {unusable[0]}, hold NaN or infinite numbers; "
            "they have no place in a ranking: leave them out, or embed their images again"
        )
    return norms


@dataclass(frozen=True, slots=True)
class RelevantScores:
    """Scores of relevant items, a query's own one after the other in falling order, ties by id.

    Attributes:
        queries: (n,) int64.
        kept: (n,) int64, how many items of each query.
        scores: float32, exact.
        places: int32, of the items in the gallery.
        is_sure: (n,) bool, whether all that may be among the first are kept; else those are that are likely to be, and
            where the last of them turns out to be among the first R - 1, others may be too.
    """

    queries: Places
    kept: Places
    scores: Floats
    places: npt.NDArray[np.int32]
    is_sure: npt.NDArray[np.bool_]

    @classmethod
    def join(cls, parts: list[RelevantScores]) -> RelevantScores:
        """Those of all queries, emptying the list."""
        joined = [
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("queries", "kept", "scores", "places", "is_sure")
        ]
        parts.clear()
        return cls(*joined)


def make_keys(rows: Places, scores: Floats) -> Places:
    """int64 that order pairs of row and score by row, then by falling score; equal for equal pairs."""
    bits = (scores + np.float32(0)).view(np.int32)  # 0 has other bits than -0
    return rows * _KEYS_OF_A_ROW - np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def score_relevant(asked: Asked, products: ExactProducts, *, depth: int, be_sure: bool) -> RelevantScores:
    """The relevant items of all queries that may be among the first `depth`, or R where that is more.

    A sample of the gallery tells: what stands below R rows of it and of the relevant items stands below the first R.
    As many as R rows of a sample are far more of the gallery, so that where it need not be sure and R is large, what
    likely stands below R rows of the gallery is left out too.
    """
    rows = len(asked.gallery)
    wanted = min(max(rows // _SAMPLE_SHARE, _LEAST_SAMPLE), _LARGEST_SAMPLE)
    sample = np.arange(0, rows, -(-rows // wanted))
    scaled = arrange(asked.gallery, sample, scale=products.gallery_scale)

    def score(group: tuple[Places, Places]) -> RelevantScores:
        queries, places = group[0].ravel(), np.repeat(group[1], group[0].shape[1], axis=0)
        scores = products.of_groups(*group).reshape(places.shape)
        others = arrange(asked.queries, queries, scale=products.query_scale) @ scaled.T
        known = asked.labels[queries][:, None] == asked.gallery_labels[sample]
        known |= asked.bar(queries[:, None], sample)
        others.ravel()[np.flatnonzero(known)] = -np.inf
        barred = asked.bar(queries[:, None], places)
        if not be_sure and places.shape[1] >= _MANY_RELEVANT:
            return _choose_likely(queries, scores, others, places=places, barred=barred, weight=rows / len(sample))
        return _choose_first(
            queries, scores, others, places=places, barred=barred, errors=products.errors, depth=depth
        )

    unasked = np.flatnonzero(asked.relevant == 0)
    nothing = np.empty(0, np.float32), np.empty(0, np.int32)
    parts = [RelevantScores(unasked, np.zeros_like(unasked), *nothing, np.ones(len(unasked), dtype=bool))]
    with multiplying_workers() as workers:
        parts.extend(map_ahead(score, _group_by_label(asked), workers=workers, ahead=2 * workers))
    return RelevantScores.join(parts)


def _group_by_label(asked: Asked) -> Iterator[tuple[Places, Places]]:
    """(C, n) queries and (C, m) gallery places by id of C labels with as many of each: what is scored at once."""
    asking = np.flatnonzero(asked.relevant)
    asking = asking[np.argsort(asked.labels[asking], kind="stable")]
    labels = np.unique(asked.labels[asking])
    found = np.lexsort((asked.gallery_ids, asked.gallery_labels))
    firsts, lasts = (np.searchsorted(asked.labels[asking], labels, side=side) for side in _SIDES)
    begins, ends = (np.searchsorted(asked.gallery_labels[found], labels, side=side) for side in _SIDES)
    sizes, group = np.unique(np.stack([lasts - firsts, ends - begins]), axis=1, return_inverse=True)
    for number, (asking_size, found_size) in enumerate(sizes.T.tolist()):
        members = np.flatnonzero(group == number)
        at_once = min(_BLOCK_ROWS, max(1, _BLOCK_SCORES // found_size))
        labels_at_once = max(1, at_once // asking_size)
        for start in range(0, len(members), labels_at_once):
            some = members[start : start + labels_at_once]
            queries = asking[firsts[some][:, None] + np.arange(asking_size)]
            places = found[begins[some][:, None] + np.arange(found_size)]
            for first in range(0, asking_size, at_once):
                yield queries[:, first : first + at_once], places


def _choose_first(
    queries: Places,
    scores: Floats,
    others: Floats,
    *,
    places: Places,
    barred: npt.NDArray[np.bool_],
    errors: Floats,
    depth: int,
) -> RelevantScores:
    """Of (n, m) scores of one label, `barred` ones among them, those that (n, s) of others let be among the first."""
    relevant = scores.shape[1] - barred.sum(axis=1)
    scores[barred] = -np.inf
    best = np.argsort(-scores, axis=1, kind="stable")  # the columns stand in the order of ids
    scores, places = np.take_along_axis(scores, best, axis=1), np.take_along_axis(places, best, axis=1)
    deepest = max(depth, int(relevant.max()))
    count = others.shape[1]
    if deepest < count:
        others = np.partition(others, count - deepest, axis=1)[:, count - deepest :]
    seen = np.sort(np.concatenate([others, scores], axis=1), axis=1)[:, ::-1]

    def keep(first: Places) -> Places:
        """How many relevant items may be among so many first ones."""
        last = np.minimum(first, seen.shape[1]) - 1
        limits = np.take_along_axis(seen, last[:, None], axis=1)[:, 0] - errors[queries]
        limits[first > seen.shape[1]] = -np.inf
        return np.asarray(np.minimum((scores >= limits[:, None]).sum(axis=1), relevant), dtype=np.int64)

    kept = np.maximum(keep(relevant), np.minimum(keep(np.maximum(relevant, depth)), 1))
    within = np.arange(scores.shape[1]) < kept[:, None]
    is_sure = np.ones(len(kept), dtype=bool)
    return RelevantScores(queries, kept, scores[within], places[within].astype(np.int32), is_sure)


def _choose_likely(
    queries: Places,
    scores: Floats,
    others: Floats,
    *,
    places: Places,
    barred: npt.NDArray[np.bool_],
    weight: float,
) -> RelevantScores:
    """Those that are likely to be among the first R, and the next one: it tells whether that was true."""
    relevant = scores.shape[1] - barred.sum(axis=1)
    scores[barred] = -np.inf
    limits = _guess_limits(scores, others, relevant=relevant, weight=weight)
    following = np.where(scores < limits[:, None], scores, -np.inf).max(axis=1)
    kept = (scores >= following[:, None]) & ~barred
    rows, columns = np.nonzero(kept)
    found = scores[rows, columns]
    order = np.argsort(make_keys(rows, found), kind="stable")  # the columns stand in the order of ids
    counts = np.count_nonzero(kept, axis=1)
    chosen = places[rows[order], columns[order]].astype(np.int32)
    return RelevantScores(queries, counts, found[order], chosen, counts == relevant)


def _guess_limits(scores: Floats, others: Floats, *, relevant: Places, weight: float) -> Floats:
    """(n,) float32 that `relevant` items of the whole gallery probably reach; -inf where the sample is too small.

    Args:
        scores: (n, m) of relevant items.
        others: (n, s) scores of a sample of the others, each of which stands for `weight` of them.
    """
    most = relevant.max() / weight
    most = min(math.ceil(most + _SURE * (_SURE + most**0.5)) + 1, others.shape[1])  # that enough are expected at
    others = np.partition(others, others.shape[1] - most, axis=1)[:, others.shape[1] - most :]
    others = np.sort(others, axis=1)[:, ::-1]
    rows = np.arange(len(scores))
    low, high = np.zeros(len(scores), dtype=np.int64), np.full(len(scores), most)
    while (is_open := low < high).any():  # the first of the others at which enough are expected
        middle = (low + high) // 2
        limits = others[rows, np.minimum(middle, most - 1)]
        seen = np.maximum(middle + 1 - _SURE * np.sqrt(middle + 1), 0)
        is_enough = (scores >= limits[:, None]).sum(axis=1) + weight * seen >= relevant
        low, high = np.where(is_open & ~is_enough, middle + 1, low), np.where(is_open & is_enough, middle, high)
    found: Floats = others[rows, np.minimum(low, most - 1)]
    found[low == most] = -np.inf
    return found
