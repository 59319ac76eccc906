"""What a search answers: ids and scores, and of each result what was asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from index.images import valid_text
from retrieval_app.serving.engine import Engine
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.query import RankedHit, Ranking, SearchQuery

FROM_CATALOGUE = frozenset(("label", "path", "source", "metadata"))
DESCRIBED_AT_ONCE = 200  # hits, which take a millisecond


async def describe_search(
    engine: Engine, snapshot: Snapshot, query: SearchQuery, *, include: list[Any]
) -> dict[str, Any]:
    """The answer to a query, found and described; a long one is put together in a thread, for others wait for it."""
    started = time.perf_counter()
    ranking = await engine.search(snapshot, query)
    describe = partial(_describe_ranking, snapshot, query, ranking, include=include)
    answer = await engine.run(describe) if len(ranking.hits) > DESCRIBED_AT_ONCE else describe()
    return {**answer, "took_ms": round((time.perf_counter() - started) * 1000, 3)}


def _describe_ranking(
    snapshot: Snapshot, query: SearchQuery, ranking: Ranking, *, include: list[Any]
) -> dict[str, Any]:
    hits = [_describe_hit(hit) for hit in ranking.hits]
    for name, values in _list_fields(snapshot, query, ranking, include).items():
        for hit, value in zip(hits, values, strict=True):
            hit[name] = value
    return {
        "version": snapshot.version,
        "hits": hits,
        "next_offset": ranking.next_offset,
        "grouped": ranking.grouped,
    }


def _list_fields(
    snapshot: Snapshot, query: SearchQuery, ranking: Ranking, include: list[Any]
) -> dict[str, Iterable[Any]]:
    """What is wanted of each hit besides its id, by name."""
    fields: dict[str, Iterable[Any]] = {}
    if FROM_CATALOGUE.intersection(include):
        rows = [ranking.rows[hit.id] for hit in ranking.hits]
        roots = snapshot.gallery.roots
        listed: dict[str, Iterable[Any]] = {
            "label": (row.label for row in rows),
            "path": (valid_text(row.path) for row in rows),
            "source": (roots[row.source] for row in rows),
            "metadata": (row.metadata for row in rows),
        }
        fields = {name: listed[name] for name in listed if name in include}
    if "band" in include:
        # Learnt from single images that ask: a sum or difference of several has other scores.
        calibration = snapshot.insights.calibration.value if query.is_single else None
        scores = np.array([hit.score for hit in ranking.hits])
        fields["band"] = (
            [None] * len(ranking.hits)
            if calibration is None
            else [band.to_json() for band in calibration.bands(scores)]
        )
    return fields


def _describe_hit(hit: RankedHit) -> dict[str, Any]:
    entry: dict[str, Any] = {"rank": hit.rank, "id": hit.id, "score": round(hit.score, 6)}
    if hit.copies:
        entry["copies"] = [{"id": image_id, "score": round(score, 6)} for image_id, score in hit.copies]
        entry["copies_count"] = hit.copies_count
    return entry
