"""Background jobs: changes of the gallery, run one after the other by one thread while the gallery is served."""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from index.catalog.rows import CatalogRow
from index.errors import CancelledError, InputError, RetrievalError
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.images.image_files import REASONS
from index.progress import Progress
from index.text import printable_path
from index.writing.build import add_to_gallery, remove_from_gallery, update_gallery
from index.writing.publishing import BuildReport
from retrieval_app.review import added_images
from retrieval_app.review.activity_log import ActivityLog, Client
from retrieval_app.review.subjects import find_subjects
from retrieval_app.serving.errors import BusyError, is_disk_full
from retrieval_app.serving.serving_config import ServingConfig

logger = logging.getLogger(__name__)

ADD, REMOVE, UPDATE, MOVE = ("add", "remove", "update", "move")
WAITING, RUNNING, DONE, FAILED, CANCELLED = ("waiting", "running", "done", "failed", "cancelled")
MOST_JOBS = 1000  # limit of waiting, kept and parallel jobs
_OVER = (DONE, FAILED, CANCELLED)
_RETRY_AFTER_S = 10
_MAX_REMOVED = 10_000
_MAX_LOGGED = 300  # characters of the message about an end
_GRACE_S = 5.0  # time limit of running jobs when the server stops
_STOPPED = "the server was stopped before its turn; do it again"
_STOPPED_ADDING = "the server was stopped before its turn; the image is kept and is added at the next start"
_KEPT = "; the image is kept, and is added by the next update or at the next start"
_STOPPED_RUNNING = "the server was stopped while it ran; what it has embedded is kept, do it again"
Tell = Callable[[str], None]
Outcome = tuple[str, dict[str, Any] | None]
"""Message and result of a job; the result is None where it failed."""


class UnknownJobError(InputError):
    """No job with this id, or it is no longer kept."""

    def __init__(self) -> None:
        super().__init__("no such job; only the last jobs are kept, until the server stops")


class JobOverError(InputError):
    """Cancelling a job that is over."""

    def __init__(self, job: "Job") -> None:
        super().__init__(f"the job is over already, so it cannot be cancelled; its state: {job.state}")


@dataclass(frozen=True, slots=True)
class Job:
    """One job."""

    id: str
    kind: str
    state: str = WAITING
    message: str = "waiting for its turn"
    result: Mapping[str, Any] | None = None  # result of a finished job
    client: Client = field(default_factory=Client)
    work: Mapping[str, Any] = field(default_factory=dict)  # `image`, its name; or `ids`; or `run`, a function
    is_cancel_requested: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document of the API."""
        message = self.message.encode("utf-8", "backslashreplace").decode()  # it may name undecodable paths
        return {"job": self.id, "kind": self.kind, "state": self.state, "message": message, "result": self.result}


class _StoppedError(RetrievalError):
    """The server ends before the job."""


class Jobs:
    """The changes of one gallery, for any number of threads.

    A job that fails or is cancelled leaves the gallery as it was; a failed add keeps its image, and an update its
    embeddings. A move that is called off between two files is done: its result says which files stay. A change waits
    for other processes that write the gallery. Of jobs that are over, the last are kept.

    Jobs call `on_change` when there is a new version, before they count as done; `open_gallery` gives the served one.
    """

    def __init__(
        self,
        gallery_path: Path,
        *,
        on_change: Callable[[], object],
        open_gallery: Callable[[], Gallery],
        limits: ServingConfig | None = None,
        log: ActivityLog | None = None,
    ) -> None:
        self._path = gallery_path.resolve()
        self._on_change, self._open_gallery = on_change, open_gallery
        self._limits = limits or ServingConfig()
        self._log = log
        self._jobs: dict[str, Job] = {}  # the oldest first
        self._lock = threading.RLock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="gallery-writer")
        self._closed = False
        self._end_at = math.inf

    def add(self, data: bytes, *, name: str, label: str | None = None, client: Client | None = None) -> Job:
        """Keep an image's bytes, then add it; once this returns, a kill loses nothing (see `resume`)."""
        self._check_open()
        if label is not None and (labels_file := added_images.find_label_file(self._path)) is not None:
            raise InputError(
                f"{printable_path(name)}: this gallery takes all its labels from {printable_path(labels_file.name)}; "
                "add the image without a label, and write its label there"
            )
        pixels = self._limits.max_upload_pixels
        image = added_images.store_image(self._path, data, name=name, label=label, max_pixels=pixels)
        return self._append(ADD, {"image": image}, client=client)

    def remove(self, ids: Sequence[int], *, client: Client | None = None) -> Job:
        """Take images out of the gallery; their files stay."""
        if not 1 <= len(ids) <= _MAX_REMOVED:
            raise InputError(f"1 to {_MAX_REMOVED:,} images can be removed at once, got {len(ids):,}")
        find_subjects(self._open_gallery(), ids)
        return self._append(REMOVE, {"ids": list(ids)}, client=client)

    def update(self, *, client: Client | None = None) -> Job:
        """Update the gallery from its sources; an update that waits already stands for this one."""
        with self._lock:
            waiting = [job for job in self._select(WAITING) if job.kind == UPDATE]
            return waiting[-1] if waiting else self._append(UPDATE, {}, client=client)

    def move(self, run: Callable[[Progress], Outcome], *, client: Client | None = None) -> Job:
        """Move image files by a function, while nothing else changes the gallery."""
        return self._append(MOVE, {"run": run}, client=client)

    def resume(self) -> list[Job]:
        """Add the images that were kept when the server stopped before their turn; called once at the start."""
        added_images.clear_incoming(self._path)
        return [self._append(ADD, {"image": image}) for image in added_images.find_forgotten(self._path)[:MOST_JOBS]]

    def get(self, job_id: str) -> Job:
        """A job, or an UnknownJobError."""
        with self._lock:
            if (job := self._jobs.get(job_id)) is None:
                raise UnknownJobError
            return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a waiting job, or stop a running one at its next step. Its image is not kept."""
        with self._lock:
            job = self.get(job_id)
            if job.state in (DONE, FAILED):
                raise JobOverError(job)
            if job.state == RUNNING:
                message = "is cancelled at its next step, unless it is done by then"
                self._jobs[job_id] = replace(job, message=message, is_cancel_requested=True)
            elif job.state == WAITING:
                self._update([job], state=CANCELLED, message="cancelled before its turn")
            after = self._jobs[job_id]
        if job.state == WAITING:
            self._forget([job])
        return after

    def stop(self) -> None:
        """Give the running job a few seconds; jobs that wait fail."""
        with self._lock:
            self._closed = True
            self._end_at = min(self._end_at, time.monotonic() + _GRACE_S)
            for job in self._select(WAITING):
                self._update([job], state=FAILED, message=_STOPPED_ADDING if job.kind == ADD else _STOPPED)

    def close(self) -> None:
        """Stop, and wait for the end; may be called twice."""
        self.stop()
        self._writer.shutdown(wait=True)

    def _check_open(self) -> None:
        """Raise BusyError where no further job may wait."""
        if self._closed:
            raise BusyError("the server is stopping; send it again when it is back", retry_after_s=_RETRY_AFTER_S)
        if (waiting := len(self._select(WAITING))) >= MOST_JOBS:
            problem = f"{waiting:,} changes of the gallery are waiting already; send it again later"
            raise BusyError(problem, retry_after_s=_RETRY_AFTER_S)

    def _append(self, kind: str, work: Mapping[str, Any], *, client: Client | None = None) -> Job:
        with self._lock:
            self._check_open()
            job = Job(secrets.token_hex(8), kind, client=client or Client(), work=work)
            self._jobs[job.id] = job
            for oldest in self._select(*_OVER)[:-MOST_JOBS]:
                del self._jobs[oldest.id]
            self._writer.submit(self._run_all).add_done_callback(self._log_failure)
        return job

    def _select(self, *states: str) -> list[Job]:
        """The jobs in some states, the oldest first."""
        with self._lock:
            return [job for job in self._jobs.values() if job.state in states]

    def _update(
        self, jobs: Sequence[Job], *, state: str, message: str, result: Mapping[str, Any] | None = None
    ) -> None:
        """Set the state of jobs; a job that is called off keeps its message until it is over."""
        with self._lock:
            for job in jobs:
                current = self._jobs[job.id]
                if state in _OVER or not current.is_cancel_requested:
                    self._jobs[job.id] = replace(current, state=state, message=message, result=result)
                if state in _OVER and self._log is not None:
                    short = message if len(message) <= _MAX_LOGGED else f"{message[: _MAX_LOGGED - 1]}…"
                    self._log.record(f"job-{state}", job.client, wait=False, job=job.id, kind=job.kind, message=short)

    def _cancel_requested(self, jobs: Sequence[Job]) -> list[Job]:
        with self._lock:
            return [job for job in jobs if self._jobs[job.id].is_cancel_requested]

    def _log_failure(self, done: Future[None]) -> None:
        if (error := done.exception()) is not None:
            logger.error("a change of %s failed", printable_path(self._path), exc_info=error)

    def _take(self) -> list[Job]:
        """Next job, now running, with the following jobs of the same kind; moves go alone."""
        with self._lock:
            waiting = self._select(WAITING)
            taken = list(takewhile(lambda job: job.kind == waiting[0].kind, waiting))
            if taken and taken[0].kind == MOVE:
                del taken[1:]  # an error would run those before it again
            self._update(taken, state=RUNNING, message="running")
        return taken

    def _run_all(self) -> None:
        """Run the jobs that wait."""
        while batch := self._take():
            try:
                for one in self._run(batch, is_last_try=len(batch) == 1):  # one that fails stops no others
                    self._run([one], is_last_try=True)
            finally:
                message = "an unforeseen failure; the server's log tells more"
                self._update(self._select(RUNNING), state=FAILED, message=message)

    def _run(self, jobs: list[Job], *, is_last_try: bool) -> list[Job]:
        """Run jobs of one kind at once; returns those that failed together, to be run one by one."""
        while jobs:
            try:
                outcomes = self._change(jobs, partial(self._tell, jobs))
            except CancelledError:
                gone = self._cancel_requested(jobs)
                self._update(gone, state=CANCELLED, message="cancelled; the gallery is as it was")
                self._forget(gone)
                jobs = [job for job in jobs if job not in gone]  # removed jobs begin again
                continue
            except RetrievalError as error:
                if isinstance(error, InputError) and not is_last_try:
                    return jobs
                kept = _KEPT if jobs[0].kind == ADD and not isinstance(error, _StoppedError) else ""
                cause = "the disk is full: " if is_disk_full(error) else ""
                self._update(jobs, state=FAILED, message=f"{cause}{error}{kept}")
                break
            for job, (message, result) in zip(jobs, outcomes, strict=True):
                self._update([job], state=FAILED if result is None else DONE, message=message, result=result)
            break
        return []

    def _tell(self, jobs: Sequence[Job], words: str) -> None:
        """Report progress; raise CancelledError where a job is called off, _StoppedError where the server ends."""
        if self._cancel_requested(jobs):
            raise CancelledError("the job was cancelled")
        if time.monotonic() > self._end_at:
            raise _StoppedError({ADD: _STOPPED_ADDING, MOVE: _STOPPED}.get(jobs[0].kind, _STOPPED_RUNNING))
        self._update(jobs, state=RUNNING, message=words)

    def _forget(self, jobs: Sequence[Job]) -> None:
        """Remove the images of cancelled jobs that no other job adds and that the gallery does not have."""
        wanted = {job.work.get("image") for job in self._select(WAITING, RUNNING)}
        if images := {job.work["image"] for job in jobs if job.kind == ADD} - wanted:
            added_images.forget_images(self._path, images)

    def _change(self, jobs: Sequence[Job], tell: Tell) -> list[Outcome]:
        """Change the gallery by jobs of one kind; a RetrievalError means that nothing was changed."""
        kind, works = jobs[0].kind, [job.work for job in jobs]
        if kind == ADD:
            return self._add([work["image"] for work in works], tell)
        if kind == MOVE:
            return [work["run"](_count_aloud("moving", tell)) for work in works]
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
    copy = "" if row.kept_id is None else f", left out as a near-duplicate of image {row.kept_id}"
    result = {"image_id": row.id, "label": row.label, "duplicate_of": row.kept_id, "version": version}
    return f"added as image {row.id}{copy}", result


def _count_aloud(name: str, tell: Tell) -> Progress:
    def count(done: int, total: int) -> None:
        tell(f"{name}: {done:,} of {total:,}" if total else name)

    return count
