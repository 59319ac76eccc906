"""Vectors that look like those of real galleries, and what is true of them, in float64."""

from collections.abc import Sequence

import numpy as np

from index.arrays import NO_ID
from index.vectors.exact import search
from index.vectors.shards import VectorRows

_CLUSTERS = 40
_LEAST_NOISE, _MOST_NOISE = 0.3, 0.9
_COPIED_SHARE = 0.02
_TWINS = 40  # copies of one vector


class VectorSource:
    """Clusters of very different sizes and widths; most of the energy lies along the first of all directions.

    Attributes:
        width: numbers of a vector.
    """

    def __init__(self, *, width: int, decay: float = 0.5, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.width = width
        self._spectrum = (1 + np.arange(width)) ** -decay
        self._turn = np.linalg.qr(random.normal(size=(width, width)))[0]
        self._centres = random.normal(size=(_CLUSTERS, width))
        self._noise = random.uniform(_LEAST_NOISE, _MOST_NOISE, size=_CLUSTERS)
        sizes = 1 / (1 + np.arange(_CLUSTERS))
        self._sizes = sizes / sizes.sum()

    def draw(self, count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(count, width) float32 unit vectors, and the (count,) numbers of their clusters."""
        random = np.random.default_rng(seed)
        clusters = random.choice(_CLUSTERS, size=count, p=self._sizes)
        drawn = self._centres[clusters] + self._noise[clusters, None] * random.normal(size=(count, self.width))
        return unit((drawn * self._spectrum) @ self._turn), clusters

    def draw_gallery(self, count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """As `draw`, with copies: of some vectors one, of the first many."""
        vectors, clusters = self.draw(count, seed=seed)
        random = np.random.default_rng(seed + 1)
        places = random.permutation(count)[: int(_COPIED_SHARE * count) + _TWINS]
        sources = random.integers(0, count, size=len(places))
        sources[:_TWINS] = places[0]
        vectors[places], clusters[places] = vectors[sources], clusters[sources]
        return vectors, clusters


def unit(vectors: np.ndarray) -> np.ndarray:
    """The same directions at length 1, as float32."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def spread_ids(count: int, *, seed: int = 0) -> np.ndarray:
    """(count,) int64 rising ids with gaps."""
    return np.cumsum(np.random.default_rng(seed).integers(1, 4, size=count)).astype(np.int64)


def split_rows(vectors: np.ndarray, ids: np.ndarray, *, ends: Sequence[int]) -> list[VectorRows]:
    """Shards of these rows, each up to one of the ends."""
    starts = [0, *ends]
    return [
        VectorRows(ids[start:end], vectors[start:end]) for start, end in zip(starts, [*ends, len(ids)], strict=True)
    ]


def exact_scores(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """(Q, N) float32 products, summed in float64 and rounded once."""
    return (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)


def search_by_id(
    queries: np.ndarray, vectors: np.ndarray, *, k: int, ids: np.ndarray, exclude: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What an exact search of rows with rising ids finds: (Q, k) scores and ids; a query does not find one id."""
    own = None
    if exclude is not None:
        places = np.searchsorted(ids, exclude).clip(max=max(0, len(ids) - 1))
        own = np.where(ids[places] == exclude, places, NO_ID) if len(ids) else np.full(len(queries), NO_ID)
    found = search(queries, vectors, k=k, own=own)
    return found.cosines, np.append(ids, NO_ID)[found.rows]


def measure_recall(found_ids: np.ndarray, scores: np.ndarray, ids: np.ndarray, *, k: int) -> float:
    """Share of the k nearest that (Q, k) found ids are as good as; (Q, N) scores are -inf where nothing may be found.

    A row counts if its exact score is at least that of the true k-th less 1e-6: copies are as good as each other.
    """
    wanted = np.minimum(np.isfinite(scores).sum(axis=1), k)
    worst = np.full(len(scores), -np.inf)
    if k <= scores.shape[1]:
        worst = -np.partition(-scores, k - 1, axis=1)[:, k - 1]  # -inf where fewer may be found
    places = np.searchsorted(ids, found_ids).clip(max=scores.shape[1] - 1)
    own = np.where(found_ids == NO_ID, -np.inf, np.take_along_axis(scores, places, axis=1))
    good = (np.isfinite(own) & (own >= worst[:, None] - 1e-6)).sum(axis=1)
    return float((np.minimum(good, wanted) / np.maximum(wanted, 1))[wanted > 0].mean())
