"""Timings of the searches of one request, for the log of slow requests."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from index.filters.condition import list_columns

if TYPE_CHECKING:
    from index.gallery.gallery import Gallery
    from retrieval_app.serving.searching import QueryPart, SearchQuery


_MOST_CHARACTERS = 300  # of the names of columns


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
            "k": query.k, "offset": query.offset, "by": query.by, "queries": list(map(_name_part, query.parts)),
            "candidates": query.candidates, "rerank": query.rerank, "collapse_duplicates": query.collapse_duplicates,
        }  # fmt: skip
        if where is not None:  # names of the gallery's own columns are no secrets; others may be anything
            columns = ", ".join(".".join(column.names) for column in list_columns(where))
            told["filter"] = columns[:_MOST_CHARACTERS] if self._is_filter_known else "unknown"
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
