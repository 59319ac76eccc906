"""uvicorn, told how this server ends, how long it waits for a request's head, and who is to know that it answers."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

CONNECTIONS_AT_ONCE = 1024  # an open page holds one all the time, and up to six while it loads
HEAD_S = 30.0  # for the head of a request to arrive
ANSWER_S = 60.0  # for a client to take any more of an answer
SHUTDOWN_S = 15  # for requests that are under way
_TICKS_A_SECOND = 10


def run_server(app: FastAPI, *, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve on an already listening socket until interrupted or terminated; what is under way is finished."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        ws="none",
        limit_concurrency=CONNECTIONS_AT_ONCE,
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )
    server = _Server(config, on_ready=on_ready)
    with _terminating_as_interrupted(), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
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
                connection.transport.abort() if unsent else connection.transport.close()
        self._waiting_since = since

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Every open page holds a stream that never ends by itself; only real requests are waited for.
        for connection in list(self.server_state.connections):
            path = (getattr(connection, "scope", None) or {}).get("path", "")
            if path.startswith("/gradio_api/"):
                connection.transport.close()
        await super().shutdown(sockets)


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
