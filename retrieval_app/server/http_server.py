"""The HTTP server: uvicorn on its public options.

It bounds heads and bodies. Slow heads, slow readers and floods of connections are left to a proxy: docs/deploy.md.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.server.options import ConnectionConfig

logger = logging.getLogger(__name__)

_OTHER_FILES = 256  # of the gallery, of libraries, of processes


def run_server(
    app: ASGIApp, *, listener: socket.socket, on_ready: Callable[[], None], on_end: Callable[[], None],
    limits: ConnectionConfig | None = None,
) -> None:  # fmt: skip
    """Serve on an already listening socket until interrupted or terminated; what is under way is finished.

    Args:
        on_ready: called when it answers.
        on_end: called by the event loop when it is to end, with what is under way still to be finished.

    Raises:
        KeyboardInterrupt: it was interrupted or terminated, and has ended.
    """
    limits = limits or ConnectionConfig()
    allow_files(limits)
    quiet_uvicorn()
    if threading.current_thread() is threading.main_thread():  # which alone may set handlers
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises the signal again in the end
    config = make_config(Lifecycle(app, on_ready=on_ready, on_end=on_end), limits)
    uvicorn.Server(config).run(sockets=[listener])


def make_config(app: Any, limits: ConnectionConfig, **more: Any) -> uvicorn.Config:
    """uvicorn's options for an application, or with `factory` for a function that makes one."""
    return uvicorn.Config(
        app,
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
        **more,
    )


class Lifecycle:
    """The start and the end of an application, as its server has them.

    Args:
        on_ready: called when it has started.
        on_end: called when a signal tells the server to end, while requests are still under way.
        on_closed: called when the application has ended.
    """

    def __init__(
        self, app: ASGIApp, *, on_ready: Callable[[], object], on_end: Callable[[], object],
        on_closed: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._app, self._on_ready, self._on_end, self._on_closed = app, on_ready, on_end, on_closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""

        async def send_if_there(message: Message) -> None:
            try:
                await send(message)
            except h11.LocalProtocolError as error:  # as where a client has left with requests waiting
                logger.debug("an answer could not be sent: %s", error)

        async def send_told(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.complete":
                self._on_closed()
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                gc.collect()
                gc.freeze()  # what is loaded stays: looking through it again would stop every request for 0.1 s
                asyncio.get_running_loop().set_exception_handler(_tell_failure)
                self._watch_signals()
                self._on_ready()

        await self._app(scope, receive, send_told if scope["type"] == "lifespan" else send_if_there)

    def _watch_signals(self) -> None:
        """Call `on_end` beside uvicorn's own handlers, which wait for what is under way."""
        if threading.current_thread() is not threading.main_thread():
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
        quiet_uvicorn(logging.CRITICAL)
        self._on_end()


def _tell_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a failure of the event loop, except where a client breaks HTTP after its answer, as uvicorn expects none."""
    if isinstance(context.get("exception"), h11.LocalProtocolError):
        logger.debug("a connection broke off: %s", context["exception"])
    else:
        loop.default_exception_handler(context)


def quiet_uvicorn(level: int = logging.ERROR) -> None:
    """Let uvicorn tell of failures only, and of none where a client has left or a process says itself why it ends."""
    of_uvicorn = logging.getLogger("uvicorn.error")
    of_uvicorn.setLevel(level)
    of_uvicorn.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    said = str(record.msg)
    return not (said.startswith("ASGI callable returned without") or "failed to start, stopping" in said)


def allow_files(limits: ConnectionConfig) -> None:
    """Let this process have a file open for each connection, or as many as it may."""
    wanted = limits.connections + _OTHER_FILES
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != files < wanted:
        files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
