"""Timings of the searches of one request, for the log of slow requests."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from index.filters.condition import Among, And, Column, Compare, Condition, HasWord, IsNull, Like, Not, Or

if TYPE_CHECKING:
    from index.gallery.gallery import Gallery
    from retrieval_app.serving.searching import QueryPart, SearchQuery


_MOST_CHARACTERS = 300


def describe_shape(condition: Condition) -> str:
    """Columns and comparisons of a filter, at most 300 characters of them."""
    text = _describe(condition)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _describe(condition: Condition) -> str:
    match condition:
        case And(parts) | Or(parts):
            word = " AND " if isinstance(condition, And) else " OR "
            return word.join(_describe_part(part) for part in parts)
        case Not(part):
            return f"NOT ({_describe(part)})"
        case Compare(column, sign, _):
            return f"{_name(column)} {sign} ?"
        case Among(column, constants):
            return f"{_name(column)} IN ({len(constants)})"
        case Like(column, _):
            return f"{_name(column)} LIKE ?"
        case IsNull(column):
            return f"{_name(column)} IS NULL"
        case HasWord():
            return "WORD ?"


def _describe_part(part: Condition) -> str:
    return f"({_describe(part)})" if isinstance(part, And | Or) else _describe(part)


def _name(column: Column) -> str:
    return ".".join(column.names)


class SearchTimes:
    """One search, with the seconds of its steps in their order.

    Attributes:
        began: when a worker took it, as `time.perf_counter` has it; 0.0 until then.
        company: searches that were answered with it, itself among them.
    """

    def __init__(self, query: SearchQuery, gallery: Gallery) -> None:
        self.query, self._gallery = query, gallery
        self.began, self.company = 0.0, 0
        self._steps: dict[str, float] = {}
        self._last = time.perf_counter()
        self._is_filter_known = False

    def mark(self, step: str) -> float:
        """A step has ended here; the seconds that it took."""
        now = time.perf_counter()
        seconds = self._steps[step] = now - self._last
        self._last = now
        self._is_filter_known |= step == "condition"
        return seconds

    def end(self) -> None:
        """The search was answered, or was not."""
        now = time.perf_counter()
        if self.began:
            self._steps["waiting"], self._steps["search"] = self.began - self._last, now - self.began
        else:
            self._steps["unfinished"] = now - self._last

    def to_json(self) -> dict[str, Any]:
        """The search without a value that anybody typed, and the milliseconds of its steps."""
        query, where = self.query, self.query.where
        told: dict[str, Any] = {
            "k": query.k, "offset": query.offset, "by": query.by, "queries": list(map(_name_part, query.parts)),
            "candidates": query.candidates, "rerank": query.rerank, "group_copies": query.group_copies,
        }  # fmt: skip
        if where is not None:  # the names of columns that there are are no secrets; others may be anything
            told["filter"] = describe_shape(where) if self._is_filter_known else "unknown"
            if self._gallery.remembers(where):
                told["filter_keeps"] = len(self._gallery.keep(where).ids)
        told["answered_with"] = self.company
        told["ms"] = {name: round(seconds * 1000, 3) for name, seconds in list(self._steps.items())}
        return told


@dataclass(slots=True)
class SearchWatch:
    """What the searches of one request took.

    Attributes:
        searches: each of them.
        embed_s: seconds in which the photo that is the body was decoded and embedded.
        body_s: seconds in which the body arrived.
    """

    searches: list[SearchTimes] = field(default_factory=list)
    embed_s: float = 0.0
    body_s: float = 0.0


watching: ContextVar[SearchWatch | None] = ContextVar("watching", default=None)
"""Notes the searches of the present request."""


def _name_part(part: QueryPart) -> str:
    kind = "image" if part.image_id is not None else "photo" if part.photo is not None else "vector"
    return f"{kind} part" if part.crop is not None else kind
