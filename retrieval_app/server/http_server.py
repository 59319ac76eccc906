"""HTTP server: uvicorn, by its public options, with bounded heads and bodies; docs/deploy.md has the rest."""

import asyncio
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from index.durable import allow_open_files
from retrieval_app.api.security.middleware import MAX_HEAD_BYTES
from retrieval_app.server.options import ConnectionConfig

logger = logging.getLogger(__name__)

OTHER_FILES = 256  # of the gallery, of libraries, of processes


def run_server(
    app: ASGIApp,
    *,
    listener: socket.socket,
    on_ready: Callable[[], None],
    on_end: Callable[[], None],
    limits: ConnectionConfig,
) -> None:
    """Serve until interrupted, then raise KeyboardInterrupt; `on_end` is called before requests under way finish."""
    allow_open_files(limits.connections + OTHER_FILES)
    quiet_uvicorn()
    if threading.current_thread() is threading.main_thread():  # which alone may set handlers
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises the signal again in the end

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_if_there(message: Message) -> None:
            try:
                await send(message)
            except h11.LocalProtocolError as error:  # as where a client has left with requests waiting
                logger.debug("an answer could not be sent: %s", error)

        await app(scope, receive, send_if_there)

    config = uvicorn.Config(
        answer,
        http="h11",  # the one parser that bounds heads
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=limits.connections,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=limits.shutdown_s,
        log_config=None,
        access_log=False,
        ws="none",
        proxy_headers=False,
        server_header=False,
    )
    _Server(config, on_ready=on_ready, on_end=on_end).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[], object], on_end: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_ready, self._on_end = on_ready, on_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it again would stop every request for 0.1 s
        asyncio.get_running_loop().set_exception_handler(_log_failure)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        quiet_uvicorn(logging.CRITICAL)  # requests that are cancelled in the end have tracebacks of no use
        self._on_end()
        await super().shutdown(sockets)


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a failure of the event loop, unless a client broke HTTP after its response, which uvicorn does not expect."""
    if isinstance(context.get("exception"), h11.LocalProtocolError):
        logger.debug("a connection broke off: %s", context["exception"])
    else:
        loop.default_exception_handler(context)


def quiet_uvicorn(level: int = logging.ERROR) -> None:
    """Let uvicorn log failures only, and none where a client has left."""
    of_uvicorn = logging.getLogger("uvicorn.error")
    of_uvicorn.setLevel(level)
    of_uvicorn.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("ASGI callable returned without")
