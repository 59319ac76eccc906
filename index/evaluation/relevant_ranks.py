"""Recall@K without a search: the ranks of a query's relevant items, those of its label, without ranking the others.

It is no `exact.search`: for Recall@K no neighbour is needed, only how many stand before, which bounds tell sooner.

The scores of the relevant items are few and are taken exactly. Of the others only those count that stand before one of
them, and only before one that may be among the first. A bound from a few dimensions excludes most of the pairs, a
float32 product decides nearly all that are left, and where its error leaves a doubt the exact product decides. Where
the queries are the gallery, each product serves both of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import Floats
from index.evaluation.relevant_scores import Asked, ExactProducts, RelevantScores, make_keys, score_relevant
from index.progress import Progress, no_progress
from index.threads import map_ahead, multiplying_workers
from index.vectors.products import Heads, Places, arrange, find_axes

_PANEL_ROWS, _TILE_COLUMNS = 1024, 4096
_STAGE_ROWS = 4096  # after which the bounds are drawn closer
_TURN_FROM = 16  # queries and items for each dimension; below it turning costs more than it saves
_HEAD_EIGHTHS = (1, 2, 3, 4, 5, 6)  # of the dimensions, that may be multiplied first
_COMPLETION_COST = 12_000  # of one product, in dimensions of a tile's
_PROBED_ROWS, _PROBED_COLUMNS = 128, 2048
_PAIRS_AT_ONCE = 1 << 18

Tile = tuple[slice, slice]


@dataclass(frozen=True, slots=True)
class RelevantRanks:
    """Ranks of relevant items, from 1, a query's own in rising order.

    They are exact up to the larger of the depth and the number R of the query's relevant items; items further down are
    left out, or have another rank that is beyond both.

    Attributes:
        starts: (Q + 1,) int64; `ranks[starts[q] : starts[q + 1]]` belong to query q.
        ranks: int64.
    """

    starts: Places
    ranks: Places

    @property
    def queries(self) -> Places:
        """The query of each rank."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def order(self) -> Places:
        """The place of each rank among its query's, from 1."""
        return np.arange(1, len(self.ranks) + 1) - np.repeat(self.starts[:-1], np.diff(self.starts))

    @property
    def last(self) -> Places:
        """(Q,) the last rank of every query; 0 where it has none."""
        last = np.zeros(len(self.starts) - 1, dtype=np.int64)
        some = np.diff(self.starts) > 0
        last[some] = self.ranks[self.starts[1:][some] - 1]
        return last

    def replace(self, queries: Places, others: RelevantRanks) -> RelevantRanks:
        """The same with the ranks of others for some queries, in their order."""
        counts, is_other = np.diff(self.starts), np.zeros(len(self.starts) - 1, dtype=bool)
        is_other[queries] = True
        own = self.ranks[~np.repeat(is_other, counts)]
        counts[queries] = np.diff(others.starts)
        ranks, replaced = np.empty(counts.sum(), dtype=np.int64), np.repeat(is_other, counts)
        ranks[replaced], ranks[~replaced] = others.ranks, own
        return RelevantRanks(np.concatenate([[0], np.cumsum(counts)]), ranks)


def rank_relevant(asked: Asked, *, depth: int, progress: Progress = no_progress) -> RelevantRanks:
    """Where the relevant items of every query stand by (falling score, id), what it may not find left out.

    Args:
        asked: queries and gallery.
        depth: at least 1.
        progress: called with (done, total) queries, those included that are not asked.

    Raises:
        InputError: a vector has NaN or infinite numbers.
    """
    ranks, is_sure = _rank(asked, depth=depth, be_sure=False, progress=progress)
    unsure = np.flatnonzero(~is_sure)
    if not len(unsure):
        return ranks
    again, _ = _rank(asked.take(unsure), depth=depth, be_sure=True, progress=no_progress)
    return ranks.replace(unsure, again)


def _rank(
    asked: Asked, *, depth: int, be_sure: bool, progress: Progress
) -> tuple[RelevantRanks, npt.NDArray[np.bool_]]:
    """The ranks, and (Q,) bool where they are all that matter."""
    products = ExactProducts(asked.queries, asked.gallery)
    found = score_relevant(asked, products, depth=depth, be_sure=be_sure)
    is_sure = np.empty(len(asked.queries), dtype=bool)
    is_sure[found.queries] = found.is_sure
    entries = _Entries(found, relevant=asked.relevant, depth=depth)
    _Count(asked, products, entries).run(progress)
    ranks = entries.to_ranks()
    return ranks, is_sure | (ranks.last >= asked.relevant)


class _Entries:
    """The relevant items that may be among the first, with what was seen to stand before them.

    Rows are queries, those first that reach down to the lowest scores.

    Attributes:
        queries: (Q,) of the rows.
        lowest: (Q,) float32: only what scores this or more matters to the row; inf where nothing does.
        starts: (Q + 1,) of the rows' entries.
        keys: int64, rising, of `make_keys`.
        places: int32, in the gallery.
        before: int32, items seen that stand right before the entry: after the one before it.
    """

    def __init__(self, found: RelevantScores, *, relevant: Places, depth: int) -> None:
        starts = np.concatenate([[0], np.cumsum(found.kept)])
        lowest = _last(found.scores, starts[:-1], found.kept)
        order = np.argsort(lowest, kind="stable")
        self.starts, moved = _reorder(starts, order)
        self.queries, self.lowest = found.queries[order], lowest[order]
        self.places, self._scores = found.places[moved], found.scores[moved]
        self.keys = make_keys(np.repeat(np.arange(len(order)), np.diff(self.starts)), self._scores)
        self.before = np.zeros(len(self.keys), dtype=np.int32)
        self._relevant, self._depth = relevant[self.queries], depth

    def draw_closer(self) -> None:
        """Forget the entries before which more was seen than matters."""
        for start in range(0, len(self.queries), _STAGE_ROWS):
            rows = slice(start, start + _STAGE_ROWS)
            starts, r = self.starts[start : start + _STAGE_ROWS + 1], self._relevant[rows]
            ranks, kept = self._count_ranks(starts), np.diff(starts)
            within = np.concatenate([[0], np.cumsum(ranks <= np.repeat(r, kept))])
            alive = np.diff(within[starts - starts[0]])
            some = np.flatnonzero(kept)
            first_matters = ranks[starts[some] - starts[0]] <= np.maximum(r[some], self._depth)
            alive[some] = np.maximum(alive[some], first_matters)
            self.lowest[rows] = _last(self._scores, starts[:-1], alive)

    def _count_ranks(self, starts: Places) -> Places:
        before = self.before[starts[0] : starts[-1]]
        passed = np.concatenate([[0], np.cumsum(before, dtype=np.int64)]) + np.arange(len(before) + 1)
        ranks: Places = passed[1:] - np.repeat(passed[starts[:-1] - starts[0]], np.diff(starts))
        return ranks

    def to_ranks(self) -> RelevantRanks:
        """The ranks of all queries' entries, in the order of the queries."""
        starts, moved = _reorder(self.starts, np.argsort(self.queries))
        return RelevantRanks(starts, self._count_ranks(self.starts)[moved])


def _last(values: Floats, starts: Places, counts: Places) -> Floats:
    """(Q,) the last of every row's first values; inf where there is none."""
    last = np.full(len(counts), np.inf, dtype=np.float32)
    some = counts > 0
    last[some] = values[(starts + counts)[some] - 1]
    return last


def _reorder(starts: Places, order: Places) -> tuple[Places, Places]:
    """New (Q + 1,) starts for rows in another order, and the old place of each of their values."""
    counts = np.diff(starts)[order]
    moved = np.concatenate([[0], np.cumsum(counts)])
    return moved, np.repeat(starts[:-1][order] - moved[:-1], counts) + np.arange(moved[-1])


class _Count:
    """One pass over all pairs of rows (queries, in the entries' order) and columns (gallery items).

    Where the queries are the gallery, rows and columns are the same, and a pair is multiplied once.
    """

    def __init__(self, asked: Asked, products: ExactProducts, entries: _Entries) -> None:
        self._products, self._entries, self._square = products, entries, asked.is_square
        self._places = entries.queries if asked.is_square else np.arange(len(asked.gallery))
        rows = min(len(asked.queries), len(asked.gallery))
        self._turned = rows >= _TURN_FROM * asked.gallery.shape[1]
        axes = find_axes(asked.gallery) if self._turned else None
        self._columns = arrange(asked.gallery, self._places, scale=products.gallery_scale, axes=axes)
        self._rows = self._columns
        if not asked.is_square:
            self._rows = arrange(asked.queries, entries.queries, scale=products.query_scale, axes=axes)
        self._asked, self._errors = asked, products.errors[entries.queries]
        self._row_labels = asked.labels[entries.queries]
        self._column_labels = asked.gallery_labels[self._places]
        self._by_id = np.empty(len(self._places), dtype=np.int64)
        self._by_id[np.argsort(asked.gallery_ids)] = np.arange(len(self._places))
        self._limits = entries.lowest - self._errors

    def run(self, progress: Progress) -> None:
        total = len(self._rows)
        for start in range(0, total, _STAGE_ROWS):
            stop = min(start + _STAGE_ROWS, total)
            if start:
                self._entries.draw_closer()
                self._limits = self._entries.lowest - self._errors
            if np.isfinite(self._limits[start:]).any():
                self._run_stage(slice(start, stop))
            progress(stop, total)

    def _run_stage(self, rows: slice) -> None:
        """All pairs of some rows, but those with earlier ones that were seen from there."""
        first = rows.start if self._square else 0
        m = self._choose_head(rows, first=first)
        columns = Heads.cut(self._columns[first:], m)
        stage = _Stage(rows.start, columns if self._square else Heads.cut(self._rows[rows], m), first, columns)

        def see(tile: Tile) -> list[tuple[int, npt.NDArray[np.intp]]]:
            return self._see_tile(stage, *tile)

        with multiplying_workers() as workers:
            for parts in map_ahead(see, self._tile(rows), workers=workers, ahead=2 * workers):
                for start, counts in parts:
                    self._entries.before[start : start + len(counts)] += counts.astype(np.int32)

    def _tile(self, rows: slice) -> Iterator[Tile]:
        for start in range(rows.start, rows.stop, _PANEL_ROWS):
            panel = slice(start, min(start + _PANEL_ROWS, rows.stop))
            if self._square:
                yield panel, panel
            for column in range(panel.stop if self._square else 0, len(self._columns), _TILE_COLUMNS):
                yield panel, slice(column, min(column + _TILE_COLUMNS, len(self._columns)))

    def _choose_head(self, rows: slice, *, first: int) -> int:
        """How many dimensions to multiply first, by what this would leave to complete of some pairs."""
        dim = int(self._columns.shape[1])
        if not self._turned:
            return dim
        some = np.arange(rows.start, rows.stop, -(-(rows.stop - rows.start) // _PROBED_ROWS))
        others = np.arange(first, len(self._columns), -(-(len(self._columns) - first) // _PROBED_COLUMNS))
        best, least = dim, float(dim)
        for m in sorted({max(1, dim * eighths // 8) for eighths in _HEAD_EIGHTHS} - {dim}):
            left, right = Heads.cut(self._rows[some], m), Heads.cut(self._columns[others], m)
            bounds = left.values @ right.values.T
            passing = (bounds > self._limits[some][:, None]).mean()
            if self._square:
                passing += (bounds > self._limits[others]).mean()
            cost = m + _COMPLETION_COST * float(passing)
            if cost < least:
                best, least = m, cost
        return best

    def _see_tile(self, stage: _Stage, rows: slice, columns: slice) -> list[tuple[int, npt.NDArray[np.intp]]]:
        """Counts to add to `before`, and where."""
        bounds = stage.multiply(rows, columns)
        seen = []
        for hits in _split(np.flatnonzero(bounds > self._limits[rows][:, None])):
            row, column = np.divmod(hits, bounds.shape[1])
            part = self._see(stage, row + rows.start, column + columns.start, bounds.ravel()[hits], asking=rows)
            seen.append(part)
        if self._square and columns != rows:
            for hits in _split(np.flatnonzero(bounds > self._limits[columns])):
                row, column = np.divmod(hits, bounds.shape[1])
                part = self._see(
                    stage, column + columns.start, row + rows.start, bounds.ravel()[hits], asking=columns
                )
                seen.append(part)
        return seen

    def _see(
        self, stage: _Stage, rows: Places, columns: Places, bounds: Floats, *, asking: slice
    ) -> tuple[int, npt.NDArray[np.intp]]:
        others = self._row_labels[rows] != self._column_labels[columns]
        others &= ~self._asked.bar(self._entries.queries[rows], self._places[columns])
        rows, columns = rows[others], columns[others]
        scores = stage.complete(rows, columns, bounds=bounds[others])
        if not stage.columns.whole:
            passing = scores > self._limits[rows]
            rows, columns, scores = rows[passing], columns[passing], scores[passing]
        start, stop = self._entries.starts[asking.start], self._entries.starts[asking.stop]
        keys = self._entries.keys[start:stop]
        highest = np.maximum(scores + self._errors[rows], self._entries.lowest[rows])
        places = np.searchsorted(keys, make_keys(rows, highest))
        doubtful = keys[places] <= make_keys(rows, scores - self._errors[rows])
        exact = self._locate_exactly(rows[doubtful], columns[doubtful]) - start
        return int(start), np.bincount(np.concatenate([places[~doubtful], exact]), minlength=len(keys))

    def _locate_exactly(self, rows: Places, columns: Places) -> Places:
        """The entries of the rows that some items stand right before; those that stand before none are left out."""
        entries, items = self._entries, self._places[columns]
        keys = make_keys(rows, self._products.of_pairs(entries.queries[rows], items))
        low, high = (
            np.searchsorted(entries.keys, keys, side="left"),
            np.searchsorted(entries.keys, keys, side="right"),
        )
        while (tied := low < high).any():  # entries of equal score stand by id
            middle = (low + high) // 2
            earlier = self._by_id[entries.places[middle * tied]] < self._by_id[items]
            low, high = np.where(tied & earlier, middle + 1, low), np.where(tied & ~earlier, middle, high)
        return low[low < entries.starts[rows + 1]]


def _split(hits: Places) -> list[Places]:
    return [hits[start : start + _PAIRS_AT_ONCE] for start in range(0, len(hits), _PAIRS_AT_ONCE)]


@dataclass(frozen=True, slots=True)
class _Stage:
    """Heads of a stage's rows and columns, and the numbers of the first of them."""

    first_row: int
    rows: Heads
    first_column: int
    columns: Heads

    def multiply(self, rows: slice, columns: slice) -> Floats:
        """The products of heads, upper bounds of the rows' products."""
        left = self.rows.values[rows.start - self.first_row : rows.stop - self.first_row]
        right = self.columns.values[columns.start - self.first_column : columns.stop - self.first_column]
        bounds: Floats = left @ right.T
        return bounds

    def complete(self, rows: Places, columns: Places, *, bounds: Floats) -> Floats:
        """The products of pairs of rows; where rows and columns are the same, either may be the earlier."""
        return self.rows.complete(rows - self.first_row, self.columns, columns - self.first_column, bounds=bounds)
