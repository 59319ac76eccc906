"""The HTTP server: uvicorn on its public options, which ends in order on Ctrl-C and SIGTERM.

It bounds heads, bodies and connections. Slow heads and floods of connections are left to a proxy: docs/deploy.md.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.server.options import ConnectionConfig

logger = logging.getLogger(__name__)

OTHER_FILES = 256  # of the gallery, of libraries, of processes


def run_server(
    app: ASGIApp, *, listener: socket.socket, on_ready: Callable[[], None], on_end: Callable[[], None],
    limits: ConnectionConfig | None = None, more_files: int = 0,
) -> None:  # fmt: skip
    """Serve on an already listening socket until interrupted or terminated; what is under way is finished.

    Args:
        app: what is served.
        listener: the socket.
        on_ready: called when it answers.
        on_end: called by the event loop when it is to end, with what is under way still to be finished.
        limits: on connections.
        more_files: that the application holds open.
    """
    limits = limits or ConnectionConfig()
    allow_files(limits.connections + more_files + OTHER_FILES)
    config = uvicorn.Config(
        Lifecycle(app, on_ready=on_ready, on_end=on_end),
        http="h11",  # the one parser that bounds heads
        h11_max_incomplete_event_size=limits.max_head_bytes,
        limit_concurrency=limits.connections,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=limits.shutdown_s,
        log_config=None,
        access_log=False,
        ws="none",
        proxy_headers=False,
        server_header=False,
    )
    of_uvicorn = logging.getLogger("uvicorn.error")
    level = of_uvicorn.level
    of_uvicorn.setLevel(logging.ERROR)
    of_uvicorn.addFilter(_is_no_departure)
    try:
        with _terminating_as_interrupted():
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        of_uvicorn.removeFilter(_is_no_departure)
        of_uvicorn.setLevel(level)
        gc.unfreeze()


class Lifecycle:
    """The start and the end of an application, as its server has them.

    Args:
        app: the application.
        on_ready: called when it has started.
        on_end: called when a signal tells the server to end, while requests are still under way.
    """

    def __init__(self, app: ASGIApp, *, on_ready: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._app, self._on_ready, self._on_end = app, on_ready, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, _tolerant(send))
            return

        async def send_told(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                gc.collect()
                gc.freeze()  # what is loaded stays: looking through it again would stop every request for 0.1 s
                self._watch_signals()
                self._on_ready()

        await self._app(scope, receive, send_told)

    def _watch_signals(self) -> None:
        """Call `on_end` beside uvicorn's own handlers, which wait for what is under way."""
        if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
            return
        loop = asyncio.get_running_loop()

        def end(before: Any, number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._end)
            before(number, frame)

        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(before := signal.getsignal(number)):
                signal.signal(number, partial(end, before))

    def _end(self) -> None:
        # What is still under way in the end is cancelled, and a traceback of each tells nobody anything.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._on_end()


def _tolerant(send: Send) -> Send:
    """uvicorn raises where a client has left with requests waiting; what else it may mean a debug log tells."""

    async def send_if_there(message: Message) -> None:
        try:
            await send(message)
        except h11.LocalProtocolError as error:
            logger.debug("an answer could not be sent: %s", error)

    return send_if_there


def _is_no_departure(record: logging.LogRecord) -> bool:
    """Leaves out what uvicorn says of each such answer."""
    return not str(record.msg).startswith("ASGI callable returned without")


def allow_files(wanted: int) -> None:
    """Let this process have so many open files, or as many as it may."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != files < wanted:
        files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


@contextmanager
def _terminating_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the server as Ctrl-C does: uvicorn raises the signal again once it has shut down."""
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
