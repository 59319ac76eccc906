"""Review store: decisions about labels and near-duplicates, marks and saved searches, kept beside the gallery.

They outlive its versions.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from index.errors import InputError
from index.labels.decided_labels import LabelTrust
from index.labels.decisions import (
    HELD_DECISIONS,
    OPEN,
    LabelDecision,
    LabelKey,
    LabelStates,
    check_label_decision,
    check_name,
    follow_labels,
    read_labels,
)
from index.labels.group_decisions import (
    DuplicateDecision,
    check_duplicate_decision,
    make_group_decision,
    read_group_decisions,
)
from index.labels.tags import MARKS_TABLE, Mark, check_mark, read_marks
from index.text import printable_path
from index.versions.annotations import decisions_file
from retrieval_app.review.database import Database, DecidedSinceError

_SCHEMA = f"""
CREATE TABLE steps (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
    kind TEXT NOT NULL CHECK (kind IN ('labels', 'duplicates', 'marks', 'searches')),
    decided_at TEXT NOT NULL,
    decided_by TEXT                            -- a name
);
CREATE INDEX steps_by_kind ON steps (kind, number);
CREATE TABLE decisions (                       -- the one of the last step holds
    number INTEGER PRIMARY KEY,
    step INTEGER NOT NULL REFERENCES steps (number) ON DELETE CASCADE,
    subject TEXT NOT NULL,                     -- SHA-256 and given label, or the name of a group or search
    details TEXT NOT NULL,                     -- JSON
    UNIQUE (subject, step)
);
CREATE INDEX decisions_by_step ON decisions (step);
{MARKS_TABLE};
"""
_STEPS = """
SELECT steps.number, kind, decided_at, decided_by, details FROM steps JOIN decisions ON step = steps.number
WHERE steps.number >= ? AND kind IN ({}) ORDER BY steps.number, decisions.number
"""
_MARK_STEPS = """
SELECT steps.number, decided_at, decided_by, sha256, field, value FROM steps JOIN marks ON step = steps.number
WHERE steps.number >= ? ORDER BY steps.number, field, sha256
"""
MAX_STEP_DECISIONS = 100_000
MAX_SEARCH_CHARACTERS = 10_000
About: TypeAlias = Literal["labels", "duplicates", "marks", "searches"]
"""The subject of a step's decisions."""
ABOUT: tuple[About, ...] = get_args(About)


@dataclass(frozen=True, slots=True)
class SavedSearch:
    """A search that has a name: the query of its address on the page, without `?`; None removes it.

    `decided_at` is UTC, ISO 8601; set by the store.
    """

    name: str
    query: str | None
    decided_at: str = ""


Decision: TypeAlias = LabelDecision | DuplicateDecision | Mark | SavedSearch


@dataclass(frozen=True, slots=True)
class Step:
    """The decisions of one call, all of one kind; an undo takes back a whole step.

    Attributes:
        decided_at: UTC, ISO 8601.
        decisions: at least one.
        decided_by: the reviewer's name, where it is known.
        number: rises from step to step; 0 before the step is stored.
    """

    decided_at: str
    decisions: tuple[Decision, ...]
    decided_by: str | None = None
    number: int = 0

    @property
    def kind(self) -> About:
        """What it is about."""
        kinds: dict[type, About] = {LabelDecision: "labels", DuplicateDecision: "duplicates", Mark: "marks"}
        return kinds.get(type(self.decisions[0]), "searches")

    @property
    def labels(self) -> list[LabelDecision]:
        """Its decisions about labels."""
        return [one for one in self.decisions if isinstance(one, LabelDecision)]

    @property
    def duplicates(self) -> list[DuplicateDecision]:
        """Its decisions about groups."""
        return [one for one in self.decisions if isinstance(one, DuplicateDecision)]

    @property
    def marks(self) -> list[Mark]:
        """Its marks."""
        return [one for one in self.decisions if isinstance(one, Mark)]

    @property
    def image_ids(self) -> tuple[int, ...]:
        """Ids of the images that were shown."""
        ids = {image.image_id for group in self.duplicates for image in group.images}
        return tuple(sorted(ids | {one.image_id for one in self.labels if one.image_id is not None}))

    def by_subject(self) -> dict[str, Decision]:
        """Its decisions by what they are about."""
        return {_name_subject(one): one for one in self.decisions}


class ReviewStore:
    """The decisions of a gallery, for any number of threads.

    The first decision makes the file. A later decision about the same image and label, group, mark or search takes the
    place of the one before; undoing it brings that one back. A decision is on the disk when its call returns.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _SCHEMA)
        self._lock = threading.Lock()
        self._held: dict[About, tuple[object, Any]] = {}
        self._labels: tuple[object, LabelStates] = None, ()  # of the file that was open

    @classmethod
    def of_gallery(cls, gallery: Path) -> "ReviewStore":
        """The decisions of a gallery."""
        return cls(decisions_file(gallery))

    @property
    def path(self) -> Path:
        """Where the file is now, or will be made."""
        return self._database.path

    def decide(
        self,
        decisions: Sequence[LabelDecision],
        *,
        by: str | None = None,
        seen: Mapping[LabelKey, LabelDecision] | None = None,
    ) -> Step:
        """Keep decisions about labels as one step; with `seen`, raise DecidedSinceError where others hold now."""
        chosen: dict[LabelKey, LabelDecision] = {}
        for decision in map(check_label_decision, decisions):
            before = chosen.setdefault(decision.key, decision)
            if (before.decision, before.new_label) != (decision.decision, decision.new_label):
                raise InputError(
                    "two of the decisions are about images with the same bytes and label, and contradict each other; "
                    f"SHA-256 {decision.sha256}"
                )
        return self._keep(tuple(chosen.values()), by=by, seen=seen)

    def undo(self, number: int | None = None, *, about: About = "labels") -> Step | None:
        """Take back and return the last step of a kind; None where there is none.

        With a `number` only that step: None where it was taken back before, DecidedSinceError where another followed.
        """
        if not self.can_undo(about):  # a transaction would make the file
            return None
        with self._database.writing() as connection:
            last = _last_step(connection, about)
            if last is None or (number is not None and last < number):
                return None
            if number is not None and last > number:
                raise DecidedSinceError
            (undone,) = _read_steps(connection, since=last, about=about)
            connection.execute("DELETE FROM steps WHERE number = ?", (last,))
        return undone

    def can_undo(self, about: About = "labels") -> bool:
        """Whether there is a step of a kind to take back."""
        with self._database.reading() as connection:
            return connection is not None and _last_step(connection, about) is not None

    def label_decisions(self) -> Mapping[LabelKey, LabelDecision]:
        """The decisions about labels that hold, in the order they were made; not to be changed."""
        with self._lock, self._database.reading() as connection:
            return {} if connection is None else self._follow_labels(connection)

    def label_trust(self) -> LabelTrust:
        """How probably labels are right, by their decisions."""
        with self._lock, self._database.reading() as connection:
            if connection is None:
                return LabelTrust({})
            return LabelTrust({one.key: one for one in read_labels(connection)})

    def decide_duplicates(self, decisions: Sequence[DuplicateDecision], *, by: str | None = None) -> Step:
        """Keep decisions about groups of duplicates as one step."""
        checked = [check_duplicate_decision(decision) for decision in decisions]
        if len({decision.group for decision in checked}) < len(checked):
            raise InputError("two of the decisions are about one group; decide it once")
        return self._keep(tuple(checked), by=by)

    def duplicate_decisions(self) -> Mapping[str, DuplicateDecision]:
        """The decisions about groups that hold, by the group's name, in the order they were made; not to be changed."""

        def read(opened: sqlite3.Connection) -> dict[str, DuplicateDecision]:
            return {one.group: one for one in read_group_decisions(opened) if one.decision != OPEN}

        held: dict[str, DuplicateDecision] = self._read_held("duplicates", read)
        return held

    def mark(self, marks: Sequence[Mark], *, by: str | None = None) -> Step:
        """Keep marks as one step; of several about one image and field the last holds."""
        chosen = {(mark.sha256, mark.field): mark for mark in map(check_mark, marks)}
        return self._keep(tuple(chosen.values()), by=by)

    def save_searches(self, searches: Sequence[SavedSearch], *, by: str | None = None) -> Step:
        """Keep, replace or remove saved searches as one step."""
        chosen = {search.name: search for search in map(_check_search, searches)}
        return self._keep(tuple(chosen.values()), by=by)

    def saved_searches(self) -> Mapping[str, SavedSearch]:
        """The saved searches by name, in the order they were made; not to be changed."""

        def read(opened: sqlite3.Connection) -> dict[str, SavedSearch]:
            return {search.name: search for search in _read_searches(opened) if search.query is not None}

        held: dict[str, SavedSearch] = self._read_held("searches", read)
        return held

    def steps(self) -> list[Step]:
        """All steps of one moment; other processes may go on deciding."""
        with self._database.reading() as connection:
            return [] if connection is None else _read_steps(connection)

    def merge(self, steps: Sequence[Step]) -> dict[str, int]:
        """Import steps, all or none; the later decision about a subject holds. Counts of decisions by their outcome.

        Into an empty store all steps are imported; else the last decision of each subject, if it is later than the one
        that holds. Imported steps keep their time and can be undone.
        """
        if not steps:
            return {"restored": 0, "present": 0, "older": 0}
        last = {subject: (step, decision) for step in steps for subject, decision in step.by_subject().items()}
        with self._database.writing() as connection:
            if connection.execute("SELECT count(*) FROM steps").fetchone()[0] == 0:
                for step in steps:
                    _insert_step(connection, step)
                return {"restored": len(last), "present": 0, "older": 0}
            holding: list[Decision] = [
                *read_labels(connection),
                *read_group_decisions(connection),
                *read_marks(connection, also_removed=True),
                *_read_searches(connection),
            ]
            held = {_name_subject(decision): decision for decision in holding}
            later, present = set[str](), 0
            for subject, (step, decision) in last.items():
                now = held.get(subject)
                if now is None or _is_later(step.decided_at, now.decided_at):
                    later.add(subject)
                elif (now.decided_at, _meaning(now)) == (step.decided_at, _meaning(decision)):
                    present += 1
            for step in steps:
                kept = {name: one for name, one in step.by_subject().items() if name in later and last[name][0] is step}
                if kept:
                    _insert_step(connection, replace(step, decisions=tuple(kept.values())))
        return {"restored": len(later), "present": present, "older": len(last) - len(later) - present}

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        self._database.close()

    def _keep(
        self, decisions: tuple[Decision, ...], *, by: str | None, seen: Mapping[LabelKey, LabelDecision] | None = None
    ) -> Step:
        if not 1 <= len(decisions) <= MAX_STEP_DECISIONS:
            raise InputError(f"one call decides 1 to {MAX_STEP_DECISIONS} times, got {len(decisions)}")
        step = Step(datetime.now(UTC).isoformat(timespec="seconds"), decisions, by)
        with self._database.writing() as connection:
            if seen is not None and self._follow_labels(connection) != seen:
                raise DecidedSinceError
            return replace(step, number=_insert_step(connection, step))

    def _follow_labels(self, connection: sqlite3.Connection) -> Mapping[LabelKey, LabelDecision]:
        opened, states = self._labels
        states = follow_labels(connection, states if opened == self._database.opened else ())
        self._labels = self._database.opened, states
        return states[-1][1]

    def _read_held(self, about: About, read: Callable[[sqlite3.Connection], Any]) -> Any:
        """The decisions of a kind that hold; read again only after a step of that kind."""
        with self._lock:
            with self._database.reading() as connection:
                last = None if connection is None else (self._database.opened, _last_step(connection, about))
                known = self._held.get(about)
                if known is None or known[0] != last:
                    self._held[about] = known = last, {} if connection is None else read(connection)
            return known[1]


def _read_steps(connection: sqlite3.Connection, *, since: int = 0, about: About | None = None) -> list[Step]:
    steps: dict[int, tuple[str, list[Decision], str | None]] = {}
    kinds = ABOUT if about is None else (about,)
    rows = connection.execute(_STEPS.format(", ".join("?" for _ in kinds)), (since, *kinds))
    for number, kind, decided_at, decided_by, details in rows:
        _, decisions, _ = steps.setdefault(number, (decided_at, [], decided_by))
        decisions.append(_MAKE[kind](json.loads(details)))
    if "marks" in kinds:
        for number, decided_at, decided_by, *mark in connection.execute(_MARK_STEPS, (since,)):
            steps.setdefault(number, (decided_at, [], decided_by))[1].append(Mark(*mark))
    return [Step(at, tuple(decisions), by, number) for number, (at, decisions, by) in sorted(steps.items())]


def check_step(step: Step) -> Step:
    """A step of a file that anybody may have written, its time in UTC; else an InputError, TypeError or ValueError."""
    decided_at = datetime.fromisoformat(step.decided_at)
    if decided_at.tzinfo is None:
        raise ValueError("a time without its zone")
    if len({type(one) for one in step.decisions}) != 1:
        raise ValueError("a step decides about one kind of subjects")
    kept = [image_id for group in step.duplicates for image_id in group.keep]
    if not all(0 <= image_id < 1 << 63 for image_id in (*step.image_ids, *kept)):
        raise ValueError("an id that no image has")
    paths = [one.path for one in step.labels]
    paths += [image.path for group in step.duplicates for image in group.images]
    for path in paths:
        os.fsencode(path)  # undecodable bytes have their surrogates
    checked: tuple[Decision, ...] = (
        *map(check_label_decision, step.labels),
        *map(check_duplicate_decision, step.duplicates),
        *map(check_mark, step.marks),
        *(_check_search(one) for one in step.decisions if isinstance(one, SavedSearch)),
    )
    step = replace(step, decided_at=decided_at.astimezone(UTC).isoformat(timespec="seconds"), decisions=checked)
    if len(step.by_subject()) < len(checked):
        raise ValueError("a step decides twice about the same")
    return step


def _insert_step(connection: sqlite3.Connection, step: Step) -> int:
    """Write a step after all others; its number."""
    made = connection.execute(
        "INSERT INTO steps (kind, decided_at, decided_by) VALUES (?, ?, ?)",
        (step.kind, step.decided_at, step.decided_by),
    )
    number = made.lastrowid
    assert number is not None
    rows = []
    marks = sorted((mark.field, mark.sha256, number, mark.value) for mark in step.marks)  # as the table is sorted
    connection.executemany("INSERT INTO marks (field, sha256, step, value) VALUES (?, ?, ?, ?)", marks)
    for decision in () if marks else step.decisions:
        details = _describe(decision)
        rows.append((number, _name_subject(decision), json.dumps(details)))
    connection.executemany("INSERT INTO decisions (step, subject, details) VALUES (?, ?, ?)", rows)
    return number


def _describe(decision: Decision) -> dict[str, Any]:
    """The fields of a decision but its time and author, which are those of the step."""
    if isinstance(decision, DuplicateDecision):
        return {name: value for name, value in asdict(decision).items() if name != "decided_at"}
    return {name: getattr(decision, name) for name in decision.__slots__ if name not in ("decided_at", "decided_by")}


def _read_searches(connection: sqlite3.Connection) -> list[SavedSearch]:
    """As `read_labels`, of saved searches."""
    rows = connection.execute(HELD_DECISIONS, ("searches",))
    return [SavedSearch(**json.loads(details), decided_at=when) for details, when, _ in rows]


def _check_search(given: SavedSearch) -> SavedSearch:
    """The search as it is stored; an InputError where its name or address is none."""
    if given.query is not None and not (len(given.query) <= MAX_SEARCH_CHARACTERS and given.query.isprintable()):
        raise InputError(
            f"the address of a search has at most {MAX_SEARCH_CHARACTERS:,} printable characters; "
            f"that of {printable_path(given.name)} has others, or more"
        )
    return replace(given, name=check_name(given.name, what="name of a search"))


_MAKE: dict[About, Callable[[dict[str, Any]], Decision]] = {
    "labels": lambda values: LabelDecision(**values),
    "duplicates": make_group_decision,
    "searches": lambda values: SavedSearch(**values),
}


def _name_subject(decision: Decision) -> str:
    """The name of an image and its label, of a group, of an image and its mark, or of a search."""
    match decision:
        case DuplicateDecision():
            return decision.group
        case Mark():
            return f"{decision.field}/{decision.sha256}"
        case SavedSearch():
            return f"search/{decision.name}"
    return f"{decision.sha256}/{decision.label or ''}"


def _meaning(decision: Decision) -> tuple[str | None, str | None]:
    match decision:
        case LabelDecision():
            return decision.decision, decision.new_label
        case DuplicateDecision():
            return decision.decision, None
        case Mark():
            return decision.value, None
        case SavedSearch():
            return decision.query, None


def _is_later(when: str, than: str) -> bool:
    return datetime.fromisoformat(when) > datetime.fromisoformat(than)


def _last_step(connection: sqlite3.Connection, about: About) -> int | None:
    (number,) = connection.execute("SELECT max(number) FROM steps WHERE kind = ?", (about,)).fetchone()
    return None if number is None else int(number)
