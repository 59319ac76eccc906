"""Jobs that wait, run, or are done, and what is told of them."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from index.errors import InputError
from retrieval_app.review.activity_log import THE_SERVER
from retrieval_app.serving.errors import BusyError

WAITING, RUNNING, DONE, FAILED, CANCELLED = ("waiting", "running", "done", "failed", "cancelled")
_OVER = (DONE, FAILED, CANCELLED)
_RETRY_AFTER_S = 10

Work = TypeVar("Work")


class UnknownJobError(InputError):
    """A job that is not kept any more, or never was."""

    def __init__(self) -> None:
        super().__init__("no such job; only the last jobs are kept, until the server stops")


class JobOverError(InputError):
    """A job that is to be cancelled and is over already."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"the job is over already, so it cannot be cancelled; its state: {job.state}")


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked for a job, from which address, with which request; by default the server itself."""

    name: str = THE_SERVER
    address: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """What is told of a job: `message` is for people, `result` is of a done one; of `asker` only the log tells."""

    id: str
    kind: str
    state: str = WAITING
    message: str = "waiting for its turn"
    result: Mapping[str, Any] | None = None
    asker: Asker = Asker()

    def to_json(self) -> dict[str, Any]:
        """The document of the API."""
        values = asdict(self)
        del values["asker"]
        return {"job": values.pop("id"), **values}


class JobList(Generic[Work]):
    """Jobs with the work that each stands for, safe among threads.

    Args:
        max_waiting: one more is refused.
        max_kept: of those that are over; the oldest go first.
        max_of_kind: of some kinds, how many may wait, and how many that are over are kept.
        on_over: told of each that is done, has failed or was cancelled.
    """

    def __init__(
        self, *, max_waiting: int, max_kept: int, max_of_kind: Mapping[str, tuple[int, int]] | None = None,
        on_over: Callable[[Job], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._on_over = on_over
        self._max_waiting, self._max_kept, self._max_of_kind = max_waiting, max_kept, max_of_kind or {}
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[tuple[str, Work]] = deque()
        self._running: list[tuple[str, Work]] = []
        self._called_off: set[str] = set()
        self._lock = threading.Lock()

    def check_room(self, kind: str) -> None:
        """Raise BusyError where no job more of this kind may wait."""
        waiting = [self._jobs[job_id].kind for job_id, _ in tuple(self._waiting)]
        most, _ = self._max_of_kind.get(kind, (self._max_waiting, 0))
        if len(waiting) >= self._max_waiting:
            problem = f"{self._max_waiting:,} changes of the gallery"
        elif waiting.count(kind) >= most:
            problem = f"{most:,} jobs of the kind {kind}"
        else:
            return
        message = f"{problem} are waiting already; send it again later"
        raise BusyError(message, retry_after_s=_RETRY_AFTER_S)

    def append(self, kind: str, work: Work, *, asker: Asker | None = None) -> Job:
        """Let a job wait.

        Raises:
            BusyError: too many do.
        """
        with self._lock:
            self.check_room(kind)
            job = Job(secrets.token_hex(8), kind, asker=asker or Asker())
            self._jobs[job.id] = job
            self._waiting.append((job.id, work))
            self._drop_old()
        return job

    def find_waiting(self, kind: str) -> Job | None:
        """The last job of a kind that waits."""
        with self._lock:
            waiting = (self._jobs[job_id] for job_id, _ in reversed(self._waiting))
            return next((job for job in waiting if job.kind == kind), None)

    def cancel(self, job_id: str) -> tuple[Job, Work | None]:
        """Take a job that waits out, with its work; one that runs is called off, and ends when it asks for that.

        Raises:
            UnknownJobError: there is none.
            JobOverError: it is done or has failed.
        """
        with self._lock:
            job = self._find(job_id)
            if job.state in (DONE, FAILED):
                raise JobOverError(job)
            work = next((work for waiting, work in self._waiting if waiting == job_id), None)
            if work is not None:
                self._waiting.remove((job_id, work))
                job = replace(job, state=CANCELLED, message="cancelled before its turn")
            elif job.state == RUNNING:
                self._called_off.add(job_id)
                job = replace(job, message="is cancelled at its next step, unless it is done by then")
            self._jobs[job_id] = job
        if work is not None:
            self._on_over(job)
        return job, work

    def called_off(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of running jobs that somebody has cancelled."""
        with self._lock:
            return [job for job in jobs if job.id in self._called_off]

    def works(self) -> list[Work]:
        """What jobs that wait or run are to do."""
        with self._lock:
            left = {job.id for job in self._jobs.values() if job.state not in _OVER}
            return [work for job_id, work in (*self._running, *self._waiting) if job_id in left]

    def get(self, job_id: str) -> Job:
        """What is known of a job.

        Raises:
            UnknownJobError: nothing.
        """
        with self._lock:
            return self._find(job_id)

    def _find(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            raise UnknownJobError
        return self._jobs[job_id]

    def take(self, *, together: Sequence[str], most: int) -> list[tuple[Job, Work]]:
        """The next job, now running, with those of the same kind right behind it where its kind is done `together`."""
        with self._lock:
            taken: list[tuple[Job, Work]] = []
            while self._waiting and len(taken) < most:
                job_id, work = self._waiting[0]
                kind = self._jobs[job_id].kind
                if taken and (kind != taken[0][0].kind or kind not in together):
                    break
                self._waiting.popleft()
                job = replace(self._jobs[job_id], state=RUNNING, message="running")
                self._jobs[job_id] = job
                taken.append((job, work))
            self._running = [(job.id, work) for job, work in taken]
            return taken

    def update(
        self, jobs: Sequence[Job], *, state: str, message: str, result: Mapping[str, Any] | None = None
    ) -> None:
        """Say how far running jobs are, or how they ended; what was told of the end of one that is called off stays."""
        over = list[Job]()
        with self._lock:
            for job in jobs:
                if state == RUNNING and job.id in self._called_off:
                    continue
                self._jobs[job.id] = told = replace(job, state=state, message=message, result=result)
                if state in _OVER:
                    self._called_off.discard(job.id)
                    over.append(told)
        for job in over:
            self._on_over(job)

    def fail_running(self, message: str) -> None:
        """Say of jobs that still count as running, though nothing runs, why they failed."""
        with self._lock:
            running = [job for job in self._jobs.values() if job.state == RUNNING]
            self._running = []
        self.update(running, state=FAILED, message=message)

    def drop_waiting(self, explain: Callable[[str], str]) -> None:
        """Let no job wait any more; what is said depends on its kind."""
        with self._lock:
            dropped = [self._jobs[job_id] for job_id, _ in self._waiting]
            self._waiting.clear()
        for job in dropped:
            self.update([job], state=FAILED, message=explain(job.kind))

    def _drop_old(self) -> None:
        over = [job for job in self._jobs.values() if job.state in _OVER]
        dropped = over[: max(0, len(over) - self._max_kept)]
        for kind, (_, kept) in self._max_of_kind.items():
            of_kind = [job for job in over if job.kind == kind]
            dropped += of_kind[: max(0, len(of_kind) - kept)]
        for job in dropped:
            self._jobs.pop(job.id, None)
