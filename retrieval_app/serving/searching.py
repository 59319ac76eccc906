"""Searches of one gallery version, answered many at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.catalog.rows import CatalogRow
from index.errors import InputError, RetrievalError
from index.filters.condition import Condition
from index.gallery.reranking import POOL
from index.outputs import SEMANTIC
from index.vectors.exact import measure_cosines
from retrieval_app.reports.duplicates_report import DuplicateReport
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import Crop
from retrieval_app.serving.search_times import SearchTimes

MAX_K = 1000
MAX_OFFSET = 9000
MAX_DUPLICATES = 100  # named under one result
_LEAST_NORM = 1e-6


@dataclass(frozen=True, slots=True)
class QueryPart:
    """An image, photo or vector to search with: exactly one of `image_id`, `photo` and `vector`, or none for an upload.

    Attributes:
        photo: the token of a kept photo.
        vector: (D,) float32 of any length but 0.
        weight: of its unit vector in the query's sum; negative for dissimilar images.
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
        collapse_duplicates: put near-duplicates under the best of them.
        rerank: rank the first ones again by the neighbours that they share with the query.
        describe: give rows of the catalogue with the results.
        by: which of their vectors is compared, `semantic` or `copy`.
    """

    parts: tuple[QueryPart, ...]
    k: int = 24
    offset: int = 0
    min_score: float | None = None
    where: Condition | None = None
    exclude_ids: frozenset[int] = frozenset()
    collapse_duplicates: bool = False
    rerank: bool = False
    describe: bool = False
    by: str = SEMANTIC

    @property
    def is_single(self) -> bool:
        """Whether it asks for what is like one picture or vector."""
        return len(self.parts) == 1 and self.parts[0].weight > 0

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("a search needs at least one image, photo or vector")
        if not (1 <= self.k <= MAX_K and 0 <= self.offset <= MAX_OFFSET):
            raise InputError(
                f"k must be in 1..{MAX_K:,} and offset in 0..{MAX_OFFSET:,}, got {self.k} and {self.offset}"
            )

    @property
    def candidates(self) -> int:
        """How many the index is asked for; one more than shown tells whether there are more."""
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
        duplicates: (id, score) of the near-duplicates put under it, best first, at most `MAX_DUPLICATES`.
        duplicates_count: of all of them.
    """

    rank: int
    id: int
    score: float
    duplicates: tuple[tuple[int, float], ...] = ()
    duplicates_count: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Results, best first.

    Attributes:
        hits: in their order.
        next_offset: of those that follow; None at the end, and where `MAX_OFFSET` does not reach.
        collapsed: whether near-duplicates were put together; None where that was not asked for.
        rows: of the catalogue by id, where they were wanted.
    """

    hits: tuple[RankedHit, ...]
    next_offset: int | None
    collapsed: bool | None = None
    rows: dict[int, CatalogRow] = field(default_factory=dict)


def normalise(vector: Vectors, *, width: int) -> Vectors:
    """The (D,) float32 unit vector of a direction."""
    if vector.shape != (width,):
        raise InputError(f"a query vector must be {width} numbers, got {vector.size}")
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not np.isfinite(norm) or norm < _LEAST_NORM:
        raise InputError("a query vector must be finite numbers that are not all zero")
    return (vector.astype(np.float64) / norm).astype(np.float32)


def combine_parts(vectors: list[Vectors], weights: list[float]) -> Vectors:
    """The (D,) float32 unit vector of the weighted sum of unit vectors; a lone one with a weight above 0 is itself."""
    if len(vectors) == 1 and weights[0] > 0:
        return vectors[0]
    total = np.einsum("i,ij->j", np.array(weights), np.stack(vectors).astype(np.float64))
    norm = float(np.linalg.norm(total))
    if norm < _LEAST_NORM * max(map(abs, weights)):
        raise InputError("the parts of the query cancel each other out; change their weights")
    return (total / norm).astype(np.float32)


Ranked: TypeAlias = tuple[Floats, Ids]


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A query with the vectors of its parts; None for those of the gallery's images, which are read when it is run.

    `duplicates` are the groups that near-duplicates are put together by; None leaves every image by itself.
    """

    snapshot: Snapshot
    query: SearchQuery
    vectors: tuple[Vectors | None, ...]
    duplicates: DuplicateReport | None = None
    times: SearchTimes | None = field(default=None, compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where two may be answered with one search: about as many results of the same members."""
        return id(self.snapshot.gallery), self.query.where, self.query.candidates.bit_length()

    @property
    def excluded(self) -> frozenset[int]:
        """Members that are no results."""
        return self.query.exclude_ids | {part.image_id for part in self.query.parts if part.image_id is not None}


def answer_searches(tasks: Sequence[SearchTask]) -> list[Ranking | Exception]:
    """A ranking, or the error of its query, for each of some tasks with equal keys."""
    began = time.perf_counter()
    for task in tasks:
        if task.times is not None:
            task.times.began, task.times.company = began, len(tasks)
    answers: list[Ranking | Exception | None] = [None] * len(tasks)
    vectors: dict[int, Vectors] = {}
    for number, task in enumerate(tasks):
        try:
            vectors[number] = _find_vector(task)
        except RetrievalError as error:
            answers[number] = error
    most = max((task.query.candidates for task in tasks), default=1)
    if vectors:
        gallery, where = tasks[0].snapshot.gallery, tasks[0].query.where
        ranked = gallery.rank_many(np.stack(list(vectors.values())), k=most, where=where)
        for (number, vector), (scores, ids) in zip(vectors.items(), ranked, strict=True):
            own = tasks[number].query.candidates  # the company a query is in does not lengthen its list
            answers[number] = _make_ranking(tasks[number], vector, (scores[:own], ids[:own]))
    _add_rows(tasks, answers)
    return [answer for answer in answers if answer is not None]


def _find_vector(task: SearchTask) -> Vectors:
    """The (D,) float32 unit vector of a query."""
    gallery = task.snapshot.gallery
    vectors = [
        gallery.vector(part.image_id or 0) if vector is None else vector
        for part, vector in zip(task.query.parts, task.vectors, strict=True)
    ]
    return combine_parts(vectors, [part.weight for part in task.query.parts])


def _make_ranking(task: SearchTask, vector: Vectors, found: Ranked) -> Ranking:
    """The results of a query from `task.query.candidates` candidates, or more where near-duplicates used these up."""
    query, wanted = task.query, task.query.candidates
    end = query.offset + query.k
    while True:
        hits = _choose(task, found)
        below = query.min_score is not None and len(found[1]) and found[0][-1] < query.min_score
        if len(hits) > end or len(found[1]) < wanted or below:
            break
        wanted *= 2
        found = task.snapshot.gallery.rank_many(vector[None], k=wanted, where=query.where)[0]
    shown = tuple(
        _make_hit(task, vector, rank=rank, image_id=image_id, score=score)
        for rank, (image_id, score) in enumerate(hits[query.offset : end], start=query.offset + 1)
    )
    return Ranking(shown, end if end <= MAX_OFFSET and len(hits) > end else None)


def _choose(task: SearchTask, found: Ranked) -> list[tuple[int, float]]:
    """(id, score) of the candidates that count, in the order wanted, of near-duplicates the best alone."""
    least, excluded = task.query.min_score, task.excluded
    kept_for = {} if task.duplicates is None else task.duplicates.kept_for
    chosen: dict[int, tuple[int, float]] = {}
    scores, ids = found
    counts = ~np.isin(ids, list(excluded)) & (least is None or scores >= least)
    scores, ids = scores[counts], ids[counts]
    if task.query.rerank:
        scores, ids = task.snapshot.gallery.rerank(scores, ids, where=task.query.where)
    for image_id, score in zip(ids.tolist(), scores.tolist(), strict=True):
        chosen.setdefault(kept_for.get(image_id, image_id), (image_id, score))
    return list(chosen.values())


def _make_hit(task: SearchTask, vector: Vectors, *, rank: int, image_id: int, score: float) -> RankedHit:
    """A result with the other members that show the same picture and that the query would find."""
    group = None if task.duplicates is None else task.duplicates.find(image_id)
    if group is None:
        return RankedHit(rank, image_id, score)
    gallery, query = task.snapshot.gallery, task.query
    out = {image_id, *task.excluded}
    ids = np.array(sorted(one.id for one in group.images if one.indexed and one.id not in out), dtype=np.int64)
    if query.where is not None:
        ids = ids[gallery.fulfil(ids, query.where)]
    ids = np.setdiff1d(ids, gallery.decided.dropped)
    scores = measure_cosines(gallery.vectors(ids), vector)
    order = np.argsort(-scores, kind="stable")
    if query.min_score is not None:
        order = order[scores[order] >= query.min_score]
    named = order[:MAX_DUPLICATES]
    duplicates = tuple(zip(ids[named].tolist(), scores[named].tolist(), strict=True))
    return RankedHit(rank, image_id, score, duplicates, len(order))


def _add_rows(tasks: Sequence[SearchTask], answers: Sequence[Ranking | Exception | None]) -> None:
    """Put the catalogue's rows to those that want them, with one look into it."""
    wanting = [
        answer
        for task, answer in zip(tasks, answers, strict=True)
        if task.query.describe and isinstance(answer, Ranking)
    ]
    ids = sorted({hit.id for ranking in wanting for hit in ranking.hits})
    if not ids:
        return
    rows = dict(zip(ids, tasks[0].snapshot.gallery.rows(ids), strict=True))
    for ranking in wanting:
        ranking.rows.update((hit.id, rows[hit.id]) for hit in ranking.hits)
