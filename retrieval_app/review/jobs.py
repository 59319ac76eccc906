"""Background jobs: changes of the gallery, run one after the other by one thread while the gallery is served.

The queue is a SQLite table, which the processes of a server may share.
"""

import json
import logging
import math
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from index.catalog.rows import CatalogRow
from index.errors import CancelledError, InputError, RetrievalError
from index.filters.condition import Condition
from index.filters.parser import parse_filter, write_condition
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.images.image_files import REASONS
from index.progress import Progress
from index.public import evaluate
from index.system import try_lock
from index.text import printable_path
from index.writing.build import add_to_gallery, remove_from_gallery, update_gallery
from index.writing.publish_change import BuildReport
from retrieval_app.review import added_images
from retrieval_app.review.activity_log import ActivityLog, Client
from retrieval_app.review.subjects import find_subjects
from retrieval_app.serving.errors import BusyError, is_disk_full
from retrieval_app.serving.serving_config import ServingConfig
from retrieval_app.serving.shared_table import SharedTable

logger = logging.getLogger(__name__)

ADD, REMOVE, UPDATE, EVALUATE = ("add", "remove", "update", "evaluate")
TOGETHER = (ADD, REMOVE, UPDATE)
"""Kinds of which any number can be done at once."""
WAITING, RUNNING, DONE, FAILED, CANCELLED = ("waiting", "running", "done", "failed", "cancelled")
MOST_JOBS = 1000  # that wait, that are kept, and that are done at once
_MOST_EVALUATIONS_WAITING, _MOST_EVALUATIONS_KEPT = 10, 50  # their results may be long
_OVER = (DONE, FAILED, CANCELLED)
_RETRY_AFTER_S = 10
_MOST_TRIES = 3
_MAX_REMOVED = 10_000
_MAX_LOGGED = 300  # characters of the message about an end
_GRACE_S = 5.0  # that a running job may still take when the server stops
_STOPPED = "the server was stopped before its turn; do it again"
_STOPPED_ADDING = "the server was stopped before its turn; the image is kept and is added at the next start"
_KEPT = "; the image is kept, and is added by the next update or at the next start"
_STOPPED_RUNNING = "the server was stopped while it ran; what it has embedded is kept, do it again"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    is_cancel_requested INTEGER NOT NULL DEFAULT 0,
    details TEXT NOT NULL                      -- JSON of the other fields
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
"""
Tell = Callable[[str], None]
Outcome = tuple[str, dict[str, Any] | None]
"""Message and result of a job; the result is None where it failed."""


class UnknownJobError(InputError):
    """A job that never was, or is no longer kept."""

    def __init__(self) -> None:
        super().__init__("no such job; only the last jobs are kept, until the server stops")


class JobOverError(InputError):
    """Cancelling a job that is over."""

    def __init__(self, job: "Job") -> None:
        super().__init__(f"the job is over already, so it cannot be cancelled; its state: {job.state}")


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
    client: Client = field(default_factory=Client)
    work: Mapping[str, Any] = field(default_factory=dict)
    is_cancel_requested: bool = False
    tries: int = 0

    def to_json(self) -> dict[str, Any]:
        """The document of the API."""
        message = self.message.encode("utf-8", "backslashreplace").decode()  # it may name what is no text
        return {"job": self.id, "kind": self.kind, "state": self.state, "message": message, "result": self.result}


class JobList:
    """Jobs, safe among threads, and among processes where the list has a file.

    Args:
        on_over: called with each job that is done, has failed or was cancelled, by the process that ends it.
        path: the file; None keeps the jobs in memory.
        max_waiting: one more is refused.
        max_kept: of those that are over; the oldest go first.
    """

    def __init__(
        self,
        *,
        on_over: Callable[[Job], object] = lambda _: None,
        path: Path | None = None,
        max_waiting: int = MOST_JOBS,
        max_kept: int = MOST_JOBS,
    ) -> None:
        self._on_over, self._path, self._max_waiting, self._max_kept = on_over, path, max_waiting, max_kept
        self._table = SharedTable(path, _SCHEMA)

    def check_room(self, kind: str) -> None:
        """Raise BusyError where no further job of this kind may wait."""
        with self._table.reading() as table:
            self._check_room(table, kind)

    def append(self, kind: str, work: Mapping[str, Any], *, client: Client | None = None, once: bool = False) -> Job:
        """Append a job that waits; with `once`, return the job of this kind that waits already."""
        with self._table.writing() as table:
            waiting = _select(table, "state = ? AND kind = ?", WAITING, kind) if once else []
            if waiting:
                return waiting[-1]
            self._check_room(table, kind)
            job = Job(secrets.token_hex(8), kind, client=client or Client(), work=work)
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
                job = replace(job, message=message, is_cancel_requested=True)
            _store(table, job)
        if before.state == WAITING:
            self._on_over(job)
        return job

    def cancel_requested(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of some running jobs that were called off."""
        with self._table.reading() as table:
            gone = {row[0] for row in table.execute("SELECT id FROM jobs WHERE is_cancel_requested")}
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

    def update(self, jobs: Sequence[Job], *, state: str, message: str, result: Mapping[str, Any] | None = None) -> None:
        """Set the state of running jobs; a job that is called off keeps its state and message until it is over."""
        is_over = state in _OVER
        changed = [replace(job, state=state, message=message, result=result) for job in jobs]
        with self._table.writing() as table:
            for job in changed:
                _store(table, job, unless_cancel_requested=not is_over)
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
            if job.is_cancel_requested:
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
    sql = f"SELECT id, kind, state, is_cancel_requested, details FROM jobs WHERE {where} ORDER BY number LIMIT ?"
    for job_id, kind, state, is_cancel_requested, details in table.execute(sql, (*values, most)):
        fields = json.loads(details)
        fields["client"] = Client(*fields["client"])
        jobs.append(Job(job_id, kind, state, is_cancel_requested=bool(is_cancel_requested), **fields))
    return jobs


def _pack(job: Job) -> str:
    """The fields that no query needs, as JSON, which escapes messages that are no text."""
    return json.dumps(
        {
            "message": job.message,
            "result": job.result,
            "client": astuple(job.client),
            "work": job.work,
            "tries": job.tries,
        }
    )


def _find(table: sqlite3.Connection, job_id: str) -> Job:
    if not (found := _select(table, "id = ?", job_id)):
        raise UnknownJobError
    return found[0]


def _store(table: sqlite3.Connection, job: Job, *, unless_cancel_requested: bool = False) -> None:
    which = "id = ? AND NOT is_cancel_requested" if unless_cancel_requested else "id = ?"
    table.execute(
        f"UPDATE jobs SET state = ?, is_cancel_requested = is_cancel_requested OR ?, details = ? WHERE {which}",
        (job.state, job.is_cancel_requested, _pack(job), job.id),
    )


class _StoppedError(RetrievalError):
    """The server ends before the job."""


class Jobs:
    """The changes of one gallery, for any number of threads.

    A job that fails or is cancelled leaves the gallery as it was; a failed add keeps its image, and an update its
    embeddings. A change waits for other processes that write the gallery. Of several processes of a server one runs the
    jobs; another takes over when it is stopped or killed.

    Args:
        on_change: called when there is a new version, before its jobs count as done.
        open_gallery: gives the version that is served.
        limits: of uploaded images.
        log: gets a line at the end of each job.
        shared: folder that the processes of a server share; None where there is one process.
    """

    def __init__(
        self,
        gallery_path: Path,
        *,
        on_change: Callable[[], object],
        open_gallery: Callable[[], Gallery],
        limits: ServingConfig | None = None,
        log: ActivityLog | None = None,
        shared: Path | None = None,
    ) -> None:
        self._path = gallery_path.resolve()
        self._on_change, self._open_gallery = on_change, open_gallery
        self._limits = limits or ServingConfig()
        self._list = JobList(on_over=self._log_end, path=None if shared is None else shared / "jobs.sqlite")
        self._log, self._is_shared = log, shared is not None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="gallery-writer")
        self._closed = False
        self._end_at = math.inf
        self._ends = threading.Event()
        self._watcher: threading.Thread | None = None

    def add(self, data: bytes, *, name: str, label: str | None = None, client: Client | None = None) -> Job:
        """Keep an image's bytes, then add it; once this returns, a kill loses nothing (see `resume`)."""
        self._check_open(ADD)
        if label is not None and (labels_file := added_images.find_label_file(self._path)) is not None:
            raise InputError(
                f"{printable_path(name)}: this gallery takes all its labels from {printable_path(labels_file.name)}; "
                "add the image without a label, and write its label there"
            )
        pixels, most = self._limits.max_upload_pixels, self._limits.max_upload_bytes
        image = added_images.store_image(self._path, data, name=name, label=label, max_pixels=pixels, max_bytes=most)
        return self._append(ADD, {"image": image}, client=client)

    def remove(self, ids: Sequence[int], *, client: Client | None = None) -> Job:
        """Take images out of the gallery; their files stay."""
        if not 1 <= len(ids) <= _MAX_REMOVED:
            raise InputError(f"1 to {_MAX_REMOVED:,} images can be removed at once, got {len(ids):,}")
        find_subjects(self._open_gallery(), ids)
        return self._append(REMOVE, {"ids": list(ids)}, client=client)

    def update(self, *, client: Client | None = None) -> Job:
        """Update the gallery from its sources; an update that waits already stands for this one."""
        return self._append(UPDATE, {}, client=client, once=True)

    def evaluate(self, *, ks: Sequence[int], where: Condition | None = None, client: Client | None = None) -> Job:
        """Evaluate the gallery on its own labels; a filter chooses the queries."""
        if not ks or min(ks) < 1:
            raise InputError(f"k must be whole numbers of at least 1, got {list(ks)}")
        work = {"ks": list(ks), "where": None if where is None else write_condition(where)}
        return self._append(EVALUATE, work, client=client)

    def resume(self) -> list[Job]:
        """Add the images that were kept when the server stopped before their turn; called once at the start."""
        added_images.clear_incoming(self._path)
        return [self._append(ADD, {"image": image}) for image in added_images.find_forgotten(self._path)[:MOST_JOBS]]

    def watch(self, *, poll_s: float) -> None:
        """Run jobs that no process runs, as those of a killed process, from a thread."""
        self._watcher = threading.Thread(target=self._watch, args=(poll_s,), name="jobs", daemon=True)
        self._watcher.start()

    def get(self, job_id: str) -> Job:
        """A job, or an UnknownJobError."""
        return self._list.get(job_id)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that waits; call off one that runs, which ends at its next step. Its image is not kept."""
        before, job = self._list.get(job_id), self._list.cancel(job_id)
        if (before.state, job.state) == (WAITING, CANCELLED):
            self._forget([job])
        return job

    def stop(self) -> None:
        """Give the running job a few seconds; jobs that wait fail, or are left to other processes of the server."""
        self._closed = True
        self._end_at = min(self._end_at, time.monotonic() + _GRACE_S)
        self._drop_waiting()

    def close(self) -> None:
        """Stop, and wait for the end; may be called twice."""
        self.stop()
        self._ends.set()
        if self._watcher is not None:
            self._watcher.join()
        self._writer.shutdown(wait=True)

    def _check_open(self, kind: str) -> None:
        if self._closed:
            raise BusyError("the server is stopping; send it again when it is back", retry_after_s=10)
        self._list.check_room(kind)

    def _append(self, kind: str, work: Mapping[str, Any], *, client: Client | None = None, once: bool = False) -> Job:
        self._check_open(kind)
        job = self._list.append(kind, work, client=client, once=once)
        try:
            self._submit()
        except RuntimeError:  # closed meanwhile
            self._drop_waiting()
        return job

    def _submit(self) -> Future[None]:
        def log_failure(done: Future[None]) -> None:
            if (error := done.exception()) is not None:
                logger.error("a change of %s failed", printable_path(str(self._path)), exc_info=error)

        running = self._writer.submit(self._run_all)
        running.add_done_callback(log_failure)
        return running

    def _watch(self, poll_s: float) -> None:
        running: Future[None] | None = None
        while not self._ends.wait(poll_s):
            if (running is None or running.done()) and self._list.unfinished():
                running = self._submit()

    def _log_end(self, job: Job) -> None:
        if self._log is not None:
            message = job.message
            short = message if len(message) <= _MAX_LOGGED else f"{message[: _MAX_LOGGED - 1]}…"
            self._log.record(f"job-{job.state}", job.client, wait=False, job=job.id, kind=job.kind, message=short)

    def _drop_waiting(self) -> None:
        if not self._is_shared:
            self._list.drop_waiting(lambda kind: _STOPPED_ADDING if kind == ADD else _STOPPED)

    def _run_all(self) -> None:
        """Run the jobs that wait, unless another process of the server does."""
        with self._list.alone() as cancel_requested:
            if cancel_requested is None:
                return
            self._forget(cancel_requested)
            while not (self._closed and self._is_shared) and (batch := self._list.take()):
                try:
                    for one in self._run(batch, is_last_try=len(batch) == 1):  # one that fails stops no others
                        self._run([one], is_last_try=True)
                finally:
                    self._list.fail_running("an unforeseen failure; the server's log tells more")

    def _run(self, jobs: list[Job], *, is_last_try: bool) -> list[Job]:
        """Run jobs of one kind at once; returns those that failed together, to be run one by one."""
        while jobs:
            try:
                outcomes = self._change(jobs, partial(self._tell, jobs))
            except CancelledError:
                gone = self._list.cancel_requested(jobs)
                self._list.update(gone, state=CANCELLED, message="cancelled; the gallery is as it was")
                self._forget(gone)
                jobs = [job for job in jobs if job not in gone]  # which begin again
                continue
            except RetrievalError as error:
                if isinstance(error, _StoppedError) and self._is_shared:
                    self._list.give_back(jobs)
                    break
                if isinstance(error, InputError) and not is_last_try:
                    return jobs
                kept = _KEPT if jobs[0].kind == ADD and not isinstance(error, _StoppedError) else ""
                cause = "the disk is full: " if is_disk_full(error) else ""
                self._list.update(jobs, state=FAILED, message=f"{cause}{error}{kept}")
                break
            for job, (message, result) in zip(jobs, outcomes, strict=True):
                self._list.update([job], state=FAILED if result is None else DONE, message=message, result=result)
            break
        return []

    def _tell(self, jobs: Sequence[Job], words: str) -> None:
        """Report progress; raise CancelledError where a job is called off, _StoppedError where the server ends."""
        if self._list.cancel_requested(jobs):
            raise CancelledError("the job was cancelled")
        if time.monotonic() > self._end_at:
            raise _StoppedError(_STOPPED_ADDING if jobs[0].kind == ADD else _STOPPED_RUNNING)
        self._list.update(jobs, state=RUNNING, message=words)

    def _forget(self, jobs: Sequence[Job]) -> None:
        """Remove the images of cancelled jobs that no other job adds, and that are none of the gallery."""
        wanted = {job.work.get("image") for job in self._list.unfinished()}
        if images := {job.work["image"] for job in jobs if job.kind == ADD} - wanted:
            added_images.forget_images(self._path, images)

    def _change(self, jobs: Sequence[Job], tell: Tell) -> list[Outcome]:
        """Change the gallery by jobs of one kind; a RetrievalError means that nothing was changed."""
        kind, works = jobs[0].kind, [job.work for job in jobs]
        if kind == EVALUATE:
            return [self._evaluate(work, tell) for work in works]
        if kind == ADD:
            return self._add([work["image"] for work in works], tell)
        if kind == REMOVE:
            ids = tuple(sorted({image_id for work in works for image_id in work["ids"]}))
            report = remove_from_gallery(self._path, selection=Selection(ids=ids), **self._options(tell))
            self._show(report)
            return [
                (
                    f"removed {len(work['ids']):,} image{'s'[: len(work['ids']) != 1]}; the files are untouched",
                    {"ids": work["ids"], "version": report.version},
                )
                for work in works
            ]
        report = update_gallery(self._path, **self._options(tell))
        self._show(report)
        counts = {name: value for name, value in asdict(report).items() if name != "gallery"}
        return [("there is a new version" if report.changed else "nothing had changed", counts)] * len(jobs)

    def _add(self, images: Sequence[str], tell: Tell) -> list[Outcome]:
        report = add_to_gallery(self._path, added_images.name_sources(self._path, images), **self._options(tell))
        self._show(report)
        try:
            rows = added_images.read_added_rows(self._path)
        except (RetrievalError, OSError) as error:  # it is done all the same
            logger.error("the added images cannot be looked up", exc_info=error)
            result = {"image_id": None, "label": None, "duplicate_of": None, "version": report.version}
            return [(f"added, but its id cannot be looked up: {error}", result)] * len(images)
        return [_describe_added(image, rows.get(image), version=report.version) for image in images]

    def _evaluate(self, work: Mapping[str, Any], tell: Tell) -> Outcome:
        gallery, where = self._open_gallery(), None if work["where"] is None else parse_filter(work["where"])
        found = evaluate(gallery, k=work["ks"], where=where, scoring=_count_aloud("scoring", tell))
        return "evaluated", {**found.to_json(), "version": gallery.version}

    def _options(self, tell: Tell) -> dict[str, Any]:
        """The options of every function that writes the gallery."""

        def begin_step(name: str) -> Progress:
            tell(name.lower())
            return _count_aloud(name.lower(), tell)

        return {"progress": _count_aloud("embedding", tell), "begin_step": begin_step}

    def _show(self, report: BuildReport) -> None:
        """Let a new version be served; where that fails, the change is done all the same."""
        if report.changed:
            try:
                self._on_change()
            except Exception as error:  # whatever it is, the job is done and has not failed
                logger.error("version %s cannot be served yet", report.version, exc_info=error)


def _describe_added(image: str, row: CatalogRow | None, *, version: str) -> Outcome:
    if row is None:
        return "the image was not added: its file is not there any more; send it again", None
    if row.status not in ("indexed", "duplicate"):
        return f"the image was not added: {REASONS.get(row.reason or '', row.detail or row.status)}", None
    label = added_images.read_label(image)
    if label is not None and row.label != label:
        return f"image {row.id} was added, but its label is {row.label!r}, not {label!r}", None
    copy = "" if row.kept_id is None else f", left out as a near-duplicate of image {row.kept_id}"
    result = {"image_id": row.id, "label": row.label, "duplicate_of": row.kept_id, "version": version}
    return f"added as image {row.id}{copy}", result


def _count_aloud(name: str, tell: Tell) -> Progress:
    def count(done: int, total: int) -> None:
        tell(f"{name}: {done:,} of {total:,}" if total else name)

    return count
