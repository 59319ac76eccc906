"""True nearest neighbours by a scan in float64, and recall of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.arrays import NO_ID, Doubles, Ids, Mask, Vectors
from index.vectors.exact import search

TIE = 1e-6  # what a cosine may be below the true 10th and still be right: the web is full of duplicates
NEIGHBOURS = 10


@dataclass(frozen=True, slots=True)
class Truth:
    """The true neighbours of some queries.

    Attributes:
        ids: (Q, n) int64, n being 10 or all that a filter keeps.
        least: (Q,) float64 cosine of the last of them.
    """

    ids: Ids
    least: Doubles

    def take(self, count: int) -> Truth:
        """That of the first queries."""
        return Truth(self.ids[:count], self.least[:count])


def find_truth(base: Vectors, queries: Vectors, *, allowed: Mask | None = None) -> Truth:
    """The neighbours by a scan in float64 of (N, D) unit rows, or of those that a filter keeps."""
    kept = np.arange(len(base)) if allowed is None else np.flatnonzero(allowed)
    rows = base if allowed is None else base[kept]
    ids = kept[search(queries, rows, k=min(NEIGHBOURS, len(kept))).rows]
    return Truth(ids, score(base, queries, ids).min(axis=1))


def score(base: Vectors, queries: Vectors, ids: Ids) -> Doubles:
    """(Q, k) cosines in float64, -inf where there is no id."""
    found = np.einsum("qkd,qd->qk", base[ids], queries, dtype=np.float64)
    found[ids == NO_ID] = -np.inf
    return found


def find_recall(base: Vectors, queries: Vectors, ids: Ids, *, truth: Truth, allowed: Mask | None = None) -> float:
    """Share of the true neighbours among (Q, k) ids: as many as are as near as the last of them, ties included."""
    right = score(base, queries, ids) >= truth.least[:, None] - TIE
    right &= ~_repeated(ids)
    if allowed is not None:
        right &= allowed[ids]
    wanted = truth.ids.shape[1]
    return float(np.minimum(right.sum(axis=1), wanted).mean() / wanted)


def _repeated(ids: Ids) -> Mask:
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    repeated = np.zeros(ids.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return repeated
