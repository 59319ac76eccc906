"""The nearest others with the same label as a row, and with another one, which people compare it with."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import numpy as np

from index.embedder import Vectors
from index.exact import NO_ID, Floats, Ids
from index.metrics import Labels
from index.progress import Progress
from retrieval_app.insights.nearest import find_nearest

WITNESSES = 3
_LOOKED_AT = 48  # nearest rows, among which those with another label are looked for
_SPARE = 5  # of the same label, in place of copies

Witnesses: TypeAlias = dict[int, list[tuple[int, float]]]


def find_agreeing(vectors: Vectors, labels: Labels, *, groups: Ids, asked: Ids, progress: Progress) -> Witnesses:
    """(row, cosine) of the nearest rows with the same label and of another group, for each row that is asked for.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64.
        groups: (N,) int64; rows of one group are copies.
        asked: (n,) int64 rows.
        progress: told (done, total) of these.
    """
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], [labels[asked], labels[asked] + 1])  # (2, n)
    found: Witnesses = {}
    for start, end in np.unique(ends, axis=1).T.tolist():
        rows = order[start:end]  # rising, for the sort is stable
        here = asked[ends[0] == start]
        cosines, near = find_nearest(
            vectors[rows],
            np.searchsorted(rows, here),
            k=WITNESSES + _SPARE,
            progress=partial(_tell_sum, progress, len(found), len(asked)),
        )
        others = np.where(near == NO_ID, NO_ID, rows[near])
        found.update(_choose(here, others, cosines, allowed=groups[others] != groups[here][:, None]))
    return found


def find_disagreeing(
    vectors: Vectors, labels: Labels, *, groups: Ids, asked: Ids, progress: Progress
) -> Witnesses:
    """As `find_agreeing` with another label, but among the 48 nearest of all: a row may have fewer, or none."""
    cosines, others = find_nearest(vectors, asked, k=_LOOKED_AT, progress=progress)
    allowed = (labels[others] != labels[asked][:, None]) & (groups[others] != groups[asked][:, None])
    return _choose(asked, others, cosines, allowed=allowed)


def _tell_sum(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


def _choose(asked: Ids, others: Ids, cosines: Floats, *, allowed: Ids) -> Witnesses:
    found: Witnesses = {}
    for row, rows, scores, usable in zip(
        asked.tolist(), others, cosines, allowed & (others != NO_ID), strict=True
    ):
        best = np.flatnonzero(usable)[:WITNESSES]
        found[row] = list(zip(rows[best].tolist(), scores[best].tolist(), strict=True))
    return found
