"""The HTTP server: uvicorn with limits on connections and waiting, and an orderly end on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from retrieval_app.server.http_heads import BoundedProtocol
from retrieval_app.server.http_room import Room

CONNECTIONS_AT_ONCE = 1024  # a page holds up to six while it loads
CONNECTIONS_FOR_HEALTH = 32  # beside these
HEAD_S = 30.0  # for the head of a request to arrive
ANSWER_S = 60.0  # for a client to take any more of an answer
SHUTDOWN_S = 15  # for requests that are under way
_TICKS_A_SECOND = 10
_CLIENT_S, _LAST_S = 8.0, 2.0  # before the shutdown's end those who do not take or send are hung up on, and all
_OTHER_FILES = 256  # of the gallery, of libraries, of processes


def run_server(app: FastAPI, *, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve on an already listening socket until interrupted or terminated; what is under way is finished."""
    room = Room(places=_allow_connections(), beside=CONNECTIONS_FOR_HEALTH)
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, room=room)),
        log_config=None,
        log_level=None,
        access_log=False,
        ws="none",
        proxy_headers=False,  # anybody on this machine could say who and what he is
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )

    def end() -> None:
        app.state.engine.refuse_costly()
        app.state.gradio.hang_up()

    server = _Server(config, on_ready=on_ready, on_end=end)
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    with _leaving_as_found(), _terminating_as_interrupted(), runner:
        runner.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, *, on_ready: Callable[[], None], on_end: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._on_ready, self._on_end = on_ready, on_end
        self._waiting_since: dict[tuple[Any, ...], float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # what is loaded stays: looking through it again would stop every request for 0.1 s
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_SECOND == 0:
            self._close_stuck()
        return await super().on_tick(counter)

    def _close_stuck(self) -> None:
        """Close the connections on which no whole head has come for long, or nothing of an answer was taken.

        uvicorn makes a cycle of each request, when its head is there.
        """
        now, since = time.monotonic(), dict[tuple[Any, ...], float]()
        for connection in list(cast("set[Any]", self.server_state.connections)):
            cycle, unsent = connection.cycle, connection.transport.get_write_buffer_size()
            is_silent = cycle is None or cycle.response_complete
            if not is_silent and not unsent:
                continue
            state = (connection, cycle, unsent)
            since[state] = self._waiting_since.get(state, now)
            if now - since[state] > (ANSWER_S if unsent else HEAD_S):
                connection.drop() if unsent else connection.transport.close()
        self._waiting_since = since

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        # A task that is cancelled at the end leaves a traceback in the log; one whose client is gone ends by itself.
        loop = asyncio.get_running_loop()
        loop.call_later(SHUTDOWN_S - _CLIENT_S, lambda: self._hang_up(only_waiting=True))
        loop.call_later(SHUTDOWN_S - _LAST_S, lambda: self._hang_up(only_waiting=False))
        await super().shutdown(sockets)

    def _hang_up(self, *, only_waiting: bool) -> None:
        for connection in list(cast("set[BoundedProtocol]", self.server_state.connections)):
            if connection.waits_for_client or not only_waiting:
                connection.drop()


def _allow_connections() -> int:
    """How many connections there may be; more open files are asked for where the usual number is too small."""
    wanted = CONNECTIONS_AT_ONCE + CONNECTIONS_FOR_HEALTH + _OTHER_FILES
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < wanted:
        files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
        return max(min(CONNECTIONS_AT_ONCE, files - wanted + CONNECTIONS_AT_ONCE), 1)
    return CONNECTIONS_AT_ONCE


@contextmanager
def _leaving_as_found() -> Iterator[None]:
    """Log uvicorn's errors only, and put back what a server sets for its whole process."""
    logger = logging.getLogger("uvicorn.error")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        gc.unfreeze()


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
