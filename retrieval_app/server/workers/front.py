"""The front of a server with workers: what has passed the doors is answered by one of them.

A request that its worker did not live to answer is asked another where it changes nothing; of others nobody knows what
was done, and their senders are told so, with 503. As long as one worker lives the server answers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from urllib.parse import quote, quote_from_bytes

import httpcore
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retrieval_app.api.errors import add_error_handlers, refuse_with
from retrieval_app.api.security.access import METRICS_PATH, require_metrics
from retrieval_app.api.security.gradio_doors import is_below
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.server.workers.asked_told import hear_told, tell_asked
from retrieval_app.server.workers.supervisor import Supervisor, Worker
from retrieval_app.server.workers.worker_client import WorkerClients
from retrieval_app.server.workers.worker_counts import WorkerCounts

logger = logging.getLogger(__name__)

_WHOLE_BYTES = 8 * 1024 * 1024  # an answer up to here is there whole before any of it is sent
_PASSED = frozenset((
    b"accept", b"accept-encoding", b"accept-language", b"content-type", b"host", b"if-modified-since",
    b"if-none-match", b"if-range", b"range", b"user-agent",
))  # fmt: skip
_NOT_PASSED = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date"))  # of one connection
_BESIDE_S = 30.0  # that an answer may take besides
_READS = ("GET", "HEAD")
_CHANGES_NOTHING = re.compile(r"/v1/(search(/\w+)?|embed|photos(/address)?)")  # though it is posted
_IN_PATHS = "/!$&'()*+,;=:@~"
_IN_QUERIES = '%?[]{}|^`<>\\"' + _IN_PATHS
_NONE_LIVES = "no process of this server answers at the moment; another is being started, try again in a moment"
_UNREADABLE = "a header of the request has characters that no header may have"
_LOST = (
    "the process that was asked ended before it answered, and nobody knows whether this was done: look, then send it "
    "again; another process answers"
)


class _LostError(Exception):
    """A worker has ended, or its connection, before its answer was there; `is_sent` where it may have been asked."""

    def __init__(self, *, is_sent: bool) -> None:
        super().__init__("a worker was lost")
        self.is_sent = is_sent


def create_front(supervisor: Supervisor, *, counts: WorkerCounts, request_s: float) -> FastAPI:
    """The application that passes requests on.

    Args:
        supervisor: of the workers.
        counts: are asked for what workers count.
        request_s: seconds after which a worker gives a request up.
    """
    clients = WorkerClients(patience_s=2 * request_s + _BESIDE_S)

    @asynccontextmanager
    async def close_clients(_: FastAPI) -> AsyncIterator[None]:
        yield
        front.state.sign_in.visits.close()
        await clients.close()

    async def show_metrics(request: Request) -> Response:
        require_metrics(request)
        request.scope["route"] = SimpleNamespace(path=METRICS_PATH)
        await counts.gather(clients)
        return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    front = FastAPI(openapi_url=None, lifespan=close_clients)
    add_error_handlers(front)
    pass_on = Route("/{path:path}", PassOn(supervisor, clients))
    front.router.routes[:] = [*sign_in_router.routes, Route(METRICS_PATH, show_metrics), pass_on]
    return front


class PassOn:
    """Lets a worker answer.

    Args:
        supervisor: knows them.
        clients: their connections.
    """

    def __init__(self, supervisor: Supervisor, clients: WorkerClients) -> None:
        self._supervisor, self._clients = supervisor, clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        body = b""
        if scope["method"] not in _READS:  # the guard has read it whole
            body = (await receive()).get("body", b"")
        changes_nothing = scope["method"] in _READS or _CHANGES_NOTHING.fullmatch(scope["path"]) is not None
        lost = set[Worker]()
        may_ask_again = True
        while may_ask_again:
            worker = self._supervisor.choose(always=is_below(scope["path"]), without=lost)
            if worker is None:
                refusal = refuse_with(scope, 503, _NONE_LIVES, code="busy", retry_after_s=1)
                await refusal(scope, receive, send)
                return
            try:
                await self._ask(worker, body, scope, receive, send)
                return
            except httpcore.LocalProtocolError:  # some header is one that only lenient parsers take
                await refuse_with(scope, 400, _UNREADABLE)(scope, receive, send)
                return
            except _LostError as error:
                lost.add(worker)
                logger.warning("request %s: its worker %d was lost", scope["state"]["request_id"], worker.number)
                may_ask_again = not error.is_sent or (changes_nothing and len(lost) == 1)
        await refuse_with(scope, 503, _LOST, code="busy", retry_after_s=1)(scope, receive, send)

    async def _ask(self, worker: Worker, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back.

        Raises:
            _LostError: there is no answer, and nothing was sent of one.
        """
        worker.busy += 1
        is_begun = False
        try:
            async with self._clients.of(worker).stream(
                scope["method"], _write_target(scope), headers=_choose_headers(scope, body), content=body
            ) as answer:
                headers = [pair for pair in hear_told(scope, answer.headers) if pair[0].lower() not in _NOT_PASSED]
                start = {"type": "http.response.start", "status": answer.status, "headers": headers}
                if _read_length(headers) <= _WHOLE_BYTES:
                    whole = await answer.aread()
                    is_begun = True
                    await send(start)
                    await send({"type": "http.response.body", "body": whole})
                else:
                    is_begun = True
                    await send(start)
                    await _send_while_there(answer, receive, send)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise _LostError(is_sent=False) from error
        except (httpcore.NetworkError, httpcore.RemoteProtocolError, httpcore.TimeoutException) as error:
            if is_begun:
                raise  # the connection ends within the answer, which shows
            raise _LostError(is_sent=True) from error
        finally:
            worker.busy -= 1


def _choose_headers(scope: Scope, body: bytes) -> list[tuple[bytes, bytes]]:
    kept = [pair for pair in scope["headers"] if pair[0] in _PASSED]
    length = [(b"content-length", str(len(body)).encode())] if scope["method"] not in _READS else []
    return [*kept, *length, tell_asked(scope)]


def _write_target(scope: Scope) -> bytes:
    path, query = quote(scope["path"], safe=_IN_PATHS), quote_from_bytes(scope["query_string"], safe=_IN_QUERIES)
    return (f"{path}?{query}" if query else path).encode()


def _read_length(headers: list[tuple[bytes, bytes]]) -> float:
    """The announced length of an answer, infinite without one."""
    return next((int(value) for name, value in headers if name.lower() == b"content-length"), float("inf"))


async def _send_while_there(answer: httpcore.Response, receive: Receive, send: Send) -> None:
    """Send the body of an answer as it comes, which may go on as long as a page is open, until its client leaves."""
    sending = asyncio.create_task(_send_all(answer, send))
    leaving = asyncio.create_task(_wait_for_leaving(receive))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        sending.cancel()  # where it goes on, for nobody
    await asyncio.wait((sending,))
    if not sending.cancelled():
        sending.result()


async def _send_all(answer: httpcore.Response, send: Send) -> None:
    async for chunk in answer.aiter_stream():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _wait_for_leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
