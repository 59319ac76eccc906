"""Steps of decisions in a file: its tables, and reading, writing and merging them.

A step has the decisions of one call, all of one kind. Of each subject the decision of the last step holds. An undo
removes the last step, which brings the decision before it back.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from index.errors import InputError
from index.labels.decisions import (
    CHANGE,
    DECISIONS,
    OPEN,
    DuplicateDecision,
    ImageRef,
    LabelDecision,
    LabelKey,
    Mark,
    check_duplicate_decision,
    check_label_decision,
    check_mark,
    check_name,
    check_word,
)
from index.text import printable_path

VERSION = 1
FOREIGN_TABLES = "made by a pre-release; keep the file, which only that program can read"
KEEP_FILE = "damaged, or made by a pre-release; keep the file, and put an intact copy of it back"
SCHEMA = """
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
CREATE TABLE marks (                           -- the one of the last step holds
    field TEXT NOT NULL,                       -- tag:NAME, or split
    sha256 TEXT NOT NULL,
    step INTEGER NOT NULL REFERENCES steps (number) ON DELETE CASCADE,
    value TEXT,                                -- NULL takes the mark away
    PRIMARY KEY (field, sha256, step)
) WITHOUT ROWID;
CREATE INDEX marks_by_step ON marks (step);
"""
_HELD = (
    "SELECT details, decided_at, decided_by FROM decisions AS d JOIN steps AS s ON s.number = d.step "
    "WHERE kind = ? AND d.step = (SELECT max(step) FROM decisions WHERE subject = d.subject) "
    "ORDER BY d.number"
)
_LATER = (
    "FROM steps AS s JOIN decisions AS d ON s.number = d.step WHERE kind = 'labels' AND s.number > ? ORDER BY d.number"
)
_EFFECTS = ", ".join(f"json_extract(details, '$.{name}')" for name in ("sha256", "label", "decision", "new_label"))
# Beside max(), SQLite takes the other columns from the row that has it.
_HELD_MARKS = (
    "SELECT sha256, field, value, decided_at FROM "
    "(SELECT sha256, field, value, max(step) AS last FROM marks GROUP BY field, sha256) JOIN steps ON number = last"
)
_STEPS = """
SELECT steps.number, kind, decided_at, decided_by, details FROM steps JOIN decisions ON step = steps.number
WHERE steps.number >= ? AND kind IN ({}) ORDER BY steps.number, decisions.number
"""
_MARK_STEPS = """
SELECT steps.number, decided_at, decided_by, sha256, field, value FROM steps JOIN marks ON step = steps.number
WHERE steps.number >= ? ORDER BY steps.number, field, sha256
"""
MAX_SEARCH_CHARACTERS = 10_000
About: TypeAlias = Literal["labels", "duplicates", "marks", "searches"]
"""The subject of a step's decisions."""
ABOUT: tuple[About, ...] = get_args(About)


@dataclass(frozen=True, slots=True)
class SavedSearch:
    """Saved search: its name, and the query string of its URL on the page, without `?`; None removes it."""

    name: str
    query: str | None
    decided_at: str = ""

    @property
    def subject(self) -> str:
        return f"search/{self.name}"

    @property
    def meaning(self) -> str | None:
        return self.query


Decision: TypeAlias = LabelDecision | DuplicateDecision | Mark | SavedSearch
DecisionT = TypeVar("DecisionT", LabelDecision, DuplicateDecision, Mark, SavedSearch)
_ABOUT: dict[type, About] = {
    LabelDecision: "labels",
    DuplicateDecision: "duplicates",
    Mark: "marks",
    SavedSearch: "searches",
}
_CLASSES = {about: kind for kind, about in _ABOUT.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """The decisions of one call, all of one kind, at a time in UTC, ISO 8601; `number` is 0 before it is stored."""

    decided_at: str
    decisions: tuple[Decision, ...]
    decided_by: str | None = None
    number: int = 0

    @property
    def kind(self) -> About:
        return _ABOUT[type(self.decisions[0])]

    @property
    def labels(self) -> list[LabelDecision]:
        return [one for one in self.decisions if isinstance(one, LabelDecision)]

    @property
    def decided_labels(self) -> list[LabelDecision]:
        """Its decisions about labels, without issues that a bulk accept left open."""
        return [one for one in self.labels if one.decision != OPEN or one.source != "bulk"]

    @property
    def duplicates(self) -> list[DuplicateDecision]:
        """Its decisions about groups."""
        return [one for one in self.decisions if isinstance(one, DuplicateDecision)]

    @property
    def marks(self) -> list[Mark]:
        return [one for one in self.decisions if isinstance(one, Mark)]

    @property
    def image_ids(self) -> tuple[int, ...]:
        """Ids of the images that were shown."""
        ids = {image.image_id for group in self.duplicates for image in group.images}
        return tuple(sorted(ids | {one.image_id for one in self.labels if one.image_id is not None}))

    def by_subject(self) -> dict[str, Decision]:
        return {one.subject: one for one in self.decisions}


def check_version(connection: sqlite3.Connection) -> int:
    """Version of an open file; 0 for a file that was never written."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise sqlite3.NotSupportedError(
            f"it has version {version}, this program knows {VERSION}; keep it, and use a newer program"
        )
    return version


def data_version(connection: sqlite3.Connection) -> int:
    """SQLite's `data_version`: another value after every commit of any other connection."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def last_step(connection: sqlite3.Connection, about: About) -> int:
    """The number of the last step of a kind; 0 without one."""
    (number,) = connection.execute("SELECT coalesce(max(number), 0) FROM steps WHERE kind = ?", (about,)).fetchone()
    return int(number)


def read_held(connection: sqlite3.Connection, kind: type[DecisionT]) -> list[DecisionT]:
    """Current decisions of a kind, in order, with time and author; `OPEN` decisions are included."""
    if kind is Mark:
        return [kind(*row) for row in connection.execute(_HELD_MARKS)]
    rows = connection.execute(_HELD, (_ABOUT[kind],))
    return [_make(kind, details, decided_at=when, decided_by=name) for details, when, name in rows]


def read_label_decisions(connection: sqlite3.Connection, since: int) -> Iterator[tuple[LabelKey, LabelDecision | None]]:
    """All decisions about labels after a step, in order, by image and label; None for `OPEN` ones."""
    for details, when, name in connection.execute(f"SELECT details, decided_at, decided_by {_LATER}", (since,)):
        one = _make(LabelDecision, details, decided_at=when, decided_by=name)
        _check_new_label(one.decision, one.new_label)
        yield one.key, one if one.decision in DECISIONS else None


def read_label_effects(connection: sqlite3.Connection, since: int) -> Iterator[tuple[LabelKey, str, str | None]]:
    """(image and label, decision, new label) of all decisions about labels after a step, in order."""
    for sha256, label, decision, new_label in connection.execute(f"SELECT {_EFFECTS} {_LATER}", (since,)):
        if not isinstance(sha256, str) or not isinstance(label, str | None):
            raise TypeError("a decision has no image and label")
        check_word(decision, (*DECISIONS, OPEN))
        _check_new_label(decision, new_label)
        yield (sha256, label), decision, new_label


def _check_new_label(decision: str, new_label: object) -> None:
    if decision == CHANGE and not isinstance(new_label, str):
        raise TypeError("a changed label has no new one")


def _make(kind: type[DecisionT], details: str, *, decided_at: str = "", decided_by: str | None = None) -> DecisionT:
    """A decision from its JSON."""
    values = json.loads(details)
    if kind is LabelDecision:
        values["decided_by"] = decided_by
    if kind is DuplicateDecision:
        values["images"] = tuple(ImageRef(**image) for image in values["images"])
        values["keep"] = tuple(values["keep"])
    return kind(**values, decided_at=decided_at)


ValueT = TypeVar("ValueT")
LabelStates: TypeAlias = tuple[tuple[int, Mapping[LabelKey, ValueT]], ...]
"""Last steps about labels at one or two moments, with the current decisions after each of them, in order."""


def follow_labels(
    connection: sqlite3.Connection,
    states: LabelStates[ValueT],
    read: Callable[[sqlite3.Connection, int], Iterable[tuple[LabelKey, ValueT | None]]],
) -> LabelStates[ValueT]:
    """The decisions about labels after the last step, and before it; only steps after a known state are read.

    An undo brings back the state before, unless it takes back more than was read at once. `read` returns the decisions
    after a step, in order, with None for those that are not listed.
    """
    last = last_step(connection, "labels")
    steps = f"SELECT number FROM steps WHERE number IN ({', '.join(str(step) for step, _ in states)})"
    there = {0, *(number for (number,) in connection.execute(steps))}
    known = tuple(state for state in states if state[0] in there) or ((0, {}),)
    step, before = known[-1]
    if step == last:
        return known
    now = dict(before)
    for key, value in read(connection, step):
        now.pop(key, None)
        if value is not None:
            now[key] = value
    return known[-1], (last, now)


def read_steps(connection: sqlite3.Connection, *, since: int = 0, about: About | None = None) -> list[Step]:
    """The steps of a kind, or all, from a number on; their decisions without time and author, which are the step's."""
    steps: dict[int, tuple[str, list[Decision], str | None]] = {}
    kinds = ABOUT if about is None else (about,)
    rows = connection.execute(_STEPS.format(", ".join("?" for _ in kinds)), (since, *kinds))
    for number, kind, decided_at, decided_by, details in rows:
        _, decisions, _ = steps.setdefault(number, (decided_at, [], decided_by))
        decisions.append(_make(_CLASSES[kind], details))
    if "marks" in kinds:
        for number, decided_at, decided_by, *mark in connection.execute(_MARK_STEPS, (since,)):
            steps.setdefault(number, (decided_at, [], decided_by))[1].append(Mark(*mark))
    return [Step(at, tuple(decisions), by, number) for number, (at, decisions, by) in sorted(steps.items())]


def insert_step(connection: sqlite3.Connection, step: Step) -> int:
    """Write a step after all others; its number."""
    made = connection.execute(
        "INSERT INTO steps (kind, decided_at, decided_by) VALUES (?, ?, ?)",
        (step.kind, step.decided_at, step.decided_by),
    )
    number = made.lastrowid
    assert number is not None
    marks = sorted((mark.field, mark.sha256, number, mark.value) for mark in step.marks)  # sorted like the table
    connection.executemany("INSERT INTO marks (field, sha256, step, value) VALUES (?, ?, ?, ?)", marks)
    rows = [(number, one.subject, json.dumps(_describe(one))) for one in (() if marks else step.decisions)]
    connection.executemany("INSERT INTO decisions (step, subject, details) VALUES (?, ?, ?)", rows)
    return number


def _describe(decision: Decision) -> dict[str, Any]:
    """Fields of a decision, without time and author, which the step stores."""
    if isinstance(decision, DuplicateDecision):
        return {name: value for name, value in asdict(decision).items() if name != "decided_at"}
    return {name: getattr(decision, name) for name in decision.__slots__ if name not in ("decided_at", "decided_by")}


def merge_steps(connection: sqlite3.Connection, steps: Sequence[Step]) -> dict[str, int]:
    """Import steps, with their times; the later decision about a subject holds. Counts of decisions by their outcome.

    Into an empty file all steps are imported; else the last decision of each subject, if it is later than the one
    there.
    """
    last = {subject: (step, one) for step in steps for subject, one in step.by_subject().items()}
    if connection.execute("SELECT count(*) FROM steps").fetchone()[0] == 0:
        for step in steps:
            insert_step(connection, step)
        return {"restored": len(last), "present": 0, "older": 0}
    holding: list[Decision] = [
        *read_held(connection, LabelDecision),
        *read_held(connection, DuplicateDecision),
        *read_held(connection, Mark),
        *read_held(connection, SavedSearch),
    ]
    held = {one.subject: one for one in holding}
    later, present = set[str](), 0
    for subject, (step, decision) in last.items():
        now = held.get(subject)
        if now is None or datetime.fromisoformat(step.decided_at) > datetime.fromisoformat(now.decided_at):
            later.add(subject)
        elif (now.decided_at, now.meaning) == (step.decided_at, decision.meaning):
            present += 1
    for step in steps:
        kept = [one for name, one in step.by_subject().items() if name in later and last[name][0] is step]
        if kept:
            insert_step(connection, replace(step, decisions=tuple(kept)))
    return {"restored": len(later), "present": present, "older": len(last) - len(later) - present}


def check_step(step: Step) -> Step:
    """A step of an untrusted file, its time in UTC; else an InputError, TypeError or ValueError."""
    decided_at = datetime.fromisoformat(step.decided_at)
    if decided_at.tzinfo is None:
        raise ValueError("a time without its zone")
    if len({type(one) for one in step.decisions}) != 1:
        raise ValueError("a step decides about one kind of subjects")
    kept = [image_id for group in step.duplicates for image_id in group.keep]
    if not all(0 <= image_id < 1 << 63 for image_id in (*step.image_ids, *kept)):
        raise ValueError("an id that no image has")
    paths = [one.path for one in step.labels] + [image.path for one in step.duplicates for image in one.images]
    for path in paths:
        os.fsencode(path)  # undecodable bytes have their surrogates
    checked = check_decisions(step.decisions)
    if len(checked) < len(step.decisions):
        raise ValueError("a step decides twice about the same")
    return replace(step, decided_at=decided_at.astimezone(UTC).isoformat(timespec="seconds"), decisions=checked)


_CHECKS: dict[type, Callable[[Any], Decision]] = {
    LabelDecision: check_label_decision,
    DuplicateDecision: check_duplicate_decision,
    Mark: check_mark,
}


def check_decisions(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """The decisions as they are stored, equal ones about one subject once; an InputError where two contradict."""
    chosen: dict[str, Decision] = {}
    for given in decisions:
        decision = _CHECKS.get(type(given), _check_search)(given)
        before = chosen.setdefault(decision.subject, decision)
        if before.meaning != decision.meaning:
            raise InputError(
                "two of the decisions contradict each other; both are about the same image and label, group, mark or "
                f"search: {printable_path(decision.subject)}"
            )
    return tuple(chosen.values())


def _check_search(given: SavedSearch) -> SavedSearch:
    if given.query is not None and not (len(given.query) <= MAX_SEARCH_CHARACTERS and given.query.isprintable()):
        raise InputError(
            f"the address of a search has at most {MAX_SEARCH_CHARACTERS:,} printable characters; "
            f"that of {printable_path(given.name)} has others, or more"
        )
    return replace(given, name=check_name(given.name, what="name of a search"))
