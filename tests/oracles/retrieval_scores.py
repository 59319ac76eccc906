"""Recall@K, MAP@R and R-precision off whole rankings, every product in float64."""

import numpy as np


def rank_gallery(
    queries: np.ndarray,
    gallery: np.ndarray,
    gallery_ids: np.ndarray,
    query_ids: np.ndarray | None,
    *,
    groups: tuple[np.ndarray, np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Of every query, the gallery's rows by (falling float32 of the float64 product, id), itself left out.

    With the groups of queries and gallery also its own group.
    """
    rankings = []
    for row, query in enumerate(queries.astype(np.float64)):
        scores = (gallery.astype(np.float64) * query).sum(axis=1).astype(np.float32)
        ranking = np.lexsort((gallery_ids, -scores))
        if query_ids is not None:
            ranking = ranking[gallery_ids[ranking] != query_ids[row]]
        if groups is not None:
            ranking = ranking[groups[1][ranking] != groups[0][row]]
        rankings.append(ranking)
    return rankings


def score_rankings(
    rankings: list[np.ndarray], query_labels: np.ndarray, gallery_labels: np.ndarray, *, ks: list[int]
) -> dict[str, np.ndarray]:
    """(Q,) hits by K, MAP@R and R-precision of the queries that have a relevant item; labels below 0 are none."""
    rows: list[list[float]] = []
    for label, ranking in zip(query_labels, rankings, strict=True):
        relevant = gallery_labels[ranking] == label
        r = int(relevant.sum())
        if label >= 0 and r:
            precision = relevant.cumsum() / np.arange(1, len(relevant) + 1)
            average = (precision * relevant)[:r].sum() / r
            rows.append([*(float(relevant[:k].any()) for k in ks), average, relevant[:r].sum() / r])
    columns = np.array(rows).reshape(len(rows), len(ks) + 2).T
    return dict(zip([*map(str, ks), "map_at_r", "r_precision"], columns, strict=True))
