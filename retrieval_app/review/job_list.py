"""Jobs that wait, run, or are done, and what is told of them: in a database, which processes of a server may share."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from index.durable import try_lock
from index.errors import InputError
from retrieval_app.review.activity_log import THE_SERVER
from retrieval_app.serving.errors import BusyError
from retrieval_app.serving.shared_table import SharedTable

WAITING, RUNNING, DONE, FAILED, CANCELLED = ("waiting", "running", "done", "failed", "cancelled")
_OVER = (DONE, FAILED, CANCELLED)
_RETRY_AFTER_S = 10
_MOST_TRIES = 3
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    message TEXT NOT NULL,                     -- JSON: it may name what is no text
    result TEXT,                               -- JSON, of one that is done
    asker TEXT NOT NULL,                       -- JSON: name, address, request
    work TEXT NOT NULL,
    is_called_off INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0           -- how often it was begun
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
"""
_COLUMNS = "id, kind, state, message, result, asker"

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
        message = self.message.encode("utf-8", "backslashreplace").decode()  # it may name what is no text
        told = {"kind": self.kind, "state": self.state, "message": message, "result": self.result}
        return {"job": self.id, **told}


class JobList(Generic[Work]):
    """Jobs with the work that each stands for, safe among threads, and among processes where it has a file.

    Args:
        max_waiting: one more is refused.
        max_kept: of those that are over; the oldest go first.
        max_of_kind: of some kinds, how many may wait, and how many that are over are kept.
        on_over: told of each that is done, has failed or was cancelled, by the process that ends it.
        path: the file; None keeps them in this process's memory.
        pack: writes the work of a job.
        unpack: reads what `pack` wrote.
    """

    def __init__(
        self, *, max_waiting: int, max_kept: int, max_of_kind: Mapping[str, tuple[int, int]] | None = None,
        on_over: Callable[[Job], object] = lambda _: None, path: Path | None = None,
        pack: Callable[[Work], str] = json.dumps, unpack: Callable[[str], Work] = json.loads,
    ) -> None:  # fmt: skip
        self._on_over, self._path, self._pack, self._unpack = on_over, path, pack, unpack
        self._max_waiting, self._max_kept, self._max_of_kind = max_waiting, max_kept, max_of_kind or {}
        self._table = SharedTable(path, _SCHEMA)

    def check_room(self, kind: str) -> None:
        """Raise BusyError where no job more of this kind may wait."""
        with self._table.reading() as table:
            self._check_room(table, kind)

    def append(self, kind: str, work: Work, *, asker: Asker | None = None, once: bool = False) -> Job:
        """Let a job wait; or, `once`, the one of its kind that waits already is it."""
        with self._table.writing() as table:
            sql = f"SELECT {_COLUMNS} FROM jobs WHERE state = ? AND kind = ? ORDER BY number DESC"
            waiting = table.execute(sql, (WAITING, kind)).fetchone() if once else None
            if waiting is not None:
                return _read(waiting)
            self._check_room(table, kind)
            job = Job(secrets.token_hex(8), kind, asker=asker or Asker())
            sql = "INSERT INTO jobs (id, kind, state, message, asker, work) VALUES (?, ?, ?, ?, ?, ?)"
            told = (json.dumps(job.message), json.dumps(astuple(job.asker)))
            table.execute(sql, (job.id, kind, job.state, *told, self._pack(work)))
            self._drop_old(table)
        return job

    def cancel(self, job_id: str) -> tuple[Job, Work | None]:
        """Take a job that waits out, with its work; one that runs is called off, and ends when it asks for that.

        Raises:
            UnknownJobError: there is none.
            JobOverError: it is done or has failed.
        """
        work = None
        with self._table.writing() as table:
            job = _find(table, job_id)
            if job.state in (DONE, FAILED):
                raise JobOverError(job)
            if job.state == WAITING:
                work = self._unpack(table.execute("SELECT work FROM jobs WHERE id = ?", (job_id,)).fetchone()[0])
                job = replace(job, state=CANCELLED, message="cancelled before its turn")
            elif job.state == RUNNING:
                job = replace(job, message="is cancelled at its next step, unless it is done by then")
            sql = "UPDATE jobs SET state = ?, message = ?, is_called_off = ? WHERE id = ?"
            table.execute(sql, (job.state, json.dumps(job.message), job.state == RUNNING, job_id))
        if work is not None:
            self._on_over(job)
        return job, work

    def called_off(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of running jobs that somebody has cancelled."""
        with self._table.reading() as table:
            gone = {row[0] for row in table.execute("SELECT id FROM jobs WHERE is_called_off")}
        return [job for job in jobs if job.id in gone]

    def works(self) -> list[Work]:
        """What jobs that wait or run are to do."""
        with self._table.reading() as table:
            sql = "SELECT work FROM jobs WHERE state IN (?, ?) ORDER BY number"
            return [self._unpack(row[0]) for row in table.execute(sql, (RUNNING, WAITING))]

    def get(self, job_id: str) -> Job:
        """What is known of a job."""
        with self._table.reading() as table:
            return _find(table, job_id)

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or runs."""
        with self._table.reading() as table:
            sql = "SELECT 1 FROM jobs WHERE state IN (?, ?) LIMIT 1"
            return table.execute(sql, (RUNNING, WAITING)).fetchone() is None

    @contextmanager
    def alone(self) -> Iterator[list[Work] | None]:
        """Let this process alone run jobs until the block ends; the system sees to it where it is killed.

        Gives the work of those that were called off, and whose process ended before it heard of that; None where
        another process runs jobs.
        """
        if self._path is None:
            yield []
            return
        with self._path.with_suffix(".lock").open("ab") as file:
            yield self._put_back() if try_lock(file) else None

    def take(self, *, together: Sequence[str], most: int) -> list[tuple[Job, Work]]:
        """The next job, now running, with those of the same kind right behind it where its kind is done `together`."""
        with self._table.writing() as table:
            taken: list[tuple[Job, Work]] = []
            sql = f"SELECT {_COLUMNS}, work, tries FROM jobs WHERE state = ? ORDER BY number LIMIT ?"
            is_tried = False
            for *row, work, tries in table.execute(sql, (WAITING, most)):
                job = replace(_read(row), state=RUNNING, message="running")
                is_tried |= tries > 0  # what a process may have ended at is tried alone
                if taken and (is_tried or job.kind != taken[0][0].kind or job.kind not in together):
                    break
                taken.append((job, self._unpack(work)))
            sql = "UPDATE jobs SET state = ?, message = ?, tries = tries + 1 WHERE id = ?"
            table.executemany(sql, [(job.state, json.dumps(job.message), job.id) for job, _ in taken])
            return taken

    def update(
        self, jobs: Sequence[Job], *, state: str, message: str, result: Mapping[str, Any] | None = None
    ) -> None:
        """Say how far running jobs are, or how they ended; what was told of the end of one that is called off stays."""
        is_over, packed = state in _OVER, None if result is None else json.dumps(result)
        with self._table.writing() as table:
            which = "id = ?" if is_over else "id = ? AND NOT is_called_off"
            sql = f"UPDATE jobs SET state = ?, message = ?, result = ?, is_called_off = 0 WHERE {which}"
            table.executemany(sql, [(state, json.dumps(message), packed, job.id) for job in jobs])
        for job in jobs if is_over else ():
            self._on_over(replace(job, state=state, message=message, result=result))

    def fail_running(self, message: str) -> None:
        """Say of jobs that still count as running, though nothing runs, why they failed."""
        self.update(self._list(RUNNING), state=FAILED, message=message)

    def drop_waiting(self, explain: Callable[[str], str]) -> None:
        """Let no job wait any more; what is said depends on its kind."""
        for job in self._list(WAITING):
            dropped = replace(job, state=FAILED, message=explain(job.kind))
            with self._table.writing() as table:  # it may run by now
                sql = "UPDATE jobs SET state = ?, message = ? WHERE id = ? AND state = ?"
                told = (dropped.state, json.dumps(dropped.message), job.id, WAITING)
                is_dropped = table.execute(sql, told).rowcount > 0
            if is_dropped:
                self._on_over(dropped)

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Let running jobs wait again, for another process, as if they had not been begun."""
        with self._table.writing() as table:
            sql = "UPDATE jobs SET state = ?, message = ?, tries = tries - 1 WHERE id = ?"
            message = json.dumps("waiting: the process that ran it was stopped")
            table.executemany(sql, [(WAITING, message, job.id) for job in jobs])

    def _put_back(self) -> list[Work]:
        """Let jobs whose process has ended wait again, but for those tried often; the work of those called off."""
        with self._table.reading() as table:
            sql = f"SELECT {_COLUMNS}, work, is_called_off, tries FROM jobs WHERE state = ? ORDER BY number"
            rows = table.execute(sql, (RUNNING,)).fetchall()
        gone = list[Work]()
        for *row, work, is_called_off, tries in rows:
            job = _read(row)
            if is_called_off:
                gone.append(self._unpack(work))
                self.update([job], state=CANCELLED, message="cancelled, and the process that ran it ended")
            elif tries >= _MOST_TRIES:
                self.update([job], state=FAILED, message=f"{tries} processes ended while they ran it")
            else:
                self.update([job], state=WAITING, message="waiting: the process that ran it ended")
        return gone

    def _list(self, state: str) -> list[Job]:
        with self._table.reading() as table:
            rows = table.execute(f"SELECT {_COLUMNS} FROM jobs WHERE state = ? ORDER BY number", (state,))
            return [_read(row) for row in rows]

    def _check_room(self, table: sqlite3.Connection, kind: str) -> None:
        sql = "SELECT count(*), coalesce(sum(kind = ?), 0) FROM jobs WHERE state = ?"
        waiting, of_kind = table.execute(sql, (kind, WAITING)).fetchone()
        most, _ = self._max_of_kind.get(kind, (self._max_waiting, 0))
        if waiting >= self._max_waiting:
            problem = f"{self._max_waiting:,} changes of the gallery"
        elif of_kind >= most:
            problem = f"{most:,} jobs of the kind {kind}"
        else:
            return
        message = f"{problem} are waiting already; send it again later"
        raise BusyError(message, retry_after_s=_RETRY_AFTER_S)

    def _drop_old(self, table: sqlite3.Connection) -> None:
        over = (
            "SELECT number FROM jobs WHERE state NOT IN (?, ?) AND kind = coalesce(?, kind) ORDER BY number DESC"
        )
        of_kind = [(kind, kept) for kind, (_, kept) in self._max_of_kind.items()]
        for kind, kept in [(None, self._max_kept), *of_kind]:
            sql = f"DELETE FROM jobs WHERE number IN ({over} LIMIT -1 OFFSET ?)"
            table.execute(sql, (WAITING, RUNNING, kind, kept))


def _read(row: Sequence[Any]) -> Job:
    job_id, kind, state, message, result, asker = row
    told = None if result is None else cast("dict[str, Any]", json.loads(result))
    return Job(job_id, kind, state, json.loads(message), told, Asker(*json.loads(asker)))


def _find(table: sqlite3.Connection, job_id: str) -> Job:
    row = table.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise UnknownJobError
    return _read(row)
