"""The workers of a server: started, watched, started anew where one ends, and chosen from for each request."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import strsignal
from typing import TYPE_CHECKING

from index.errors import RetrievalError
from index.versions.versions import find_version
from retrieval_app.server.workers.worker_process import END, QUIT, WorkerTask, run_worker

if TYPE_CHECKING:
    from retrieval_app.server.options import ServeOptions

logger = logging.getLogger(__name__)

_LOOK_S, _GATHER_S = 0.5, 0.02
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # before one that ended is started anew; twice as long each time
_SOUND_S = 30.0  # one that lived so long ends by chance, and the next pause is short again
_LAST_S = 10.0  # that workers have to end in
_LOADED_BEFORE = ["retrieval_app.server.workers.worker_process", "faiss", "onnxruntime"]


@dataclass(eq=False, slots=True)
class Worker:
    """A process, as its front has it.

    Attributes:
        number: its place among the workers, which the one after it has too.
        process: itself.
        connection: to tell it what is to be done, and to be told.
        socket: where it listens.
        digest: of the version that it serves; None before it answers.
        busy: requests that it answers at the moment; of the event loop alone.
    """

    number: int
    process: ForkServerProcess
    connection: Connection
    socket: Path
    digest: str | None = None
    busy: int = 0
    answers_since: float = field(default_factory=time.monotonic)
    problem: str | None = None


class Supervisor:
    """The workers of one gallery.

    Args:
        options: of the server, with the number of workers.
        shared: folder of what they have together, which nobody else reads.
    """

    def __init__(self, options: ServeOptions, *, shared: Path) -> None:
        limits = replace(options.limits, threads=max(1, options.limits.workers // options.workers))
        self._options, self._shared = replace(options, limits=limits), shared
        [served] = options.galleries
        self._gallery = served.path
        self._starting = multiprocessing.get_context("forkserver")
        self._starting.set_forkserver_preload(_LOADED_BEFORE)  # so that one that is started anew answers soon
        self._lock = threading.Lock()
        self._workers: dict[int, Worker] = {}
        self._due: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._begun, self._newest = 0, ""
        self._is_ending = False
        self._lasting: Worker | None = None
        self._watcher = threading.Thread(target=self._watch, name="workers", daemon=True)
        self.swaps, self.ends = 0, 0

    def start(self) -> None:
        """Start the first worker, wait until it answers, and start the others.

        Raises:
            RetrievalError: it cannot open the gallery.
        """
        first = self._spawn(0)
        while first.digest is None:
            if not first.connection.poll(_LOOK_S) and first.process.is_alive():
                continue
            self._hear(first)
            if first.problem is not None or not first.process.is_alive():
                how = _describe_end(first.process)
                raise RetrievalError(first.problem or f"the first of the processes of --workers ended: {how}")
        for number in range(1, self._options.workers):
            self._spawn(number)
        self._watcher.start()

    @property
    def ready(self) -> list[Worker]:
        """Those that answer."""
        with self._lock:
            return [worker for worker in self._workers.values() if worker.digest is not None]

    def choose(self, *, always: bool = False, without: Set[Worker] = frozenset()) -> Worker | None:
        """The worker for a request: of those that serve the newest version the least busy; None where there is none.

        Args:
            always: whether all such requests are to go to the same one as long as it lives.
            without: those that are not to be asked.
        """
        ready = [worker for worker in self.ready if worker not in without]
        if always:
            if self._lasting not in ready:
                self._lasting = next(iter(ready), None)
            return self._lasting
        newest = [worker for worker in ready if worker.digest == self._newest] or ready
        return min(newest, key=lambda worker: (worker.busy, worker.number), default=None)

    def begin_end(self) -> None:
        """Start none anew, and let what would go on for long end."""
        self._is_ending = True
        self._tell(END)

    def close(self) -> None:
        """End all of them."""
        self._is_ending = True
        if self._watcher.ident is not None:
            self._watcher.join()
        self._tell(QUIT)
        until = time.monotonic() + _LAST_S
        for worker in self._workers.values():
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
            worker.connection.close()

    def _spawn(self, number: int) -> Worker:
        ours, theirs = self._starting.Pipe()
        place = self._shared / f"{number}-{self._begun}.sock"
        task = WorkerTask(self._options, self._shared, place, is_first=self._begun == 0)
        process = self._starting.Process(
            target=run_worker, args=(task, theirs), name=f"worker-{number}", daemon=True
        )
        process.start()
        theirs.close()
        worker = Worker(number, process, ours, place)
        with self._lock:
            self._begun += 1
            self._workers[number] = worker
        return worker

    def _watch(self) -> None:
        """Hear what workers tell, and start those anew that have ended."""
        while not self._is_ending:
            workers = {worker.connection: worker for worker in self._workers.values()}
            heard = wait([*workers, *(worker.process.sentinel for worker in workers.values())], _LOOK_S)
            is_ending = False
            for worker in workers.values():
                if worker.connection in heard:
                    is_ending |= not self._hear(worker)
                if not worker.process.is_alive() and not self._is_ending:
                    self._hear(worker)  # what it told before it ended
                    self._bury(worker)
            if is_ending:
                time.sleep(_GATHER_S)  # of one that ends is heard again and again until it has
            for number in [number for number, due in self._due.items() if time.monotonic() >= due]:
                try:
                    self._spawn(number)
                    del self._due[number]
                except (OSError, EOFError) as error:  # no memory, no process more: perhaps later
                    self._due[number] = time.monotonic() + _LONGEST_PAUSE_S
                    logger.error("worker %d cannot be started: %s", number, error)

    def _hear(self, worker: Worker) -> bool:
        """Take in what a worker has told so far; whether it may tell more."""
        try:
            while worker.connection.poll():
                word, told = worker.connection.recv()
                if word == "failed":
                    worker.problem = told
                else:
                    self._note_version(worker, told)
        except (EOFError, OSError):
            return False
        return True

    def _note_version(self, worker: Worker, digest: str) -> None:
        """A worker serves a version; it is the newest one where that is the gallery's own."""
        if worker.digest is None:
            worker.answers_since = time.monotonic()
        worker.digest = digest
        if digest == self._newest:
            return
        with suppress(RetrievalError, OSError):
            if self._newest and find_version(self._gallery).manifest_sha256 != digest:
                return  # it is behind
            self.swaps += bool(self._newest)
            self._newest = digest

    def _bury(self, worker: Worker) -> None:
        """Take leave of a worker that has ended; another is started in its place, the later the more often that is."""
        number, lived_s = worker.number, time.monotonic() - worker.answers_since
        is_sound = worker.digest is not None and lived_s > _SOUND_S
        pause_s = _PAUSE_S if is_sound else self._pauses.get(number, _PAUSE_S)
        self._pauses[number] = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._due[number] = time.monotonic() + pause_s
        with self._lock:
            del self._workers[number]
            self.ends += 1
        how = worker.problem or _describe_end(worker.process)
        logger.error("worker %d ended, another is started in %g s: %s", number, pause_s, how)
        worker.process.close()
        with suppress(OSError):  # it may live, where what had started it was killed, and nobody else ends it
            worker.connection.send(QUIT)
        worker.connection.close()
        worker.socket.unlink(missing_ok=True)

    def _tell(self, word: str) -> None:
        with self._lock:
            workers = list(self._workers.values())
        for worker in workers:
            with suppress(OSError):
                worker.connection.send(word)


@contextmanager
def supervise(options: ServeOptions, *, shared: Path) -> Iterator[Supervisor]:
    """The workers of a server, of which one answers; they end with the block.

    Raises:
        RetrievalError: the first of them cannot open the gallery.
    """
    supervisor = Supervisor(options, shared=shared)
    try:
        supervisor.start()
        yield supervisor
    finally:
        supervisor.close()


def _describe_end(process: ForkServerProcess) -> str:
    process.join()
    code = process.exitcode or 0
    return f"it was ended by signal {-code}, {strsignal(-code)}" if code < 0 else f"its exit code is {code}"
