"""Job queue: jobs that wait, run, or are over, in a SQLite table which the processes of a server may share."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from index.durable import try_lock
from index.errors import InputError
from retrieval_app.review.activity_log import THE_SERVER
from retrieval_app.serving.errors import BusyError
from retrieval_app.serving.shared_table import SharedTable

ADD, REMOVE, UPDATE, EVALUATE = ("add", "remove", "update", "evaluate")
TOGETHER = (ADD, REMOVE, UPDATE)
"""Kinds of which any number can be done at once."""
WAITING, RUNNING, DONE, FAILED, CANCELLED = ("waiting", "running", "done", "failed", "cancelled")
MOST_JOBS = 1000  # that wait, that are kept, and that are done at once
_MOST_EVALUATIONS_WAITING, _MOST_EVALUATIONS_KEPT = 10, 50  # their results may be long
_OVER = (DONE, FAILED, CANCELLED)
_RETRY_AFTER_S = 10
_MOST_TRIES = 3
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    is_called_off INTEGER NOT NULL DEFAULT 0,
    details TEXT NOT NULL                      -- JSON of the other fields
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
"""


class UnknownJobError(InputError):
    """A job that never was, or is no longer kept."""

    def __init__(self) -> None:
        super().__init__("no such job; only the last jobs are kept, until the server stops")


class JobOverError(InputError):
    """Cancelling a job that is over."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"the job is over already, so it cannot be cancelled; its state: {job.state}")


@dataclass(frozen=True, slots=True)
class Asker:
    """Client that requested a job; by default the server itself."""

    name: str = THE_SERVER
    address: str = ""
    request: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        message: for people.
        result: of a job that is done.
        work: `image`, the name of an added image; `ids` to remove; or `ks` and `where` of an evaluation.
        tries: the number of its starts.
    """

    id: str
    kind: str
    state: str = WAITING
    message: str = "waiting for its turn"
    result: Mapping[str, Any] | None = None
    asker: Asker = Asker()
    work: Mapping[str, Any] = field(default_factory=dict)
    is_called_off: bool = False
    tries: int = 0

    def to_json(self) -> dict[str, Any]:
        """The document of the API."""
        message = self.message.encode("utf-8", "backslashreplace").decode()  # it may name what is no text
        return {
            "job": self.id, "kind": self.kind, "state": self.state, "message": message, "result": self.result
        }  # fmt: skip


class JobList:
    """Jobs, safe among threads, and among processes where the list has a file.

    Args:
        on_over: called with each job that is done, has failed or was cancelled, by the process that ends it.
        path: the file; None keeps the jobs in memory.
        max_waiting: one more is refused.
        max_kept: of those that are over; the oldest go first.
    """

    def __init__(
        self, *, on_over: Callable[[Job], object] = lambda _: None, path: Path | None = None,
        max_waiting: int = MOST_JOBS, max_kept: int = MOST_JOBS,
    ) -> None:  # fmt: skip
        self._on_over, self._path, self._max_waiting, self._max_kept = on_over, path, max_waiting, max_kept
        self._table = SharedTable(path, _SCHEMA)

    def check_room(self, kind: str) -> None:
        """Raise BusyError where no further job of this kind may wait."""
        with self._table.reading() as table:
            self._check_room(table, kind)

    def append(self, kind: str, work: Mapping[str, Any], *, asker: Asker | None = None, once: bool = False) -> Job:
        """Append a job that waits; with `once`, return the job of this kind that waits already."""
        with self._table.writing() as table:
            waiting = _select(table, "state = ? AND kind = ?", WAITING, kind) if once else []
            if waiting:
                return waiting[-1]
            self._check_room(table, kind)
            job = Job(secrets.token_hex(8), kind, asker=asker or Asker(), work=work)
            sql = "INSERT INTO jobs (id, kind, state, details) VALUES (?, ?, ?, ?)"
            table.execute(sql, (job.id, kind, job.state, _pack(job)))
            for of_kind, kept in ((None, self._max_kept), (EVALUATE, _MOST_EVALUATIONS_KEPT)):
                table.execute(
                    "DELETE FROM jobs WHERE number IN (SELECT number FROM jobs WHERE state NOT IN (?, ?) "
                    "AND kind = coalesce(?, kind) ORDER BY number DESC LIMIT -1 OFFSET ?)",
                    (WAITING, RUNNING, of_kind, kept),
                )
        return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that waits; call off one that runs, which ends at its next step."""
        with self._table.writing() as table:
            job = before = _find(table, job_id)
            if job.state in (DONE, FAILED):
                raise JobOverError(job)
            if job.state == WAITING:
                job = replace(job, state=CANCELLED, message="cancelled before its turn")
            elif job.state == RUNNING:
                message = "is cancelled at its next step, unless it is done by then"
                job = replace(job, message=message, is_called_off=True)
            _store(table, job)
        if before.state == WAITING:
            self._on_over(job)
        return job

    def called_off(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of some running jobs that were called off."""
        with self._table.reading() as table:
            gone = {row[0] for row in table.execute("SELECT id FROM jobs WHERE is_called_off")}
        return [job for job in jobs if job.id in gone]

    def unfinished(self) -> list[Job]:
        """The jobs that wait or run."""
        with self._table.reading() as table:
            return _select(table, "state IN (?, ?)", RUNNING, WAITING)

    def get(self, job_id: str) -> Job:
        """A job, or an UnknownJobError."""
        with self._table.reading() as table:
            return _find(table, job_id)

    @contextmanager
    def alone(self) -> Iterator[list[Job] | None]:
        """Lock the running of jobs until the block ends, or the process is killed; None where another process has it.

        Gives the jobs that were called off and whose process ended before it noticed.
        """
        if self._path is None:
            yield []
            return
        with self._path.with_suffix(".lock").open("ab") as file:
            yield self._put_back() if try_lock(file) else None

    def take(self) -> list[Job]:
        """The next job, now running, with those of the same kind right behind it where they can be done together."""
        taken, is_tried = list[Job](), False
        with self._table.writing() as table:
            for job in _select(table, "state = ?", WAITING, most=MOST_JOBS):
                is_tried |= job.tries > 0  # what a process may have ended at is tried alone
                if taken and (is_tried or job.kind != taken[0].kind or job.kind not in TOGETHER):
                    break
                taken.append(replace(job, state=RUNNING, message="running", tries=job.tries + 1))
                _store(table, taken[-1])
        return taken

    def update(
        self, jobs: Sequence[Job], *, state: str, message: str, result: Mapping[str, Any] | None = None
    ) -> None:
        """Set the state of running jobs; a job that is called off keeps its state and message until it is over."""
        is_over = state in _OVER
        changed = [replace(job, state=state, message=message, result=result) for job in jobs]
        with self._table.writing() as table:
            for job in changed:
                _store(table, job, unless_called_off=not is_over)
        for job in changed if is_over else ():
            self._on_over(job)

    def fail_running(self, message: str) -> None:
        """Let jobs fail that count as running although none runs."""
        self.update([job for job in self.unfinished() if job.state == RUNNING], state=FAILED, message=message)

    def drop_waiting(self, explain: Callable[[str], str]) -> None:
        """Let all jobs that wait fail; `explain` gives the message for a kind."""
        with self._table.writing() as table:
            waiting = _select(table, "state = ?", WAITING)
            dropped = [replace(job, state=FAILED, message=explain(job.kind)) for job in waiting]
            for job in dropped:
                _store(table, job)
        for job in dropped:
            self._on_over(job)

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Let running jobs wait again, for another process, as if they had not been begun."""
        message = "waiting: the process that ran it was stopped"
        with self._table.writing() as table:
            for job in jobs:
                _store(table, replace(job, state=WAITING, message=message, tries=job.tries - 1))

    def _put_back(self) -> list[Job]:
        """Let jobs whose process has ended wait again, unless they were tried often; the jobs that were called off."""
        gone = list[Job]()
        for job in self.unfinished():
            if job.state != RUNNING:
                continue
            if job.is_called_off:
                gone.append(job)
                self.update([job], state=CANCELLED, message="cancelled, and the process that ran it ended")
            elif job.tries >= _MOST_TRIES:
                self.update([job], state=FAILED, message=f"{job.tries} processes ended while they ran it")
            else:
                self.update([job], state=WAITING, message="waiting: the process that ran it ended")
        return gone

    def _check_room(self, table: sqlite3.Connection, kind: str) -> None:
        sql = "SELECT count(*), coalesce(sum(kind = ?), 0) FROM jobs WHERE state = ?"
        waiting, of_kind = table.execute(sql, (kind, WAITING)).fetchone()
        if waiting >= self._max_waiting:
            problem = f"{self._max_waiting:,} changes of the gallery"
        elif kind == EVALUATE and of_kind >= _MOST_EVALUATIONS_WAITING:
            problem = f"{of_kind:,} jobs of the kind {kind}"
        else:
            return
        message = f"{problem} are waiting already; send it again later"
        raise BusyError(message, retry_after_s=_RETRY_AFTER_S)


def _select(table: sqlite3.Connection, where: str, *values: object, most: int = -1) -> list[Job]:
    """The jobs that a condition keeps, the oldest first."""
    jobs = list[Job]()
    sql = f"SELECT id, kind, state, is_called_off, details FROM jobs WHERE {where} ORDER BY number LIMIT ?"
    for job_id, kind, state, is_called_off, details in table.execute(sql, (*values, most)):
        fields = json.loads(details)
        fields["asker"] = Asker(*fields["asker"])
        jobs.append(Job(job_id, kind, state, is_called_off=bool(is_called_off), **fields))
    return jobs


def _pack(job: Job) -> str:
    """The fields that no query needs, as JSON, which escapes messages that are no text."""
    return json.dumps({
        "message": job.message, "result": job.result, "asker": astuple(job.asker), "work": job.work,
        "tries": job.tries,
    })  # fmt: skip


def _find(table: sqlite3.Connection, job_id: str) -> Job:
    if not (found := _select(table, "id = ?", job_id)):
        raise UnknownJobError
    return found[0]


def _store(table: sqlite3.Connection, job: Job, *, unless_called_off: bool = False) -> None:
    which = "id = ? AND NOT is_called_off" if unless_called_off else "id = ?"
    table.execute(
        f"UPDATE jobs SET state = ?, is_called_off = is_called_off OR ?, details = ? WHERE {which}",
        (job.state, job.is_called_off, _pack(job), job.id),
    )
