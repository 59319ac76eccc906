"""One request that was answered, as logs and traces are told of it, and what of its address may be written down."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl

from retrieval_app.api.visitors import Visitor
from retrieval_app.serving.search_times import SearchWatch

METHODS = frozenset(("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"))
MOST_QUERY_BYTES = 4096
_PLAIN = frozenset((  # what takes a number or one word of a few: no page has a field in which such a value is typed
    "after", "by", "count", "group_copies", "include", "k", "limit", "min_score", "offset", "rerank", "seed", "side",
    "state",
))  # fmt: skip
_TYPED = frozenset(("address", "code", "label", "name", "suggested", "text", "token", "where"))
_WORD = re.compile(r"[0-9A-Za-z_.,-]{0,60}")
_HIDDEN = "…"


@dataclass(frozen=True, slots=True)
class Answered:
    """One request, and what became of it.

    Attributes:
        at_s: when its answer ended, in seconds since 1970.
        seconds: since its head was there.
        request_id: that its answer has.
        method: in capitals, or `other`.
        route: the template of its address, or what answered where that has none.
        query_string: as it came, at most `MOST_QUERY_BYTES` of it, with what people typed: see `hide_typed`.
        status: of its answer.
        sent_bytes: of the answer's body.
        visitor: who asked.
        watch: its searches.
        traceparent: of the trace that it belongs to, as the header has it.
        gallery: the name of the one among several that was asked for.
    """

    at_s: float
    seconds: float
    request_id: str
    method: str
    route: str
    query_string: bytes
    status: int
    sent_bytes: int
    visitor: Visitor
    watch: SearchWatch
    traceparent: str | None = None
    gallery: str | None = None


Observer: TypeAlias = Callable[[Answered], None]
"""Is told of every request as it is answered, by the event loop, which is not to wait for it."""


def hide_typed(query_string: bytes) -> str:
    """The parameters of an address, without values that people typed and names that nobody knows."""
    pairs = parse_qsl(query_string[:MOST_QUERY_BYTES].decode("latin-1"), keep_blank_values=True)
    return "&".join(_hide(name, value) for name, value in pairs)


def _hide(name: str, value: str) -> str:
    if name in _PLAIN:
        return f"{name}={value if _WORD.fullmatch(value) else _HIDDEN}"
    return f"{name if name in _TYPED else _HIDDEN}={_HIDDEN}"
