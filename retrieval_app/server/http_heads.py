"""One connection of the server: uvicorn's HTTP protocol with limits on the heads of requests.

The parser has no limit of its own: it keeps what it is sent until a head is whole. So bytes are counted here as they
arrive, before it gets them, and headers as they are found. This hangs on methods and attributes of uvicorn's own
protocol, which `tests/retrieval_app/server/test_http_heads.py` names.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Container
from http import HTTPStatus
from operator import itemgetter
from typing import Any, cast

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from retrieval_app.api.answered import METHODS
from retrieval_app.api.errors import CODES, make_error
from retrieval_app.api.headers import SECURITY_HEADERS
from retrieval_app.api.security.access import OPEN_PATHS
from retrieval_app.server.connection_config import ConnectionConfig
from retrieval_app.server.http_room import Room, Stage
from retrieval_app.server.refusals import Reason, Refusal, Refusals, shorten_path

_STEP, _BODY_STEP = 16 * 1024, 64 * 1024
_TRANSFER_ENCODING = b"transfer-encoding"
_read_name = itemgetter(0)


class _RefusedError(Exception):
    """Raised through the parser, which then takes no more."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on heads, and with a place in a room.

    Counted is all that is no body of an announced length: what comes before, between and in heads, and what is sent in
    chunks, which no route takes.

    Args:
        room: has the places.
        limits: of heads.
        health_paths: addresses that are answered where there is no other place left.
        refusals: is told of what the application is not asked.
    """

    def __init__(
        self, *args: Any, room: Room, limits: ConnectionConfig, health_paths: Container[str] = OPEN_PATHS,
        refusals: Refusals | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **options)
        self._room, self._limits = room, limits
        self._health_paths, self._refusals = health_paths, refusals or Refusals()
        self._counted, self._is_counting, self._in_chunks = 0, True, False
        self._taken = 0  # bytes that are being parsed
        self._has_whole = False  # whether a head or a request ended in them
        self._stage = self._noted = Stage.HEAD
        self._reason: tuple[int, str] | None = None
        self._running: RequestResponseCycle | None = None  # `cycle` is the newest, which may wait for this one

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        if not self._room.enter(self, address=self.client[0] if self.client else ""):
            self.app = self._tell_health_only(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or was left."""
        self._room.leave(self)
        self._tell_lost()
        super().connection_lost(exc)

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing goes on before the client sends or takes more."""
        return self._stage is not Stage.ANSWER or self.transport.get_write_buffer_size() > 0

    def drop(self) -> None:
        """End the connection at once, whatever is under way on it."""
        self._tell_lost()
        self.transport.abort()

    def displace(self) -> None:
        """End it for a newcomer, and tell of it."""
        self._tell_refusal("displaced")
        self.drop()

    def give_up_head(self) -> None:
        """End a connection on which no whole head has come for long; one that had an answer was merely kept."""
        if self._counted:
            self._tell_refusal("head_timeout")
        elif self.cycle is None:
            self._tell_refusal("silent")
        self.transport.close()

    def give_up_answer(self) -> None:
        """End a connection on which nothing of an answer was taken for long."""
        self._tell_refusal("answer_timeout")
        self.drop()

    def _tell_lost(self) -> None:
        """Let nothing more be written: uvloop raises where that is tried after an end."""
        for cycle in (self._running, self.cycle):
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        self._unset_keepalive_if_required()
        step = _STEP if self._is_counting else _BODY_STEP
        for start in range(0, len(data), step):
            if not self.transport.is_closing():
                self._take(data[start : start + step])

    def _take(self, data: bytes) -> None:
        self._taken, self._has_whole = len(data), False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # what follows is no HTTP, and is counted: nothing is upgraded here
        except httptools.HttpParserError:
            self._refuse(*(self._reason or (400, "this is no request that HTTP/1.1 knows")))
            return
        if self._is_counting and not self._has_whole:
            self._counted += len(data)
            if self._counted > self._limits.max_head_bytes:
                self._refuse(*self._say_too_large())
        if self._stage is not self._noted:
            self._note(self._stage)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_counting, self._in_chunks = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or one behind the last chunk, which nobody reads."""
        if self._in_chunks:
            return
        if len(self.headers) >= self._limits.max_headers:
            self._reason = 431, f"the request has more than {self._limits.max_headers} headers"
            raise _RefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is whole."""
        if self._counted + self._taken > self._limits.max_head_bytes and self._is_head_too_large():
            self._reason = self._say_too_large()
            raise _RefusedError
        if len(self.pipeline) >= (most := self._limits.max_pipelined):
            self._reason = 400, f"more than {most} requests wait for the answer to the one before them"
            raise _RefusedError
        self._in_chunks = self._is_counting = _TRANSFER_ENCODING in map(_read_name, self.headers)
        super().on_headers_complete()
        self._stage, self._has_whole, self._counted = Stage.BODY, True, 0

    def on_message_complete(self) -> None:
        """A request is whole."""
        super().on_message_complete()
        self._is_counting, self._in_chunks = True, False
        self._has_whole, self._counted = True, 0
        if not self.cycle.response_complete:  # as it is where a body was refused before its end
            self._stage = Stage.ANSWER

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """An answer was given."""
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self._stage = Stage.HEAD
            self._note(Stage.HEAD)

    def _note(self, stage: Stage) -> None:
        self._noted = stage
        self._room.move(self, stage)

    def _is_head_too_large(self) -> bool:
        """Of bytes that came together, some may be those of a body."""
        return (
            len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            > self._limits.max_head_bytes
        )

    def _say_too_large(self) -> tuple[int, str]:
        is_address = 2 * len(getattr(self, "url", b"")) > self._limits.max_head_bytes
        status, what = (414, "address") if is_address else (431, "head")
        return status, f"the {what} of the request has more than {self._limits.max_head_bytes:,} bytes"

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no request, where that is not taken for the answer to another one, and hang up."""
        is_answered = self.cycle is None or self.cycle.response_complete
        request_id = secrets.token_hex(8) if is_answered else None
        self._tell_refusal(
            cast("Reason", CODES[status]), status=status if is_answered else None, request_id=request_id
        )
        if request_id is not None:
            self.transport.write(_write_answer(_refuse_with(status, message, request_id=request_id)))
        self.transport.close()

    def _tell_refusal(self, reason: Reason, *, status: int | None = None, request_id: str | None = None) -> None:
        """Tell of what has come of a request, if anything."""
        has_come = self._counted or status is not None or self._stage is not Stage.HEAD
        url = bytes(getattr(self, "url", b"")) if has_come else b""
        self._refusals.tell(
            Refusal(
                reason,
                address=self.client[0] if self.client else "unknown",
                status=status,
                method=_name_method(self.parser.get_method()) if url else None,
                path=shorten_path(url.decode("latin-1")) if url else None,
                request_id=request_id,
            )
        )

    def _tell_health_only(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] in self._health_paths and scope["method"] in ("GET", "HEAD"):
                await app(scope, receive, send)
                return
            request_id = secrets.token_hex(8)
            self._tell_refusal("busy", status=503, request_id=request_id)
            message = "the server has too many connections; try again in a moment"
            await _refuse_with(503, message, request_id=request_id, code="busy")(scope, receive, send)

        return answer


def _name_method(method: bytes) -> str:
    name = method.decode("latin-1")
    return name if name in METHODS else "other"


def _refuse_with(status: int, message: str, *, request_id: str, code: str | None = None) -> Response:
    headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}
    headers |= {"Connection": "close", "Cache-Control": "no-store"}
    if status == 503:
        headers["Retry-After"] = "1"
    return make_error(status, message, request_id=request_id, code=code, headers=headers)


def _write_answer(response: Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])
