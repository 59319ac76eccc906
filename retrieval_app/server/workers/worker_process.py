"""A worker: one of several processes that answer for a gallery, with a model and an index of its own.

It ends when the front says so, or is gone; signals that a terminal or a service sends to all processes of a server are
the front's alone.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import uvicorn

from index.commands.exit_codes import log_warnings
from index.errors import RetrievalError
from index.telemetry import switch_off_telemetry
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.gradio_app.mounted import GradioProcess
from retrieval_app.page.sign_in_page import draw_sign_in
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.server.entrance import choose_access
from retrieval_app.server.gallery_app import Sharing, end_soon, open_gallery
from retrieval_app.server.http_server import OTHER_FILES, allow_files
from retrieval_app.server.workers.asked_told import FromFront
from retrieval_app.server.workers.worker_counts import CountsApp

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp

    from retrieval_app.server.options import ServeOptions

_BACKLOG = 1024
_KEPT_S = 24 * 3600  # an idle connection: it is the front that closes them

Word = Literal["ready", "serving", "failed"]
"""What a worker tells its front: that it answers, from a version of a digest; that it serves another; why it ends."""
END, QUIT = "end", "quit"
"""What the front tells a worker: that the server ends, and that nothing will be asked any more."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker is started with.

    Attributes:
        options: of the server, with the threads that are this one's share.
        shared: folder of what all workers have together.
        socket: where it is to listen.
        is_first: whether no worker was before it.
    """

    options: ServeOptions
    shared: Path
    socket: Path
    is_first: bool


def run_worker(task: WorkerTask, connection: Connection) -> None:
    """Answer until told to end; what keeps it from that is told the front."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    log_warnings()
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    switch_off_telemetry()
    allow_files(task.options.connections.connections + OTHER_FILES)  # all may be this one's, where it alone lives
    try:
        _serve(task, connection)
    except (RetrievalError, OSError) as error:
        with suppress(OSError):
            connection.send(("failed", str(error)))
    finally:
        connection.close()


def _serve(task: WorkerTask, connection: Connection) -> None:
    options = task.options
    telling = threading.Lock()

    def tell(word: Word, digest: str) -> None:
        with telling, suppress(OSError):  # of a front that is gone its own thread hears
            connection.send((word, digest))

    with ExitStack() as opened:
        [served] = options.galleries
        log = ActivityLog(served.path)
        opened.callback(log.close)
        gradio = GradioProcess()
        opened.callback(gradio.close)
        sharing = Sharing(task.shared, lambda digest: tell("serving", digest), task.is_first)
        app = opened.enter_context(
            open_gallery(served, options, log=log, gradio=gradio, root_path=options.root_path, sharing=sharing)
        )
        app.state.access = access = choose_access(options)
        app.state.sign_in = SignIn(access, draw=draw_sign_in)
        listener = opened.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(task.socket))
        listener.listen(_BACKLOG)
        engine = app.state.engine
        server = _Server(CountsApp(FromFront(app), engine), on_ready=lambda: tell("ready", engine.live.digest))
        threading.Thread(
            target=_hear, args=(connection, app, server, task.shared), name="front", daemon=True
        ).start()
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve(sockets=[listener]))


def _hear(connection: Connection, app: FastAPI, server: _Server, shared: Path) -> None:
    """Do what the front says, to its end."""
    try:
        while connection.recv() == END:
            end_soon(app)
    except (EOFError, OSError):  # the front was killed, and cannot do it any more
        shutil.rmtree(shared, ignore_errors=True)
    end_soon(app)
    server.should_exit = True


class _Server(uvicorn.Server):
    """Answers on the worker's socket.

    Args:
        app: what answers.
        on_ready: called when it does.
    """

    def __init__(self, app: ASGIApp, *, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(
                app, log_config=None, log_level=None, access_log=False, ws="none", proxy_headers=False,
                server_header=False, date_header=False, timeout_keep_alive=_KEPT_S, timeout_graceful_shutdown=1,
            )
        )  # fmt: skip

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: they are the front's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell of it."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()
