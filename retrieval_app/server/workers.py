"""Several processes that serve one gallery: uvicorn's supervisor over one socket.

Each has a model and an index of its own. A folder has what they have together: photos that were sent, jobs, and what
Prometheus counts.
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
from index.telemetry import switch_off_telemetry
from retrieval_app.server.http_server import Lifecycle, allow_files, make_config, quiet_uvicorn

if TYPE_CHECKING:
    from retrieval_app.server.options import ServeOptions

logger = logging.getLogger(__name__)

_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_STARTED, _FAILED = "started", "failed"
_LOOK_S = 0.1
# Seconds in which a process answers its supervisor, also one that starts; else it is killed and another started. One
# that is killed just as it is asked is waited for as long.
_HUNG_S = 15
_PAUSE_S = 1.0  # before another is started where one cannot open the gallery any more


def run_workers(options: ServeOptions, *, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve in as many processes as the options say, until interrupted or terminated.

    Args:
        on_ready: called by a thread once one of them answers.
    """
    threads = max(1, options.limits.workers // options.workers)
    each = replace(options, limits=replace(options.limits, threads=threads))
    ended = threading.Event()
    with TemporaryDirectory(prefix="retrieval-serve-", ignore_cleanup_errors=True) as folder:
        shared = Path(folder)
        (shared / "metrics").mkdir()
        os.environ[_METRICS] = str(shared / "metrics")
        config = make_config(
            partial(create_worker_app, each, shared), options.connections, factory=True, workers=options.workers,
            timeout_worker_healthcheck=_HUNG_S,
        )  # fmt: skip
        quiet_uvicorn()
        announcing = threading.Thread(target=_announce, args=(shared, on_ready, ended), daemon=True)
        announcing.start()
        try:
            Multiprocess(config, sockets=[listener]).run()
        finally:
            del os.environ[_METRICS]
            ended.set()
            announcing.join()
        if (failed := shared / _FAILED).exists():
            raise RetrievalError(failed.read_text())


def _announce(shared: Path, on_ready: Callable[[], None], ended: threading.Event) -> None:
    while not (shared / _STARTED).exists():
        if ended.wait(_LOOK_S):
            return
    on_ready()


def create_worker_app(options: ServeOptions, shared: Path) -> ASGIApp:
    """The application of one process, which is closed when its server has ended."""
    from retrieval_app.server.app import open_server_app

    log_warnings()
    quiet_uvicorn()
    switch_off_telemetry()
    allow_files(options.connections)
    threading.Thread(target=_end_with, args=(os.getppid(), shared), daemon=True).start()
    begun = shared / "begun"
    begun.mkdir(exist_ok=True)
    (begun / str(os.getpid())).touch()
    if len([*begun.iterdir()]) > options.workers:
        logger.warning(
            "process %d of the server takes the place of one that ended or is replaced, or is one more",
            os.getpid(),
        )
    opened = ExitStack()
    try:
        served = opened.enter_context(open_server_app(options, shared=shared))
    except Exception as error:  # noqa: BLE001 - an endless row of processes would mend none of them
        told = str(error) if isinstance(error, RetrievalError | OSError) else repr(error)
        if (shared / _STARTED).exists():
            logger.error("a process cannot open the gallery, and is started anew: %s", told)
            time.sleep(_PAUSE_S)
            sys.exit(1)
        (shared / _FAILED).write_text(told)
        sys.exit(STARTUP_FAILURE)  # which ends the supervisor
    return Lifecycle(
        served.app, on_ready=(shared / _STARTED).touch, on_end=served.end, on_closed=opened.close
    )  # fmt: skip


def _end_with(supervisor: int, shared: Path) -> None:
    """End this process where its supervisor was killed, and cannot do it any more."""
    while os.getppid() == supervisor:
        time.sleep(_LOOK_S)
    shutil.rmtree(shared, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
