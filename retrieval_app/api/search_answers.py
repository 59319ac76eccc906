"""What a search answers: ids and scores, and of each result what was asked for."""

from __future__ import annotations

import time
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from pydantic import Field

from index.outputs import KIND, PICTURE
from retrieval_app.api.schemas import Answer, Versioned
from retrieval_app.insights.calibration import Band
from retrieval_app.review.places import describe_row, needs_row
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import Upload
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.searching import RankedHit, Ranking, SearchQuery

DESCRIBED_AT_ONCE = 200  # hits, which take a millisecond


class CopyHit(Answer):
    """A near-duplicate that is folded into a result."""

    id: int
    score: float


class SearchHit(Answer):
    """One result; what was not asked for by `include` is left out."""

    rank: int
    id: int
    score: float = Field(description="cosine similarity")
    label: str | None = None
    given_label: str | None = Field(
        default=None, description="the label that its source gave, only where a decision changed it"
    )
    path: str | None = None
    source: str | None = None
    metadata: dict[str, Any] | None = None
    band: Band | None = Field(
        default=None,
        description="of a search with one image or photo; null for others, which scores mean less for",
    )
    is_copy: bool | None = Field(
        default=None, description="of a search by picture: whether the score says that it is the same picture"
    )
    copies: list[CopyHit] = Field(default=[], description="at most 100 of them")
    copies_count: int = 0


class SearchResponse(Versioned):
    """Results, best first, from one version of the gallery."""

    took_ms: float
    hits: list[SearchHit]
    next_offset: int | None = Field(description="the offset of the next page; null where this was the last")
    grouped: bool | None = Field(
        description="whether near-duplicates were folded; false while they are still looked for, null where not asked"
    )


class BatchResponse(Answer):
    """The answers in the order of the searches."""

    results: list[SearchResponse]


class PhotoAnswer(Answer):
    """A photo that is kept in memory for a while, by its token; its size in pixels."""

    photo: str
    name: str
    width: int
    height: int


class EmbedAnswer(Answer):
    """The unit vector of a photo."""

    vector: list[float]
    embedding_dim: int
    model_sha256: str


async def describe_search(
    engine: Engine,
    snapshot: Snapshot,
    query: SearchQuery,
    *,
    include: list[Any],
    folders: bool,
    upload: Upload | None = None,
) -> dict[str, Any]:
    """The answer to a query, found and described; a long one is put together in a thread, for others wait for it."""
    started = time.perf_counter()
    ranking = await engine.search(snapshot, query, upload=upload)
    describe = partial(_describe_ranking, snapshot, query, ranking, include=include, folders=folders)
    answer = await engine.run(describe) if len(ranking.hits) > DESCRIBED_AT_ONCE else describe()
    return {**answer, "took_ms": round((time.perf_counter() - started) * 1000, 3)}


def _describe_ranking(
    snapshot: Snapshot, query: SearchQuery, ranking: Ranking, *, include: list[Any], folders: bool
) -> dict[str, Any]:
    hits = [_describe_hit(hit) for hit in ranking.hits]
    picture = snapshot.gallery.manifest.picture
    if query.by == PICTURE and picture is not None:
        for hit in hits:
            hit["is_copy"] = hit["score"] >= picture["threshold"]
    if needs_row(include):
        for hit in hits:
            hit.update(describe_row(snapshot.gallery, ranking.rows[hit["id"]], include=include, folders=folders))
    if "band" in include:
        # Learnt from single images that ask: a sum or difference of several has other scores.
        is_told = query.is_single and query.by == KIND
        calibration = snapshot.insights.calibration.value if is_told else None
        bands = [] if calibration is None else calibration.bands(np.array([hit.score for hit in ranking.hits]))
        for hit, band in zip_longest(hits, bands):
            hit["band"] = band
    return {
        "version": snapshot.version,
        "hits": hits,
        "next_offset": ranking.next_offset,
        "grouped": ranking.grouped,
    }


def _describe_hit(hit: RankedHit) -> dict[str, Any]:
    entry: dict[str, Any] = {"rank": hit.rank, "id": hit.id, "score": round(hit.score, 6)}
    if hit.copies:
        entry["copies"] = [{"id": image_id, "score": round(score, 6)} for image_id, score in hit.copies]
        entry["copies_count"] = hit.copies_count
    return entry
