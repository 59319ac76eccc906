"""Searches of one gallery version, answered many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from index.embedder import Vectors
from index.errors import InputError, RetrievalError
from index.exact import Floats, Ids
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.query import RankedHit, Ranking, SearchQuery, combine_parts

Ranked: TypeAlias = tuple[Floats, Ids]
Keepers: TypeAlias = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A query with the vectors of its parts; None for those of the gallery's images, which are read when it is run."""

    snapshot: Snapshot
    query: SearchQuery
    vectors: tuple[Vectors | None, ...]
    keepers: Keepers | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where two may be answered with one search: about as many results of the same members."""
        return id(self.snapshot), self.query.where, _count_wanted(self.query).bit_length()


def _count_wanted(query: SearchQuery) -> int:
    return query.offset + query.k + 1 + len(query.exclude_ids) + len(query.parts)


def answer_searches(tasks: Sequence[SearchTask]) -> list[Ranking | Exception]:
    """A ranking, or the error of its query, for each of some tasks with equal keys."""
    answers: list[Ranking | Exception | None] = [None] * len(tasks)
    vectors: dict[int, Vectors] = {}
    for number, task in enumerate(tasks):
        try:
            vectors[number] = _find_vector(task)
        except RetrievalError as error:
            answers[number] = error
    wanted = max((_count_wanted(task.query) for task in tasks), default=1)
    if vectors:
        gallery, where = tasks[0].snapshot.gallery, tasks[0].query.where
        ranked = gallery.rank_many(np.stack(list(vectors.values())), k=wanted, where=where)
        for number, found in zip(vectors, ranked, strict=True):
            answers[number] = _make_ranking(tasks[number], vectors[number], found, complete=len(found[1]) < wanted)
    _add_rows(tasks, answers)
    return [answer for answer in answers if answer is not None]


def _find_vector(task: SearchTask) -> Vectors:
    """The (D,) float32 unit vector of a query.

    Raises:
        InputError: no such image, or nothing is left of the sum.
    """
    gallery = task.snapshot.gallery
    vectors = [
        gallery.vector(part.image_id or 0) if vector is None else vector
        for part, vector in zip(task.query.parts, task.vectors, strict=True)
    ]
    return combine_parts(vectors, [part.weight for part in task.query.parts])


def _make_ranking(task: SearchTask, vector: Vectors, found: Ranked, *, complete: bool) -> Ranking:
    """The results of a query from a list of candidates, which is made longer where near-duplicates used it up."""
    query = task.query
    excluded = query.exclude_ids | {part.image_id for part in query.parts if part.image_id is not None}
    while True:
        groups = _group(found, excluded=excluded, min_score=query.min_score, keepers=task.keepers)
        ended = complete or (query.min_score is not None and _lowest(found) < query.min_score)
        if ended or len(groups) > query.offset + query.k:
            break
        wanted = 2 * len(found[1])
        found = task.snapshot.gallery.rank_many(vector[None], k=wanted, where=query.where)[0]
        complete = len(found[1]) < wanted
    end = query.offset + query.k
    hits = tuple(
        RankedHit(rank, group[0][0], group[0][1], tuple(group[1:]))
        for rank, group in enumerate(groups[query.offset : end], start=query.offset + 1)
    )
    return Ranking(hits, end if len(groups) > end else None)


def _lowest(found: Ranked) -> float:
    return float(found[0][-1]) if len(found[0]) else 1.0


def _group(
    found: Ranked, *, excluded: frozenset[int], min_score: float | None, keepers: Keepers | None
) -> list[list[tuple[int, float]]]:
    """(id, score) of the candidates that count, near-duplicates with the best of them."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for image_id, score in zip(found[1].tolist(), found[0].tolist(), strict=True):
        if image_id in excluded or (min_score is not None and score < min_score):
            continue
        groups.setdefault(keepers.get(image_id, image_id) if keepers else image_id, []).append((image_id, score))
    return list(groups.values())


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


def check_query(query: SearchQuery, *, max_results: int) -> None:
    """Refuse a query that no answer is given to.

    Raises:
        InputError: nothing to search with, or a list that would be too long.
    """
    if not query.parts:
        raise InputError("a search needs at least one image, photo or vector")
    if query.k < 1 or query.offset < 0 or query.offset + query.k > max_results:
        raise InputError(
            f"k must be at least 1 and offset + k at most {max_results:,}, got {query.k} and {query.offset}"
        )
