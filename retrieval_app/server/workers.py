"""Worker processes of one gallery: uvicorn's supervisor over one socket.

Each has a model and an index of its own. They share a folder of photos that were sent, jobs and metrics.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from index.commands.exit_codes import log_warnings
from index.errors import RetrievalError
from index.system import allow_open_files
from index.telemetry import switch_off_telemetry
from retrieval_app.server.http_server import OTHER_FILES, Lifecycle, make_config, quiet_uvicorn

if TYPE_CHECKING:
    from retrieval_app.server.options import ServeOptions

logger = logging.getLogger(__name__)

_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_STARTED, _FAILED = "started", "failed"
_LOOK_S = 0.1
# A process that does not answer its supervisor for so many seconds, also while it starts, is killed and replaced.
_HUNG_S = 15
_PAUSE_S = 1.0  # before another is started where one cannot open the gallery any more


def run_workers(options: ServeOptions, *, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until interrupted or terminated; a thread calls `on_ready` once one of the processes answers."""
    threads = max(1, options.limits.workers // options.workers)
    each = replace(options, limits=replace(options.limits, threads=threads))
    ended = threading.Event()
    with TemporaryDirectory(prefix="retrieval-serve-", ignore_cleanup_errors=True) as folder:
        shared = Path(folder)
        (shared / "metrics").mkdir()
        os.environ[_METRICS] = str(shared / "metrics")
        config = make_config(
            partial(create_worker_app, each, shared),
            options.connections,
            factory=True,
            workers=options.workers,
            timeout_worker_healthcheck=_HUNG_S,
        )
        quiet_uvicorn()

        def announce() -> None:
            while not (shared / _STARTED).exists():
                if ended.wait(_LOOK_S):
                    return
            on_ready()

        announcing = threading.Thread(target=announce, daemon=True)
        announcing.start()
        try:
            Multiprocess(config, sockets=[listener]).run()
        finally:
            del os.environ[_METRICS]
            ended.set()
            announcing.join()
        if (failed := shared / _FAILED).exists():
            raise RetrievalError(failed.read_text())


def create_worker_app(options: ServeOptions, shared: Path) -> ASGIApp:
    """The application of one process, closed when its server has ended."""
    from retrieval_app.server.app import open_server_app

    log_warnings()
    quiet_uvicorn()
    switch_off_telemetry()
    allow_open_files(options.connections.connections + OTHER_FILES)
    threading.Thread(target=_end_with, args=(os.getppid(), shared), daemon=True).start()
    begun = shared / "begun"
    begun.mkdir(exist_ok=True)
    (begun / str(os.getpid())).touch()
    if len([*begun.iterdir()]) > options.workers:
        logger.warning(
            "process %d of the server takes the place of one that ended or is replaced, or is one more", os.getpid()
        )
    opened = ExitStack()
    try:
        served = opened.enter_context(open_server_app(options, shared=shared))
    except Exception as error:  # noqa: BLE001 - an endless row of processes would mend none of them
        message = str(error) if isinstance(error, RetrievalError | OSError) else repr(error)
        if (shared / _STARTED).exists():
            logger.error("a process cannot open the gallery, and is started anew: %s", message)
            time.sleep(_PAUSE_S)
            sys.exit(1)
        (shared / _FAILED).write_text(message)
        sys.exit(STARTUP_FAILURE)  # which ends the supervisor
    on_ready = (shared / _STARTED).touch
    return Lifecycle(served.app, on_ready=on_ready, on_end=served.end, on_closed=opened.close)


def _end_with(supervisor: int, shared: Path) -> None:
    """End this process where its supervisor was killed."""
    while os.getppid() == supervisor:
        time.sleep(_LOOK_S)
    shutil.rmtree(shared, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
