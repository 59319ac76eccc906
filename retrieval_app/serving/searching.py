"""Searches of one gallery version, answered many at a time, and their timings for the log of slow requests."""

import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.catalog.rows import CatalogRow
from index.errors import InputError, RetrievalError
from index.filters.condition import Among, And, Compare, Condition, HasWord, IsNull, Like, Not, Or
from index.gallery.gallery import Gallery
from index.gallery.reranking import POOL
from index.outputs import SEMANTIC
from index.vectors.exact import measure_cosines
from retrieval_app.reports.duplicates_report import DuplicateReport
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import Crop

MAX_K = 1000
MAX_OFFSET = 9000
MAX_DUPLICATES = 100  # named under one result
_LEAST_NORM = 1e-6
_MOST_FILTER_CHARACTERS = 300  # in the log


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
        exclude_ids: members that are no results; those of the query never are.
        collapse_duplicates: put near-duplicates under the best of them.
        rerank: rank the first ones again by the neighbours that they share with the query.
        describe: add rows of the catalogue to the results.
        by: the output whose vectors are compared, `semantic` or `copy`.
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
        """Whether it has one image, photo or vector, with a positive weight."""
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
        """The number of results to ask the index for, one more than are shown."""
        shown = self.offset + self.k + 1
        ranked = max(shown, POOL) if self.rerank else shown
        return ranked + len(self.exclude_ids) + len(self.parts)


@dataclass(frozen=True, slots=True)
class RankedHit:
    """One result, with (id, score) of at most `MAX_DUPLICATES` of its `duplicates_count` near-duplicates."""

    rank: int
    id: int
    score: float
    duplicates: tuple[tuple[int, float], ...] = ()
    duplicates_count: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Results, best first.

    Attributes:
        next_offset: of the next page; None at the end, and beyond `MAX_OFFSET`.
        collapsed: whether near-duplicates were collapsed; None where the query does not collapse.
        rows: of the catalogue by id, where the query has `describe`.
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
    """The (D,) float32 unit vector of the weighted sum of unit vectors."""
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
    """A query with the vectors of its parts; None for the gallery's images, whose vectors the search reads.

    Near-duplicates are collapsed by `duplicates`; None leaves every image by itself.
    """

    snapshot: Snapshot
    query: SearchQuery
    vectors: tuple[Vectors | None, ...]
    duplicates: DuplicateReport | None = None
    times: "SearchTimes | None" = field(default=None, compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for queries that one search can answer: the same members, about as many results."""
        return id(self.snapshot.gallery), self.query.where, self.query.candidates.bit_length()

    @property
    def excluded(self) -> frozenset[int]:
        """Members that are no results."""
        return self.query.exclude_ids | {part.image_id for part in self.query.parts if part.image_id is not None}


def answer_searches(tasks: Sequence[SearchTask]) -> list[Ranking | Exception]:
    """A ranking or an error for each of some tasks with equal keys."""
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
            own = tasks[number].query.candidates  # a batch does not lengthen its list
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
    """The results of a query, from more candidates where near-duplicates used them up."""
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
    """(id, score) of the candidates that count, in order, of near-duplicates only the best."""
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
    """A result with the near-duplicates that the query would find too."""
    group = None if task.duplicates is None else task.duplicates.find(image_id)
    if group is None:
        return RankedHit(rank, image_id, score)
    gallery, query = task.snapshot.gallery, task.query
    out = {image_id, *task.excluded}
    ids = np.array(sorted(one.id for one in group.images if one.indexed and one.id not in out), dtype=np.int64)
    if query.where is not None:
        ids = ids[gallery.fulfil(ids, query.where)]
    ids = np.setdiff1d(ids, gallery.decided.left_out)
    scores = measure_cosines(gallery.vectors(ids), vector)
    order = np.argsort(-scores, kind="stable")
    if query.min_score is not None:
        order = order[scores[order] >= query.min_score]
    named = order[:MAX_DUPLICATES]
    duplicates = tuple(zip(ids[named].tolist(), scores[named].tolist(), strict=True))
    return RankedHit(rank, image_id, score, duplicates, len(order))


def _add_rows(tasks: Sequence[SearchTask], answers: Sequence[Ranking | Exception | None]) -> None:
    """Add rows of the catalogue, read at once, to the rankings whose queries want them."""
    pairs = zip(tasks, answers, strict=True)
    wanting = [found for task, found in pairs if task.query.describe and isinstance(found, Ranking)]
    ids = sorted({hit.id for ranking in wanting for hit in ranking.hits})
    if not ids:
        return
    rows = dict(zip(ids, tasks[0].snapshot.gallery.rows(ids), strict=True))
    for ranking in wanting:
        ranking.rows.update((hit.id, rows[hit.id]) for hit in ranking.hits)


def describe_shape(condition: Condition) -> str:
    """Columns and comparisons of a filter without its values."""
    match condition:
        case And(parts) | Or(parts):
            inner = (f"({describe_shape(p)})" if isinstance(p, And | Or) else describe_shape(p) for p in parts)
            return (" AND " if isinstance(condition, And) else " OR ").join(inner)
        case Not(part):
            return f"NOT ({describe_shape(part)})"
        case HasWord():
            return "WORD ?"
        case Compare(column, sign, _):
            rest = f"{sign} ?"
        case Among(column, constants):
            rest = f"IN ({len(constants)})"
        case Like(column, _):
            rest = "LIKE ?"
        case IsNull(column):
            rest = "IS NULL"
    return f"{'.'.join(column.names)} {rest}"


class SearchTimes:
    """Seconds of the steps of one search.

    Attributes:
        began: when a worker took it, by `time.perf_counter`; 0.0 until then.
        company: the number of searches in its batch.
    """

    def __init__(self, query: SearchQuery, gallery: Gallery) -> None:
        self.query, self._gallery = query, gallery
        self.began, self.company = 0.0, 0
        self._steps: dict[str, float] = {}
        self._last = time.perf_counter()
        self._is_filter_known = False

    def mark(self, step: str) -> float:
        """End a step; its seconds."""
        now = time.perf_counter()
        seconds = self._steps[step] = now - self._last
        self._last = now
        self._is_filter_known |= step == "condition"
        return seconds

    def end(self) -> None:
        """End the search, answered or not."""
        now = time.perf_counter()
        if self.began:
            self._steps["waiting"], self._steps["search"] = self.began - self._last, now - self.began
        else:
            self._steps["unfinished"] = now - self._last

    def to_json(self) -> dict[str, Any]:
        """The search without the values that its client typed, and the milliseconds of its steps."""
        query, where = self.query, self.query.where
        told: dict[str, Any] = {
            "k": query.k,
            "offset": query.offset,
            "by": query.by,
            "queries": list(map(_name_part, query.parts)),
            "candidates": query.candidates,
            "rerank": query.rerank,
            "collapse_duplicates": query.collapse_duplicates,
        }
        if where is not None:  # names of the gallery's own columns are no secrets; others may be anything
            shape = describe_shape(where) if self._is_filter_known else "unknown"
            told["filter"] = shape if len(shape) <= _MOST_FILTER_CHARACTERS else f"{shape[:_MOST_FILTER_CHARACTERS]}…"
            if self._gallery.remembers(where):
                told["filter_keeps"] = len(self._gallery.keep(where).ids)
        told["answered_with"] = self.company
        told["ms"] = {name: round(seconds * 1000, 3) for name, seconds in list(self._steps.items())}
        return told


@dataclass(slots=True)
class SearchWatch:
    """Timings of one request: its searches, the embedding of the photo in its body, the arrival of the body."""

    searches: list[SearchTimes] = field(default_factory=list)
    embed_s: float = 0.0
    body_s: float = 0.0


watching: ContextVar[SearchWatch | None] = ContextVar("watching", default=None)
"""The timings of the current request."""


def _name_part(part: QueryPart) -> str:
    kind = "image" if part.image_id is not None else "photo" if part.photo is not None else "vector"
    return f"{kind} part" if part.crop is not None else kind
