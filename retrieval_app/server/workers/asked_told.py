"""What the front tells a worker of a request, and the worker of its answer: a header each, which nobody else sees.

The front has let in who asks, and the worker believes it: nobody but their common user reaches the worker's socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.api.visitors import Visitor, find_visitor, keep_visitor
from retrieval_app.server.access_log import MOST_SEARCHES
from retrieval_app.serving.bounded_pool import asking
from retrieval_app.serving.search_times import SearchWatch, watching

ASKED, TOLD = b"x-retrieval-asked", b"x-retrieval-told"
Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ToldSearch:
    """A search that another process has timed."""

    told: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """What that process told of it."""
        return self.told


def tell_asked(scope: Scope) -> tuple[bytes, bytes]:
    """The header of a request that was let in."""
    visitor = asdict(find_visitor(scope))
    visitor["rights"] = sorted(visitor["rights"])
    values = {
        "visitor": visitor, "request_id": scope["state"]["request_id"], "client": scope.get("client"),
        "scheme": scope["scheme"], "root_path": scope.get("root_path", ""),
    }  # fmt: skip
    return ASKED, orjson.dumps(values)


def hear_told(scope: Scope, headers: Headers) -> list[tuple[bytes, bytes]]:
    """Note what a worker tells of its answer where the guard of the front looks for it; the headers for the client."""
    kept, watch = list[tuple[bytes, bytes]](), watching.get()
    for name, value in headers:
        if name.lower() != TOLD:
            kept.append((name, value))
            continue
        told = orjson.loads(value)
        if told["route"] is not None:
            scope["route"] = SimpleNamespace(path=told["route"])
        if watch is not None:
            watch.searches, watch.untold = [ToldSearch(one) for one in told["searches"]], told["untold"]
            watch.embed_s = told["embed_s"]
    return kept


class FromFront:
    """Takes requests from the front, as the application of a gallery finds them where it is alone in its process.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "http":
            _hear_asked(scope)
            watch = SearchWatch()
            watching.set(watch)

            async def send_told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", ()), (TOLD, _tell(scope, watch))]
                await send(message)

            await self._app(scope, receive, send_told)
        else:
            await self._app(scope, receive, send)


def _hear_asked(scope: Scope) -> None:
    headers = dict(scope["headers"])
    asked = orjson.loads(headers[ASKED])
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != ASKED]
    visitor = Visitor(**{**asked["visitor"], "rights": frozenset(asked["visitor"]["rights"])})
    scope.setdefault("state", {})["request_id"] = asked["request_id"]
    keep_visitor(scope, visitor)
    scope["client"] = None if asked["client"] is None else tuple(asked["client"])
    scope["scheme"], scope["root_path"] = asked["scheme"], asked["root_path"]
    asking.set(visitor.address)


def _tell(scope: Scope, watch: SearchWatch) -> bytes:
    told, untold = watch.searches[:MOST_SEARCHES], watch.searches[MOST_SEARCHES:]
    values = {
        "route": getattr(scope.get("route"), "path", None), "searches": [one.to_json() for one in told],
        "untold": len(untold), "embed_s": watch.embed_s,
    }  # fmt: skip
    return orjson.dumps(values)
