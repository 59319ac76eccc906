"""The queries and rankings of the server: what a search asks with, and the ids, scores and rows that it answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from index.arrays import Vectors
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.filters.condition import Condition
from index.gallery.reranking import POOL
from index.outputs import KIND
from retrieval_app.serving.photos import Crop

MAX_K = 1000
MAX_OFFSET = 9000
MAX_DUPLICATES = 100  # named under one result
_LEAST_NORM = 1e-6


@dataclass(frozen=True, slots=True)
class QueryPart:
    """One thing to be like, or with a negative weight unlike: exactly one of `image_id`, `photo` and `vector`.

    None of them is a photo that comes beside the query.

    Attributes:
        image_id: an image of the gallery.
        photo: the token of a photo that is kept.
        vector: (D,) float32 of any length but 0.
        weight: of its unit vector in the sum that is searched with.
        crop: the part of the picture that counts.
    """

    image_id: int | None = None
    photo: str | None = None
    vector: Vectors | None = None
    weight: float = 1.0
    crop: Crop | None = None


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search.

    Attributes:
        parts: at least one.
        k: results wanted.
        offset: results to leave out first.
        min_score: results below are left out.
        where: which members count.
        exclude_ids: members that are no results; those asked with never are.
        group_copies: put near-duplicates under the best of them.
        rerank: rank the first ones again by the neighbours that they share with the query.
        describe: give rows of the catalogue with the results.
        by: which of their vectors is compared, that of `kind` or of `picture`.
    """

    parts: tuple[QueryPart, ...]
    k: int = 24
    offset: int = 0
    min_score: float | None = None
    where: Condition | None = None
    exclude_ids: frozenset[int] = frozenset()
    group_copies: bool = False
    rerank: bool = False
    describe: bool = False
    by: str = KIND

    @property
    def is_single(self) -> bool:
        """Whether it asks for what is like one picture or vector."""
        return len(self.parts) == 1 and self.parts[0].weight > 0

    @property
    def candidates(self) -> int:
        """How many the index is asked for, before near-duplicates are put together."""
        shown = self.offset + self.k + 1
        ranked = max(shown, POOL) if self.rerank else shown
        return ranked + len(self.exclude_ids) + len(self.parts)


@dataclass(frozen=True, slots=True)
class RankedHit:
    """One result.

    Attributes:
        rank: from 1.
        id: of the member.
        score: cosine similarity.
        copies: (id, score) of the near-duplicates put under it, best first, at most `MAX_DUPLICATES`.
        copies_count: of all of them.
    """

    rank: int
    id: int
    score: float
    copies: tuple[tuple[int, float], ...] = ()
    copies_count: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Results, best first.

    Attributes:
        hits: in their order.
        next_offset: of those that follow; None at the end, and where `MAX_OFFSET` does not reach.
        grouped: whether near-duplicates were put together; None where that was not asked for.
        rows: of the catalogue by id, where they were wanted.
    """

    hits: tuple[RankedHit, ...]
    next_offset: int | None
    grouped: bool | None = None
    rows: dict[int, CatalogRow] = field(default_factory=dict)


def normalise(vector: Vectors, *, width: int) -> Vectors:
    """The (D,) float32 unit vector of a direction.

    Raises:
        InputError: another width, a number that is not finite, or no direction.
    """
    if vector.shape != (width,):
        raise InputError(f"a query vector must be {width} numbers, got {vector.size}")
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not np.isfinite(norm) or norm < _LEAST_NORM:
        raise InputError("a query vector must be finite numbers that are not all zero")
    return (vector.astype(np.float64) / norm).astype(np.float32)


def combine_parts(vectors: list[Vectors], weights: list[float]) -> Vectors:
    """The (D,) float32 unit vector of the weighted sum of unit vectors; a lone one with a weight above 0 is itself.

    Raises:
        InputError: the sum is nothing, as of one vector more and less.
    """
    if len(vectors) == 1 and weights[0] > 0:
        return vectors[0]
    total = np.einsum("i,ij->j", np.array(weights), np.stack(vectors).astype(np.float64))
    norm = float(np.linalg.norm(total))
    if norm < _LEAST_NORM * max(map(abs, weights)):
        raise InputError("the parts of the query cancel each other out; change their weights")
    return (total / norm).astype(np.float32)
