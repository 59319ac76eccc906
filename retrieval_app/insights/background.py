"""Background computation of results of a gallery version: begun at the first request, kept on disk."""

import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import PriorityQueue
from time import monotonic
from typing import Any, Generic, Literal, TypeVar

from pydantic import TypeAdapter

from index.durable import replacing
from index.errors import RetrievalError
from index.gallery.gallery import Gallery
from index.labels.issues import LabelIssues
from index.labels.simulated_noise import ErrorCalibration
from index.progress import Progress, no_progress
from index.text import printable_path
from index.threads import multiplying_workers
from retrieval_app.insights import calibration, label_issues, map_layout, quality
from retrieval_app.insights.calibration import Calibration
from retrieval_app.insights.label_issues import Decisions
from retrieval_app.insights.map_layout import MapLayout
from retrieval_app.insights.quality import Quality
from retrieval_app.reports import duplicates_report
from retrieval_app.reports.duplicates_report import DuplicateReport

logger = logging.getLogger(__name__)
Name = Literal["calibration", "duplicates", "label_issues", "updated_issues", "quality", "map", "words"]
Value = TypeVar("Value")
RETRY_S = 10.0  # before what failed is tried again
_RETRY_TIMES = 4  # least pause before a retry, in durations of the failed attempt: failures keep no core busy
_FORMAT = 4  # version of kept files and of the computation: a change makes all earlier files unreadable
Result = TypeVar("Result")
_MISTAKE = "it could not be computed because of a mistake in the program; the log says more"
_NOT_SERVED = "this version of the gallery is no longer served; ask again"


@dataclass(frozen=True, slots=True)
class Computed(Generic[Value]):
    """State of a computed result; `message` says why it failed."""

    state: Literal["ready", "computing", "failed"]
    value: Value | None = None  # once it is ready, and may be None then too
    done: int = 0
    total: int = 0  # 0 where it is not known
    behind: Name | None = None  # result that is computed first, whose `done` and `total` these are
    message: str | None = None


@dataclass(slots=True)
class _Task:
    """A result, how it is computed, and how far that is."""

    # takes the instance: a bound method would keep an unused version open
    compute: "Callable[[Insights, Gallery, Progress], Any]"
    kind: type | None = None  # type of the result, if it is kept on disk
    of_decisions: bool = False  # it is computed anew after a decision about labels
    goes_on: bool = False  # the value of before holds while that is done, and for a rest afterwards
    computed: Computed[Any] | None = None  # None before the first request
    made_of: str = ""  # digest of the decisions that it was computed from
    retry_at: float = 0.0

    @property
    def is_computing(self) -> bool:
        """Whether it is queued or being computed."""
        return self.computed is not None and self.computed.state == "computing"

    def is_wanted(self, decisions: str) -> bool:
        """Whether a request starts the computation: the first, one after a failure, or one after new decisions."""
        rests = monotonic() < self.retry_at
        if self.computed is None:
            return True
        if self.computed.state == "ready":
            return self.of_decisions and self.made_of != decisions and not (self.goes_on and rests)
        return self.computed.state == "failed" and not rests

    def computing(self, done: int = 0, total: int = 0) -> Computed[Any]:
        """The state while it is computed."""
        before = self.computed.value if self.goes_on and self.computed else None
        return Computed("computing", before, done, total)


class Insights:
    """Results of an opened version that one thread computes, the fastest first; thread-safe.

    Label issues, duplicates and the places on the map are of the given labels; quality and calibration are computed
    anew after a decision about labels.

    Args:
        cache: a folder that keeps results other than the calibration, for the last two versions.
    """

    def __init__(self, gallery: Gallery, *, cache: Path | None) -> None:
        self._gallery, self._given = gallery, gallery.without_decisions
        self._folder = None if cache is None else cache / gallery.version
        self._of = hashlib.sha256(gallery.manifest.to_json().encode()).hexdigest()
        self._changed = threading.Condition()
        self._line = PriorityQueue[tuple[int, Name | None]]()
        self._worker: threading.Thread | None = None
        self._running: Name | None = None
        self._closed = False
        self._seen: Decisions = {}  # decisions of the last update of the label issues
        self._calibration: ErrorCalibration | None = None  # calibration before any decision
        self._tasks: dict[Name, _Task] = {  # what takes longer comes later
            "calibration": _Task(Insights._calibrate, of_decisions=True, goes_on=True),
            "duplicates": _Task(Insights._find_duplicates, DuplicateReport),
            "label_issues": _Task(Insights._find_label_issues, LabelIssues),
            "updated_issues": _Task(Insights._update_now, goes_on=True),
            "quality": _Task(Insights._assess_quality, Quality, of_decisions=True),
            "map": _Task(Insights._lay_out, MapLayout),
            "words": _Task(Insights._list_words, of_decisions=True, goes_on=True),
        }

    def get(self, name: Name) -> Computed[Any]:
        """State of a result, without waiting; the first call queues its computation."""
        with self._changed:
            task = self._tasks[name]
            if task.is_wanted(self._gallery.decided.digest):
                if self._closed:
                    return Computed("failed", message=_NOT_SERVED)
                self._begin(name)
            assert task.computed is not None
            running = self._running
            if not task.is_computing or task.computed.total or running in (None, name):
                return task.computed
            first = self._tasks[running].computed or task.computed
            return replace(task.computed, behind=running, done=first.done, total=first.total)

    def follow(self, gallery: Gallery) -> None:
        """Compute from other decisions about the labels of the same version from now on."""
        with self._changed:
            self._gallery = gallery

    def wait(self, name: Name, *, timeout: float | None = None) -> Computed[Any]:
        """Get a result once it is computed or `timeout` seconds have passed."""
        asked, task = self.get(name), self._tasks[name]
        with self._changed:
            self._changed.wait_for(lambda: not task.is_computing, timeout)
            return task.computed or asked

    @property
    def calibration(self) -> Computed[Calibration]:
        """Calibration of scores; ready without a value where too few members have labels."""
        return self.get("calibration")

    @property
    def duplicates(self) -> Computed[DuplicateReport]:
        """Groups of near-duplicates."""
        return self.get("duplicates")

    @property
    def label_issues(self) -> Computed[LabelIssues]:
        """Label issues, as people's decisions have changed them."""
        base: Computed[LabelIssues] = self.get("label_issues")
        return base if base.value is None else Computed("ready", self._updated or base.value)

    @property
    def quality(self) -> Computed[Quality]:
        """Retrieval quality: how well the gallery finds its own labels."""
        return self.get("quality")

    @property
    def words(self) -> Computed[list[tuple[str, int]]]:
        """The words that the gallery teaches, with the number of images that have each."""
        return self.get("words")

    @property
    def map(self) -> Computed[MapLayout]:
        """Map of the gallery: a position for every image, with its decided label."""
        computed: Computed[MapLayout] = self.get("map")
        if computed.value is None or not self._gallery.decided:
            return computed
        return replace(computed, value=computed.value.with_decisions(self._gallery.decided))

    def update_issues(self, decisions: Decisions) -> LabelIssues | None:
        """Label issues as they are now; new decisions start an update, at most a fifth of the time."""
        base: Computed[LabelIssues] = self.get("label_issues")
        if base.value is None:
            return None
        with self._changed:
            task = self._tasks["updated_issues"]
            if not decisions:
                self._seen = {}
            elif self._lacks(decisions) and not (task.is_computing or self._closed or monotonic() < task.retry_at):
                self._seen = decisions
                self._begin("updated_issues")
            return self._updated or base.value

    def is_updating(self, decisions: Decisions) -> bool:
        """Whether newer label issues follow: the first ones, or some that contain these decisions."""
        base: Computed[LabelIssues] = self.get("label_issues")
        if base.value is None:
            return base.state == "computing"
        with self._changed:
            return bool(decisions) and self._lacks(decisions)

    def compute_issues(self, decisions: Decisions, progress: Progress) -> tuple[LabelIssues, DuplicateReport]:
        """Label issues after decisions, and duplicates, computed by the calling thread: for commands."""

        def compute(name: Name) -> Any:
            value = self._load_or_compute(name, self._gallery, progress)
            self._set(self._tasks[name], Computed("ready", value))
            return value

        duplicates, issues, self._seen = compute("duplicates"), compute("label_issues"), decisions
        return compute("updated_issues") if decisions else issues, duplicates

    def close(self) -> None:
        """Stop what is being computed at its next report of progress, and begin nothing more; does not wait."""
        with self._changed:
            self._closed = True
            for task in self._tasks.values():
                if task.is_computing:
                    task.computed = Computed("failed", message=_NOT_SERVED)
            self._line.put((-1, None))
            self._changed.notify_all()

    @property
    def _updated(self) -> LabelIssues | None:
        computed = self._tasks["updated_issues"].computed
        return None if computed is None or not self._seen else computed.value

    def _lacks(self, decisions: Decisions) -> bool:
        """Whether the label issues do not contain these decisions, also where the update with them failed."""
        computed = self._tasks["updated_issues"].computed
        return computed is None or computed.state != "ready" or dict(self._seen) != dict(decisions)

    def _begin(self, name: Name) -> None:
        """Put a result in line; called with the lock held."""
        task = self._tasks[name]
        task.computed = task.computing()
        self._line.put((list(self._tasks).index(name), name))
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="insights", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        with suppress(_ClosedError):
            while (name := self._line.get()[1]) is not None:
                if self._tasks[name].is_computing:
                    with multiplying_workers():  # the server's own threads want the other cores
                        self._settle(name)

    def _settle(self, name: Name) -> Any:
        """Compute a result unless it is there, and give it; None where it cannot be computed."""
        task = self._tasks[name]
        with self._changed:
            if task.computed is not None and task.computed.state == "ready":
                return task.computed.value
            gallery = self._gallery
        before, waiting = task.computing(), self._running
        self._set(task, before)  # also what only another result asks for
        self._running = name
        began, least_s = monotonic(), RETRY_S
        try:
            found: Computed[Any] = Computed("ready", self._load_or_compute(name, gallery))
            task.made_of, least_s = gallery.decided.digest, 0.0
        except _ClosedError:
            raise
        except (RetrievalError, OSError, MemoryError) as error:
            found = Computed("failed", before.value, message=str(error) or type(error).__name__)
            shown = printable_path(self._gallery.name)
            logger.warning("%s: %s cannot be computed: %s", shown, name, found.message)
        except Exception:  # always release those that wait
            found = Computed("failed", before.value, message=_MISTAKE)
            logger.exception("%s cannot be computed", name)
        finally:
            self._running = waiting
        task.retry_at = monotonic() + max(least_s, _RETRY_TIMES * (monotonic() - began))
        self._set(task, found)
        return found.value

    def _load_or_compute(self, name: Name, gallery: Gallery, progress: Progress = no_progress) -> Any:
        task = self._tasks[name]
        if name == "label_issues":
            self._settle("duplicates")  # accepting verdicts needs them, also where the label issues were kept

        def report(done: int, total: int) -> None:
            if self._closed:
                raise _ClosedError
            self._set(task, task.computing(done, total))
            progress(done, total)

        if self._folder is None or task.kind is None:
            return task.compute(self, gallery, report)
        of = self._of + (gallery.decided.digest if task.of_decisions else "")
        path = self._folder / f"{name}.json"
        if (kept := read_result(path, task.kind, of=of)) is not None:
            return kept
        value = task.compute(self, gallery, report)
        try:
            write_result(path, value, of=of)
            _remove_older(self._folder)
        except OSError as error:
            shown = printable_path(path)
            logger.warning("%s: not kept for the next start: %s", shown, error.strerror or error)
        return value

    def _calibrate(self, gallery: Gallery, progress: Progress) -> Calibration | None:
        return calibration.calibrate(gallery, progress)

    def _find_duplicates(self, _: Gallery, progress: Progress) -> DuplicateReport:
        return duplicates_report.find_duplicate_groups(self._given, progress)

    def _find_label_issues(self, _: Gallery, progress: Progress) -> LabelIssues:
        duplicates = self._settle("duplicates")
        found, self._calibration = label_issues.find_label_issues(self._given, progress, duplicates=duplicates)
        return found

    def _update_now(self, _: Gallery, progress: Progress) -> LabelIssues | None:
        """Label issues after the decisions that were seen last."""
        decisions, base = self._seen, self._settle("label_issues")
        if not decisions or base is None:
            return None
        updated, self._calibration = label_issues.apply_decisions(
            self._given,
            decisions,
            base=base,
            before=self._calibration,
            duplicates=self._settle("duplicates") or duplicates_report.find_duplicate_groups(self._given),
            progress=progress,
        )
        return updated

    def _assess_quality(self, gallery: Gallery, progress: Progress) -> Quality:
        return quality.assess_quality(gallery, progress, duplicates=self._settle("duplicates"))

    def _list_words(self, gallery: Gallery, progress: Progress) -> list[tuple[str, int]]:
        return gallery.words.list_known(progress=progress)

    def _lay_out(self, _: Gallery, progress: Progress) -> MapLayout:
        return map_layout.lay_out(self._given, progress)

    def _set(self, task: _Task, computed: Computed[Any]) -> None:
        with self._changed:
            if not self._closed:
                task.computed = computed
                self._changed.notify_all()


def _remove_older(folder: Path) -> None:
    """Remove the kept results of versions before the one before."""
    for other in folder.parent.iterdir():
        if other.name.isdigit() and int(other.name) < int(folder.name) - 1 and not other.is_symlink():
            shutil.rmtree(other, ignore_errors=True)


class _ClosedError(Exception):
    """The version is no longer served."""


def write_result(path: Path, result: Any, *, of: str) -> None:
    """Write a dataclass or model, durably and in one step; `of` names what it was computed from."""
    values = TypeAdapter(type(result)).dump_python(result)
    content = json.dumps(values, separators=(",", ":")).encode()
    header = {"format": _FORMAT, "of": of, "sha256": hashlib.sha256(content).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(json.dumps(header).encode() + b"\n" + content)


def read_result(path: Path, kind: type[Result], *, of: str) -> Result | None:
    """A result that was written for the same `of`; None where it is missing or cannot be read."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
        wanted = {"format": _FORMAT, "of": of, "sha256": hashlib.sha256(content).hexdigest()}
        if json.loads(header) != wanted:
            return None
        return TypeAdapter(kind).validate_python(json.loads(content))  # text may be halves of surrogate pairs
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):  # damaged, or another program's
        return None
