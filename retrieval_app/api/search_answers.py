"""What a search answers: ids and scores, and of each result what was asked for."""

from __future__ import annotations

import time
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from index.outputs import KIND, PICTURE
from retrieval_app.api.row_fields import describe_row, needs_row
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import Upload
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.searching import RankedHit, Ranking, SearchQuery

DESCRIBED_AT_ONCE = 200  # hits, which take a millisecond


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
            hit["band"] = None if band is None else band.to_json()
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
