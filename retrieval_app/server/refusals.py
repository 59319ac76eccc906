"""Requests and connections that end before the application is asked: lines of the access log, and counts.

{"time": "2026-01-31T12:00:00.123Z", "event": "refused", "reason": "head_too_large", "status": 431, …}

Whoever floods makes as many as there are connections, so of each address few lines are written in a while, of all
addresses some, and one tells how many there were besides.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Literal, TypeAlias

from index.network.public_addresses import group_address

Reason: TypeAlias = Literal[
    "bad_request", "address_too_long", "head_too_large", "busy",  # which were answered, with this code
    "displaced", "head_timeout", "silent", "answer_timeout",  # hung up on
]  # fmt: skip
_UNTOLD: frozenset[Reason] = frozenset(("silent",))  # browsers connect in advance: these are counted alone
_OTHER_WORDS = ("g", "page", "gradio", "docs", "mcp", "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was sent away, or hung up on.

    Attributes:
        reason: the code of the answer; or why there was none.
        address: of the other end of the connection.
        status: of the answer; None where there was none.
        method: in capitals; None where it was not understood.
        path: as `shorten_path` tells it; None likewise.
        request_id: that the answer has; None where there was none.
        at_s: when, in seconds since 1970.
    """

    reason: Reason
    address: str
    status: int | None = None
    method: str | None = None
    path: str | None = None
    request_id: str | None = None
    at_s: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class MoreRefusals:
    """How many were not told one by one, by their reasons."""

    seconds: float
    counts: dict[str, int]
    at_s: float = field(default_factory=time.time)


class Refusals:
    """Is told of each; used by the event loop alone.

    Args:
        count: is told the reason of every one.
        write: writes a line of one, or of how many more there were; None writes nothing.
        lines: of one address in a while.
        lines_in_all: those of all addresses.
        seconds: that this while has.
    """

    def __init__(
        self, *, count: Callable[[str], None] = lambda _: None,
        write: Callable[[Refusal | MoreRefusals], None] | None = None,
        lines: int = 10, lines_in_all: int = 100, seconds: float = 10.0,
    ) -> None:  # fmt: skip
        self._count, self._write = count, write
        self._lines, self._lines_in_all, self._seconds = lines, lines_in_all, seconds
        self._told, self._untold = Counter[str](), Counter[str]()
        self._begun: asyncio.TimerHandle | None = None

    def tell(self, refusal: Refusal) -> None:
        """Count one, and write it down if there is room for its line."""
        self._count(refusal.reason)
        if self._write is None or refusal.reason in _UNTOLD:
            return
        if self._begun is None:
            self._begun = asyncio.get_running_loop().call_later(self._seconds, self._begin_anew)
        address = group_address(refusal.address)
        if self._told[address] >= self._lines or self._told.total() >= self._lines_in_all:
            self._untold[refusal.reason] += 1
            return
        self._told[address] += 1
        self._write(refusal)

    def close(self) -> None:
        """Tell how many there were that have no line."""
        if self._begun is not None:
            self._begun.cancel()
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._begun = None
        if self._untold and self._write is not None:
            self._write(MoreRefusals(self._seconds, dict(self._untold)))
        self._told.clear()
        self._untold.clear()


@cache
def _list_words() -> frozenset[str]:
    """The words of which addresses are made."""
    from retrieval_app.api.document import ROUTES

    paths = (getattr(route, "path", "") for routes in ROUTES for route in routes.router.routes)
    return frozenset(word for path in paths for word in path.split("/") if "{" not in word) | {*_OTHER_WORDS}


def shorten_path(path: str) -> str:
    """The start of an address, as far as its words are those of our own addresses: nothing that somebody typed.

    >>> shorten_path("/v1/photos/3K8v0cYpL2Jt/picture?k=3")
    '/v1/photos/…'
    """
    pieces = path.partition("?")[0].split("/")[1:]
    kept = [*takewhile(_list_words().__contains__, pieces)]
    return "".join(f"/{piece}" for piece in (*kept, *["…"][: len(kept) < len(pieces)]))
