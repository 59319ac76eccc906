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
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from retrieval_app.api.security.access import OPEN_PATHS
from retrieval_app.server.connection_config import ConnectionConfig
from retrieval_app.server.http_heads import BoundedProtocol
from retrieval_app.server.http_room import Room
from retrieval_app.server.refusals import Refusals

_TICKS_A_SECOND = 10
_CLIENT_S, _LAST_S = 8.0, 2.0  # before the shutdown's end those who do not take or send are hung up on, and all
OTHER_FILES = 256  # of the gallery, of libraries, of processes


def run_server(
    app: ASGIApp, *, listener: socket.socket, on_ready: Callable[[], None], on_end: Callable[[], None],
    limits: ConnectionConfig | None = None, health_paths: Container[str] = OPEN_PATHS, refusals: Refusals | None = None,
    more_files: int = 0,
) -> None:  # fmt: skip
    """Serve on an already listening socket until interrupted or terminated; what is under way is finished.

    Args:
        app: what is served.
        listener: the socket.
        on_ready: called when it answers.
        on_end: called when it is to end, with what is under way still to be finished.
        limits: on connections.
        health_paths: addresses that are answered where there is no place for others, as they come, below a root path
            with it and without.
        refusals: is told of what the application is not asked.
        more_files: that the application holds open.
    """
    limits, refusals = limits or ConnectionConfig(), refusals or Refusals()
    room = Room(places=_allow_connections(limits, more_files=more_files), beside=limits.health_connections)
    protocol = partial(BoundedProtocol, room=room, limits=limits, health_paths=health_paths, refusals=refusals)
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        log_config=None,
        log_level=None,
        access_log=False,
        ws="none",
        proxy_headers=False,  # anybody on this machine could say who and what he is
        timeout_graceful_shutdown=limits.shutdown_s,
        server_header=False,
    )

    server = _Server(config, limits=limits, on_ready=on_ready, on_end=on_end)
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    with _leaving_as_found(), _terminating_as_interrupted(), runner:
        try:
            runner.run(server.serve(sockets=[listener]))
        finally:
            refusals.close()


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, *, limits: ConnectionConfig, on_ready: Callable[[], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self._limits = limits
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
            if now - since[state] > (self._limits.answer_s if unsent else self._limits.head_s):
                connection.give_up_answer() if unsent else connection.give_up_head()
        self._waiting_since = since

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        # A task that is cancelled at the end leaves a traceback in the log; one whose client is gone ends by itself.
        loop = asyncio.get_running_loop()
        loop.call_later(self._limits.shutdown_s - _CLIENT_S, lambda: self._hang_up(only_waiting=True))
        loop.call_later(self._limits.shutdown_s - _LAST_S, lambda: self._hang_up(only_waiting=False))
        await super().shutdown(sockets)

    def _hang_up(self, *, only_waiting: bool) -> None:
        for connection in list(cast("set[BoundedProtocol]", self.server_state.connections)):
            if connection.waits_for_client or not only_waiting:
                connection.drop()


def _allow_connections(limits: ConnectionConfig, *, more_files: int) -> int:
    """How many connections there may be; more open files are asked for where the usual number is too small."""
    places = limits.connections
    wanted = places + limits.health_connections + more_files + OTHER_FILES
    return max(min(places, allow_files(wanted) - wanted + places), 1)


def allow_files(wanted: int) -> int:
    """How many files this process may have open: as many as wanted, or as may be."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files >= wanted:
        return wanted
    files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    return files


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
