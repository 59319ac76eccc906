"""Signing in and out in the log of who did what; of wrong tokens a line a minute and address, and some in all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping

from starlette.types import Scope

from retrieval_app.api.visitors import STRANGER, find_visitor
from retrieval_app.review.activity_log import REFUSED, SIGN_IN, SIGN_OUT, ActivityLog

_WINDOW_S = 60.0
_MOST_LINES = 10  # of addresses in a window
_MOST_ADDRESSES = 10_000  # that are counted apart


class VisitLog:
    """Used by the event loop alone, which never waits for the disk.

    Args:
        logs: where it is told, by the names of the server's galleries: of a sign-in those that it opens, of a wrong
            token all.
        window_s: that an address waits for its next line of wrong tries.
    """

    def __init__(self, logs: Mapping[str, ActivityLog], *, window_s: float = _WINDOW_S) -> None:
        self._logs, self._window_s = logs, window_s
        self._told: set[str] = set()  # of this window
        self._untold = Counter[str]()
        self._others = 0  # tries of addresses beyond those that are counted apart
        self._line_due: asyncio.TimerHandle | None = None

    @property
    def galleries(self) -> Collection[str]:
        """The names of the galleries that have a log."""
        return self._logs.keys()

    def sign_in(self, scope: Scope, name: str, *, by: str, among: Collection[str] | None = None) -> None:
        """Somebody got in, by the page's form or by the address with a code."""
        self._record(SIGN_IN, name, find_visitor(scope).address, request=_read_id(scope), among=among, by=by)

    def sign_out(self, scope: Scope, name: str, *, among: Collection[str] | None = None) -> None:
        """Somebody ended a session."""
        self._record(SIGN_OUT, name, find_visitor(scope).address, request=_read_id(scope), among=among)

    def refuse(self, scope: Scope, *, by: str) -> None:
        """Somebody brought a wrong token or code: the first try is told at once, more of the address with the next."""
        if not self._logs:
            return
        if self._line_due is None:
            self._line_due = asyncio.get_running_loop().call_later(self._window_s, self._tell_rest)
        address = find_visitor(scope).address
        if address not in self._told and address not in self._untold and len(self._told) < _MOST_LINES:
            self._told.add(address)
            self._record(REFUSED, STRANGER.name, address, request=_read_id(scope), by=by, tries=1)
        elif address in self._untold or len(self._untold) < _MOST_ADDRESSES:
            self._untold[address] += 1
        else:
            self._others += 1

    def close(self) -> None:
        """Tell what is not told yet."""
        if self._line_due is not None:
            self._line_due.cancel()
            self._tell_rest()

    def _tell_rest(self) -> None:
        self._line_due = None
        named = self._untold.most_common(_MOST_LINES)
        for address, count in named:
            self._record(REFUSED, STRANGER.name, address, tries=count)
        others = self._untold.total() + self._others - sum(count for _, count in named)
        if others:
            self._record(REFUSED, STRANGER.name, "other addresses", tries=others)
        self._told = {address for address, _ in named}
        self._untold.clear()
        self._others = 0
        if named:
            self._line_due = asyncio.get_running_loop().call_later(self._window_s, self._tell_rest)

    def _record(
        self, what: str, who: str, address: str, *, request: str = "", among: Collection[str] | None = None,
        **details: object,
    ) -> None:  # fmt: skip
        for log in (log for name, log in self._logs.items() if among is None or name in among):
            log.record(what, who=who, address=address, request=request, wait=False, **details)


def _read_id(scope: Scope) -> str:
    return str(scope.get("state", {}).get("request_id", ""))
