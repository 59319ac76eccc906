"""The nearest others of some rows of a matrix, found exactly and a block at a time by one thread."""

from __future__ import annotations

import numpy as np

from index.embedder import Vectors
from index.exact import NO_ID, Floats, Ids
from index.faiss_library import faiss_threads
from index.progress import Progress, no_progress

_ROWS_AT_ONCE = 512  # between two reports of progress; of 200,000 rows of 64 numbers, 0.6 s


def find_nearest(vectors: Vectors, rows: Ids, *, k: int, progress: Progress = no_progress) -> tuple[Floats, Ids]:
    """The k nearest others of each row.

    Args:
        vectors: (N, D) float32 unit rows.
        rows: (n,) int64 of those that ask; each is removed from its own answer.
        k: at least 1.
        progress: told (done, total) of those that ask.

    Returns:
        (n, k) float32 cosines in falling order and (n, k) int64 rows, `NO_ID` with -inf where there are fewer.
    """
    cosines = np.full((len(rows), k), -np.inf, dtype=np.float32)
    found = np.full((len(rows), k), NO_ID, dtype=np.int64)
    depth = min(k + 1, len(vectors))
    with faiss_threads(1) as faiss:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            asked = rows[start : start + _ROWS_AT_ONCE]
            near_cosines, near = faiss.knn(vectors[asked], vectors, depth, metric=faiss.METRIC_INNER_PRODUCT)
            is_own = near == asked[:, None]
            others_first = np.argsort(is_own, axis=1, kind="stable")[:, : min(k, depth - 1)]
            here = slice(start, start + len(asked)), slice(0, others_first.shape[1])
            cosines[here] = np.take_along_axis(near_cosines, others_first, axis=1)
            found[here] = np.take_along_axis(near, others_first, axis=1)
            progress(start + len(asked), len(rows))
    return cosines, found
