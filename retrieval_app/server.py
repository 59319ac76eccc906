"""Serving a gallery's page and API: open, listen, run until told to end. Needs the extra `ui`."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from index.errors import InputError, MissingDependencyError
from retrieval_app.serving.config import ServingConfig

if TYPE_CHECKING:
    from fastapi import FastAPI

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
CONNECTIONS_AT_ONCE = 1024  # an open page holds one all the time, and up to six while it loads
SHUTDOWN_S = 15  # for requests that are under way


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a gallery is served.

    Attributes:
        gallery: its folder.
        host: address to listen on.
        port: to listen on, 0 for a free one.
        token: that every request has to bring; None lets everybody in who can reach the address.
        writable: whether images may be added and removed, which needs a token.
        audit: folder of a finished audit, whose doubts take the place of the gallery's own.
        limits: of the engine.
    """

    gallery: Path
    host: str = "127.0.0.1"
    port: int = 7860
    token: str | None = None
    writable: bool = False
    audit: Path | None = None
    limits: ServingConfig = field(default_factory=ServingConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port {self.port}: a port is a number in 0..65535 (0: any free one)")
        if self.writable and self.token is None:
            raise InputError("--writable needs a token: set --token, or the variable RETRIEVAL_TOKEN")
        if self.token is not None and (
            len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()
        ):
            raise InputError("--token: expected at least 8 printable ASCII characters")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK_NAMES


def serve_gallery(options: ServeOptions, *, on_ready: Callable[[str], None] | None = None) -> None:
    """Serve page and API until interrupted or terminated; `on_ready` gets the URL once it answers.

    Raises:
        GalleryError: the gallery cannot be opened.
        InputError: the address cannot be used, or the port is taken.
        MissingDependencyError: the packages of the extra `ui` are not installed.
    """
    with listen(options.host, options.port) as listener:
        try:
            from retrieval_app.assembly import assemble
        except ModuleNotFoundError as error:
            package = error.name or "gradio"
            raise MissingDependencyError(package=package, extra="ui", purpose="the search page") from error
        port = listener.getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
        with assemble(options) as app, suppress(KeyboardInterrupt):  # the usual way to end it
            run_server(app, listener=listener, on_ready=lambda: on_ready(url) if on_ready else None)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        InputError: the port is taken or not allowed, or the host is no address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=CONNECTIONS_AT_ONCE)
    except socket.gaierror as error:
        raise InputError(f"--host {host}: not a known address: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"--port {port}: already in use on {host}; choose another (0: any free one)"
            ) from error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from error


def run_server(app: FastAPI, *, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve on an already listening socket until interrupted or terminated; what is under way is finished."""
    import uvicorn

    class AnnouncingServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                gc.collect()
                gc.freeze()  # what is loaded stays: looking through it again would stop every request for 0.1 s
                on_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Every open page holds a stream that never ends by itself; only real requests are waited for.
            for connection in list(self.server_state.connections):
                path = (getattr(connection, "scope", None) or {}).get("path", "")
                if path.startswith("/gradio_api/"):
                    connection.transport.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        limit_concurrency=CONNECTIONS_AT_ONCE,
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )
    with _terminating_as_interrupted(), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(AnnouncingServer(config).serve(sockets=[listener]))


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
