"""Background computation of what takes long of a gallery version: begun when first asked for, kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Generic, Literal, TypeVar, cast, get_args

from pydantic import TypeAdapter

from index.durable import replacing, try_lock
from index.errors import RetrievalError
from index.gallery.gallery import Gallery
from index.labels.doubts import Doubts
from index.labels.suspicion import Chances
from index.progress import Progress
from index.text import printable_path
from index.threads import multiplying_workers
from retrieval_app.insights import calibration, label_issues, map_layout, quality
from retrieval_app.insights.calibration import Calibration
from retrieval_app.insights.label_issues import Decisions, FindIds, Learnt
from retrieval_app.insights.map_layout import MapLayout
from retrieval_app.insights.quality import Quality
from retrieval_app.reports import duplicates_report
from retrieval_app.reports.duplicates_report import DuplicateReport

logger = logging.getLogger(__name__)
Name = Literal["calibration", "duplicates", "doubts", "learnt", "quality", "map"]
_ORDER: tuple[Name, ...] = get_args(Name)  # what takes longer comes later
NAMES = tuple(name for name in _ORDER if name != "learnt")  # which `learn` alone asks for
_OF_DECISIONS: tuple[Name, ...] = ("calibration", "quality")
Value = TypeVar("Value")
RETRY_S = 10.0  # before what failed is tried again
_RETRY_TIMES = 4  # as long as the attempt took, at least: what fails late shall not keep a core busy
_FORMAT = 9  # of a kept file, and of what is computed: a change of either makes all files of before unreadable
_LOOK_S = 0.3
Result = TypeVar("Result")
_NOT_SERVED = "this version of the gallery is no longer served; ask again"


@dataclass(frozen=True, slots=True)
class Computed(Generic[Value]):
    """Something that is there, or will be, or cannot be.

    Attributes:
        state: whether it is there.
        value: once it is ready; may be None then too.
        done, total: how far the work is; a total of 0 is not known.
        message: why it failed, for people.
    """

    state: Literal["ready", "computing", "failed"]
    value: Value | None = None
    done: int = 0
    total: int = 0
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The state without the value."""
        if self.state == "computing":
            return {"state": self.state, "done": self.done, "total": self.total}
        return {"state": self.state} if self.state == "ready" else {"state": self.state, "message": self.message}


class Insights:
    """What is computed of one opened version; safe among threads.

    Results other than the calibration are kept in `cache` from one start of a server to the next. Label issues,
    duplicates and the places on the map are of the given labels; the quality is computed anew after a decision about
    labels, and so is the calibration, of which the one before goes on until then.

    Args:
        cache: a folder in which every version gets its own, of which those of older versions are removed but for the
            one before; None keeps nothing.
        audit: folder of a finished `retrieval audit`, from which the doubts are read; None finds them in the gallery.
    """

    def __init__(self, gallery: Gallery, *, cache: Path | None, audit: Path | None = None) -> None:
        self._gallery, self._given, self._audit = gallery, gallery.as_given, audit
        self._folder = None if cache is None else cache / gallery.version
        self._of = hashlib.sha256(gallery.manifest.to_json().encode()).hexdigest()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._states: dict[Name, Computed[Any]] = {}
        self._computed_from: dict[Name, str] = {}  # the digest of the decisions
        self._retry_at: dict[Name, float] = {}
        self._waiting: set[Name] = set()
        self._worker: threading.Thread | None = None
        self._closed = False
        self._seen: Decisions = {}  # that the last ranking of doubts has learnt from, or tried to
        self._find_ids: FindIds | None = None
        self._learnt: Learnt | None = None
        self._chances: Chances | None = None  # what scores meant before anybody had decided

    def get(self, name: Name) -> Computed[Any]:
        """The state of a result; the first call puts it in line to be computed, and none waits for it.

        So does a call for what failed `RETRY_S` ago, or four times as long ago as the attempt took.
        """
        with self._lock:
            state, rests = self._states.get(name), monotonic() < self._retry_at.get(name, 0.0)
            is_outdated = (
                name in _OF_DECISIONS
                and state is not None
                and state.state == "ready"
                and self._computed_from.get(name) != self._gallery.decided.digest
                and not (name == "calibration" and rests)  # which goes on meanwhile, and is not computed too often
            )
            if state is None or is_outdated or (state.state == "failed" and not rests):
                if self._closed:
                    return Computed("failed", message=_NOT_SERVED)
                self._states[name] = Computed("computing", value=self._goes_on(name))
                self._waiting.add(name)
                self._begin()
            return self._states[name]

    def follow(self, gallery: Gallery) -> None:
        """Compute from other decisions about the labels of the same version from now on."""
        with self._lock:
            self._gallery = gallery

    def wait(self, name: Name, *, timeout: float | None = None) -> Computed[Any]:
        """As `get`, once it is computed or `timeout` seconds have passed."""
        asked = self.get(name)
        with self._changed:
            self._changed.wait_for(
                lambda: name not in self._states or self._states[name].state != "computing", timeout
            )
            return self._states.get(name, asked)

    @property
    def calibration(self) -> Computed[Calibration]:
        """What scores mean; ready without a value where too few members have labels."""
        return self.get("calibration")

    @property
    def duplicates(self) -> Computed[DuplicateReport]:
        """Which images repeat another."""
        return self.get("duplicates")

    @property
    def doubts(self) -> Computed[Doubts]:
        """Which labels may be wrong, as far as people's decisions have taught it."""
        base: Computed[Doubts] = self.get("doubts")
        return base if base.value is None else Computed("ready", (self._learnt or Learnt(base.value)).doubts)

    def learn(self, decisions: Decisions, *, find_ids: FindIds) -> Learnt | None:
        """The doubts as they are now; None as long as there are none.

        Where the decisions are others than those that it has learnt from, it begins to learn from them, after a rest of
        four times as long as the last ranking took. What an audit judged by features that the gallery does not have
        stays as it is.
        """
        base: Computed[Doubts] = self.get("doubts")
        if base.value is None:
            return None
        with self._lock:
            if self._audit is not None or not decisions:
                self._seen, self._find_ids, self._learnt = decisions, None, None
            elif self._seen is not decisions and dict(self._seen) != dict(decisions):
                works = self._states.get("learnt", Computed("ready")).state == "computing"
                if not works and not self._closed and monotonic() >= self._retry_at.get("learnt", 0.0):
                    self._seen, self._find_ids = decisions, find_ids
                    self._states["learnt"] = Computed("computing")
                    self._waiting.add("learnt")
                    self._begin()
            return self._learnt or Learnt(base.value)

    @property
    def quality(self) -> Computed[Quality]:
        """How well the gallery finds its own labels."""
        return self.get("quality")

    @property
    def map(self) -> Computed[MapLayout]:
        """Where every image lies on a map, with its label as it was decided."""
        computed: Computed[MapLayout] = self.get("map")
        if computed.value is None or not self._gallery.decided:
            return computed
        return replace(computed, value=computed.value.with_decisions(self._gallery.decided))

    def close(self) -> None:
        """Stop what is being computed at its next report of progress, and begin nothing more; does not wait."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            stopped: Computed[Any] = Computed("failed", message=_NOT_SERVED)
            for name, state in self._states.items():
                if state.state == "computing":
                    self._states[name] = stopped
            self._changed.notify_all()

    def _goes_on(self, name: Name) -> Any:
        """The value of before that is told until there is another one."""
        return self._states[name].value if name == "calibration" and name in self._states else None

    def _begin(self) -> None:
        """Let a thread work, unless one does; called with the lock held."""
        if self._worker is None and self._waiting:
            self._worker = threading.Thread(target=self._work, name="insights", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Compute what is waiting, the soonest done first, until nothing is."""
        try:
            while (name := self._next()) is not None:
                with multiplying_workers():  # the server's own threads want the other cores
                    self._settle(name)
        except _ClosedError:
            return
        finally:
            with self._lock:
                self._worker = None
                self._begin()

    def _next(self, *, before: Name | None = None) -> Name | None:
        """The next to be computed, the soonest done first; with `before` only of those that come before that one."""
        names = _ORDER if before is None else _ORDER[: _ORDER.index(before)]
        with self._lock:
            for name in names:
                if name in self._waiting:
                    self._waiting.remove(name)
                    return name
        return None

    def _settle(self, name: Name) -> Any:
        """Compute a result unless it is there, and give it.

        Raises:
            RetrievalError, OSError, MemoryError: it cannot be computed, and those that wait for it are told.
        """
        with self._lock:
            state, gallery = self._states.get(name), self._gallery
            value = self._goes_on(name)
        if state is not None and state.state == "ready":
            return state.value
        self._set(name, Computed("computing", value=value))  # also what only another result asks for
        began = monotonic()
        message = "it could not be computed because of a mistake in the program; the log says more"
        try:
            value = self._load_or_compute(name, gallery)
            self._computed_from[name] = gallery.decided.digest
            self._set(name, Computed("ready", value))
            return value
        except (RetrievalError, OSError, MemoryError) as error:
            message = str(error) or type(error).__name__
            logger.warning("%s: %s cannot be computed: %s", printable_path(self._gallery.name), name, message)
        finally:  # whatever happens, nobody waits in vain
            with self._lock:
                unsettled = self._states.get(name, Computed("computing")).state == "computing"
                now = monotonic()
                self._retry_at[name] = now + max(0 if name == "learnt" else RETRY_S, _RETRY_TIMES * (now - began))
            if unsettled:
                self._set(name, Computed("failed", message=message))
        return None

    def _load_or_compute(self, name: Name, gallery: Gallery) -> Any:
        compute, kind = self._task(name, gallery)
        if name == "doubts":
            self._settle("duplicates")  # accepting verdicts compares with them, whoever has found the doubts
        made_of = self._of + (gallery.decided.digest if name in _OF_DECISIONS else "")
        path = None if self._folder is None or kind is None else self._folder / f"{name}.json"
        if path is None:
            return compute(lambda done, total: self._report(name, done, total))
        with computing_alone(path.parent.parent, name, look=self._raise_if_closed):
            if (kept := read_result(path, cast(type, kind), of=made_of)) is not None:
                return kept
            value = compute(lambda done, total: self._report(name, done, total))
            self._keep(path, value, of=made_of)
            return value

    def _task(self, name: Name, gallery: Gallery) -> tuple[Callable[[Progress], Any], type | None]:
        """How a result is computed, and its type where it is kept on disk."""
        given, audit = self._given, self._audit
        match name:
            case "calibration":
                return partial(calibration.calibrate, gallery), None
            case "duplicates":
                return partial(duplicates_report.find_duplicate_groups, given), DuplicateReport
            case "doubts" if audit is not None:  # read each time, for it is soon read and may be made anew
                return lambda _: label_issues.read_audit(audit, given), None
            case "doubts":
                find = label_issues.find_doubts
                return lambda progress: find(given, progress, duplicates=self._settle("duplicates")), Doubts
            case "learnt":
                return self._learn_now, None
            case "quality":
                assess = quality.assess_quality
                return lambda progress: assess(gallery, progress, duplicates=self._settle("duplicates")), Quality
            case "map":
                return partial(map_layout.lay_out, given), MapLayout

    def _learn_now(self, progress: Progress) -> Learnt | None:
        """The doubts as the decisions teach them that were seen last."""
        with self._lock:
            decisions, find_ids, base = self._seen, self._find_ids, self._states["doubts"].value
            if find_ids is None or base is None:
                return self._learnt
            self._find_ids = None  # or it would keep alive a version that is no longer served
        duplicates = self._settle("duplicates") or duplicates_report.find_duplicate_groups(self._given)
        decided = {image_id: decisions[key].label_after for image_id, key in find_ids().items()}
        self._learnt, self._chances = label_issues.learn_from(
            self._given, progress, base=base, decided=decided, decisions=len(decisions), before=self._chances,
            duplicates=duplicates,
        )  # fmt: skip
        return self._learnt

    def _keep(self, path: Path, value: Any, *, of: str) -> None:
        try:
            write_result(path, value, of=of)
            for other in path.parent.parent.iterdir():
                is_older = other.name.isdigit() and int(other.name) < int(self._gallery.version) - 1
                if is_older and other.is_dir() and not other.is_symlink():
                    for name in NAMES:  # what somebody else put there stays
                        (other / f"{name}.json").unlink(missing_ok=True)
                    if not os.listdir(other):
                        other.rmdir()
        except OSError as error:
            shown = printable_path(str(path))
            logger.warning("%s: not kept for the next start: %s", shown, error.strerror or error)

    def _set(self, name: Name, computed: Computed[Any]) -> None:
        with self._changed:
            if not self._closed:
                self._states[name] = computed
                self._changed.notify_all()

    def _report(self, name: Name, done: int, total: int) -> None:
        self._raise_if_closed()
        self._set(name, Computed("computing", value=self._goes_on(name), done=done, total=total))
        while (sooner := self._next(before=name)) is not None:  # who wants something short waits for no map
            self._settle(sooner)

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise _ClosedError


class _ClosedError(Exception):
    """Nobody wants the result any more."""


@contextmanager
def computing_alone(folder: Path, name: str, *, look: Callable[[], object]) -> Iterator[None]:
    """Let one process at a time compute what is of a name, the others then read it; alone where nothing can be written.

    `look` is called again and again while another process computes, and may raise.
    """
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((folder / f".{name}.lock").open("ab"))
            while not try_lock(file):
                look()
                sleep(_LOOK_S)
        except OSError as error:
            logger.debug("%s: computed without a lock: %s", folder, error)
        yield


def write_result(path: Path, result: Any, *, of: str) -> None:
    """Write a dataclass or model, durably and in one step; `of` names what it was computed from."""
    values = TypeAdapter(type(result)).dump_python(result)
    content = json.dumps(values, separators=(",", ":")).encode()
    header = {"format": _FORMAT, "of": of, "sha256": hashlib.sha256(content).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(json.dumps(header).encode() + b"\n" + content)


def read_result(path: Path, kind: type[Result], *, of: str) -> Result | None:
    """A result that was written for the same `of`; None where there is none that can be read."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
        wanted = {"format": _FORMAT, "of": of, "sha256": hashlib.sha256(content).hexdigest()}
        if json.loads(header) != wanted:
            return None
        return TypeAdapter(kind).validate_python(json.loads(content))  # text may be halves of surrogate pairs
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):  # damaged, or another program's
        return None
