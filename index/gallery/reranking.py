"""Re-ranking by shared neighbours: results with the same nearest neighbours as the query rise.

A local form of k-reciprocal encoding (Zhong et al., "Re-ranking Person Re-identification with k-reciprocal Encoding",
2017, equations 7 to 12), with the paper's k1 and lambda. The query and each of the best results are described by their
nearest members; the overlap of two descriptions is mixed with the distance. The first result keeps its place, because
it is mostly right.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids

POOL = 100  # results that are ranked again
NEIGHBOURS = 20  # k1: members that describe a result, itself among them
AVERAGED = 3  # k2: descriptions that are averaged, of a result and of its nearest ones in the pool
DISTANCE_SHARE = 0.3  # lambda: of the plain distance in the mixed one


def rank_by_neighbours(
    scores: Floats, ids: Ids, *, search_near: Callable[[Ids], tuple[Floats, Ids]]
) -> npt.NDArray[np.int64]:
    """The new order of results: (n,) int64 places in the old one; those behind the first `POOL` stay.

    Args:
        scores: (n,) float32 cosines, falling.
        ids: (n,) int64, without the query's own.
        search_near: (m,) ids to (m, `NEIGHBOURS`) cosines and ids of the nearest members, padded with `NO_ID`.
    """
    order = np.arange(len(ids))
    pool = min(POOL, len(ids))
    if pool < 3:  # the first one stays
        return order
    near_scores, near = search_near(ids[:pool])
    overlap = _measure_overlap(scores, ids, near_scores, near, pool=pool)
    mixed = (1 - DISTANCE_SHARE) * (1 - overlap) + DISTANCE_SHARE * (1 - scores[:pool].astype(np.float64))
    mixed[0] = -np.inf
    order[:pool] = np.argsort(mixed, kind="stable")
    return order


def _measure_overlap(scores: Floats, ids: Ids, near_scores: Floats, near: Ids, *, pool: int) -> npt.NDArray[np.float64]:
    """(pool,) in 0..1: the weighted Jaccard index of each result's neighbours and the query's."""
    width = near.shape[1]
    asking_scores, asking = np.full((1, width), -np.inf), np.full((1, width), NO_ID, dtype=np.int64)
    first = min(width, len(ids))
    asking_scores[0, :first], asking[0, :first] = scores[:first], ids[:first]
    described = _describe(np.vstack([near_scores, asking_scores]), np.vstack([near, asking]))
    by_id, nearest = np.argsort(ids[:pool]), near[:, :AVERAGED]
    places = by_id[np.searchsorted(ids[:pool], nearest, sorter=by_id).clip(max=pool - 1)]
    in_pool = np.where(ids[places] == nearest, places, -1)  # (pool, `AVERAGED`); -1 for those outside it
    beside = np.vstack([in_pool, np.arange(-1, AVERAGED - 1)])  # of the query its first results
    averaged = np.stack(
        [
            described[[row, *(place for place in places[places >= 0] if place != row)][:AVERAGED]].mean(axis=0)
            for row, places in enumerate(beside)
        ]
    )
    shared: npt.NDArray[np.float64] = np.minimum(averaged[:pool], averaged[pool]).sum(axis=1)
    return np.asarray(shared / (2 - shared))


def _describe(scores: npt.NDArray[np.floating], ids: Ids) -> npt.NDArray[np.float64]:
    """(m, U) rows of sum 1 over all members named: exp(-squared distance) of near ones, else 0."""
    members, columns = np.unique(ids, return_inverse=True)
    weights = np.where(ids == NO_ID, 0, np.exp(2 * np.maximum(scores.astype(np.float64), -1) - 2))
    described = np.zeros((len(ids), len(members)))
    np.put_along_axis(described, columns.reshape(ids.shape), weights, axis=1)
    return np.asarray(described / np.maximum(described.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny))
