"""Review store: decisions about labels and near-duplicates, kept beside the gallery and outliving its versions."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, combinations
from pathlib import Path
from typing import Literal, TypeAlias

from index.errors import InputError
from index.labels.decisions import OPEN, LabelDecision, LabelKey, check_label_decision, read_labels
from index.versions.annotations import decisions_file
from retrieval_app.review.database import Database, DecidedSinceError
from retrieval_app.review.subjects import DuplicateDecision, Subject, check_duplicate_decision

_SCHEMA = """
CREATE TABLE steps (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
    kind TEXT NOT NULL CHECK (kind IN ('labels', 'duplicates')),
    decided_at TEXT NOT NULL,
    decided_by TEXT                            -- a name
);
CREATE TABLE label_decisions (                 -- the one of the last step holds
    sha256 TEXT NOT NULL,
    label TEXT NOT NULL,                       -- as given; empty without one
    step INTEGER NOT NULL REFERENCES steps (number) ON DELETE CASCADE,
    decision TEXT NOT NULL CHECK (decision IN ('keep', 'change', 'drop', 'open')),
    new_label TEXT,
    image_id INTEGER,
    path BLOB NOT NULL,
    PRIMARY KEY (sha256, label, step)
) WITHOUT ROWID;
CREATE INDEX label_decisions_by_step ON label_decisions (step);
CREATE TABLE duplicate_decisions (             -- the one of the last step holds
    name TEXT NOT NULL,                        -- of the group
    step INTEGER NOT NULL REFERENCES steps (number) ON DELETE CASCADE,
    decision TEXT NOT NULL CHECK (decision IN ('copies', 'different', 'open')),
    images TEXT NOT NULL,                      -- JSON: [sha256, id, path] of each
    keep TEXT NOT NULL,                        -- JSON: ids
    PRIMARY KEY (name, step)
) WITHOUT ROWID;
CREATE INDEX duplicate_decisions_by_step ON duplicate_decisions (step);
"""
MAX_STEP_DECISIONS = 10_000
About: TypeAlias = Literal["labels", "duplicates"]
"""What a step decides about."""
_DUPLICATES = "SELECT d.step, images, decision, keep, {when} FROM duplicate_decisions AS d"
_LAST_DUPLICATES = (
    " JOIN steps AS s ON s.number = d.step "
    "WHERE d.step = (SELECT max(step) FROM duplicate_decisions WHERE name = d.name) ORDER BY d.step, name"
)
_NAMED = (
    "SELECT sha256, label, decided_by, decision, new_label FROM label_decisions AS d "
    "JOIN steps ON steps.number = d.step WHERE decided_by IS NOT NULL ORDER BY d.step"
)


Decision: TypeAlias = LabelDecision | DuplicateDecision


@dataclass(frozen=True, slots=True)
class Step:
    """What one call decided, all of it about labels or all about duplicates, and an undo takes back.

    Attributes:
        decided_at: UTC, ISO 8601.
        decisions: at least one.
        decided_by: the name of who decided, where it is known.
        number: rises from step to step; 0 before the step is stored.
    """

    decided_at: str
    decisions: tuple[Decision, ...]
    decided_by: str | None = None
    number: int = 0

    @property
    def kind(self) -> About:
        """What it is about."""
        return "labels" if isinstance(self.decisions[0], LabelDecision) else "duplicates"

    @property
    def labels(self) -> list[LabelDecision]:
        """Its decisions about labels."""
        return [one for one in self.decisions if isinstance(one, LabelDecision)]

    @property
    def duplicates(self) -> list[DuplicateDecision]:
        """Its decisions about groups."""
        return [one for one in self.decisions if isinstance(one, DuplicateDecision)]

    @property
    def image_ids(self) -> tuple[int, ...]:
        """Ids of the images that were shown."""
        ids = {image.image_id for group in self.duplicates for image in group.images}
        return tuple(sorted(ids | {one.image_id for one in self.labels if one.image_id is not None}))

    def by_subject(self) -> dict[str, Decision]:
        """Its decisions by what each holds for."""
        return {_name_subject(one): one for one in self.decisions}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two people: labels that both decided about, each by the last decision, and those decided alike."""

    reviewers: tuple[str, str]
    both: int
    alike: int


@dataclass(frozen=True, slots=True)
class _Current:
    """The decisions that hold, and the state of the file that they were read at."""

    state: tuple[int, int]
    labels: Mapping[LabelKey, LabelDecision]
    duplicates: Mapping[str, DuplicateDecision]
    agreement: tuple[Agreement, ...]


class ReviewStore:
    """The decisions of a gallery; any number of threads may ask and decide.

    The file is made by the first decision. A later decision about the same image and label, or group, takes the place
    of the one before; undoing it brings that one back. What a call has answered is on the disk.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _SCHEMA)
        self._lock = threading.Lock()
        self._current: _Current | None = None

    @classmethod
    def of_gallery(cls, gallery: Path) -> ReviewStore:
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
        """Keep decisions about labels as one step, of somebody of a name; with `seen` only if just those hold still.

        Raises:
            DecidedSinceError: others hold than those seen.
            InputError: none, too many, one that says nothing clear, or two that contradict each other.
            ReviewError: they cannot be kept.
        """
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
        """Take the last step about labels or duplicates back, and say which it was; None where there is none left.

        With a `number` only that step, and None where it was taken back before.

        Raises:
            DecidedSinceError: there is a step after that one.
            ReviewError: it cannot be taken back.
        """
        if not self.can_undo(about):  # no file is made to find nothing in it
            return None
        with self._database.writing() as connection:
            last = _last_step(connection, about)
            if last is None or (number is not None and last < number):
                return None
            if number is not None and last > number:
                raise DecidedSinceError
            (undone,) = _read_steps(connection, about=about, since=last)
            connection.execute("DELETE FROM steps WHERE number = ?", (last,))
        return undone

    def can_undo(self, about: About = "labels") -> bool:
        """Whether there is a step about labels or duplicates to take back."""
        with self._database.reading() as connection:
            return connection is not None and _last_step(connection, about) is not None

    def label_decisions(self) -> Mapping[LabelKey, LabelDecision]:
        """The decisions about labels that hold, in the order they were made; not to be changed."""
        return self._read_current().labels

    def decide_duplicates(self, decisions: Sequence[DuplicateDecision], *, by: str | None = None) -> Step:
        """Keep decisions about groups of duplicates as one step, of somebody of a name."""
        checked = [check_duplicate_decision(decision) for decision in decisions]
        if len({decision.group for decision in checked}) < len(checked):
            raise InputError("two of the decisions are about one group; decide it once")
        return self._keep(tuple(checked), by=by)

    def duplicate_decisions(self) -> Mapping[str, DuplicateDecision]:
        """The decisions about groups that hold, by the group's name, in the order they were made; not to be changed."""
        return self._read_current().duplicates

    def agreement(self) -> tuple[Agreement, ...]:
        """How far people who are known by name agree about labels."""
        return self._read_current().agreement

    def steps(self) -> list[Step]:
        """All steps of one moment; other processes may go on deciding."""
        with self._database.reading() as connection:
            if connection is None:
                return []
            connection.execute("BEGIN")
            try:
                return list(_read_steps(connection))
            finally:
                connection.execute("COMMIT")

    def merge(self, steps: Sequence[Step]) -> dict[str, int]:
        """Bring steps in, all or none: about each subject the later decision holds. Counts of what became of them.

        Where nothing was decided before, all steps are taken over; else of every subject the last decision, if it is
        later than what holds. Steps that are taken over keep their time and can be undone.
        """
        if not steps:
            return {"restored": 0, "present": 0, "older": 0}
        last = {subject: (step, decision) for step in steps for subject, decision in step.by_subject().items()}
        with self._database.writing() as connection:
            if connection.execute("SELECT count(*) FROM steps").fetchone()[0] == 0:
                for step in steps:
                    _insert_step(connection, step)
                return {"restored": len(last), "present": 0, "older": 0}
            holding: Iterable[tuple[int, Decision]] = chain(
                read_labels(connection, holding=True), _read_duplicates(connection, holding=True)
            )
            held: dict[str, Decision] = {_name_subject(decision): decision for _, decision in holding}
            later, present = set[str](), 0
            for subject, (step, decision) in last.items():
                now = held.get(subject)
                if now is None or _is_later(step.decided_at, now.decided_at):
                    later.add(subject)
                elif (now.decided_at, _meaning(now)) == (step.decided_at, _meaning(decision)):
                    present += 1
            for step in steps:
                kept = {
                    name: one for name, one in step.by_subject().items() if name in later and last[name][0] is step
                }
                if kept:
                    _insert_step(connection, replace(step, decisions=tuple(kept.values())))
        return {"restored": len(later), "present": present, "older": len(last) - len(later) - present}

    def close(self) -> None:
        """Let go of the file; nothing is lost by not calling it."""
        self._database.close()

    def _keep(
        self,
        decisions: tuple[Decision, ...],
        *,
        by: str | None,
        seen: Mapping[LabelKey, LabelDecision] | None = None,
    ) -> Step:
        if not 1 <= len(decisions) <= MAX_STEP_DECISIONS:
            raise InputError(f"one call decides 1 to {MAX_STEP_DECISIONS} times, got {len(decisions)}")
        step = Step(datetime.now(UTC).isoformat(timespec="seconds"), decisions, by)
        with self._database.writing() as connection:
            if seen is not None and _read_held_labels(connection) != seen:
                raise DecidedSinceError
            return replace(step, number=_insert_step(connection, step))

    def _read_current(self) -> _Current:
        """What holds now; read again only after a change."""
        with self._lock:
            state = self._database.state()
            if self._current is None or self._current.state != state:
                with self._database.reading() as connection:
                    if connection is None:
                        self._current = _Current(state, {}, {}, ())
                    else:
                        groups = (d for _, d in _read_duplicates(connection, holding=True))
                        self._current = _Current(
                            state,
                            _read_held_labels(connection),
                            {d.group: d for d in groups if d.decision != OPEN},
                            _read_agreement(connection),
                        )
            return self._current


def _read_steps(connection: sqlite3.Connection, *, about: About | None = None, since: int = 0) -> Iterator[Step]:
    decisions: dict[int, list[Decision]] = {}
    if about != "duplicates":
        for number, label in read_labels(connection, since=since):
            decisions.setdefault(number, []).append(label)
    if about != "labels":
        for number, group in _read_duplicates(connection, since=since):
            decisions.setdefault(number, []).append(group)
    rows = connection.execute("SELECT number, decided_at, decided_by FROM steps WHERE number >= ?", (since,))
    for number, decided_at, decided_by in rows:
        if number in decisions:
            yield Step(decided_at, tuple(decisions[number]), decided_by, number)


def check_step(step: Step) -> Step:
    """A step of a backup, or of a file into which anybody may have written; its time in UTC.

    Raises:
        InputError, TypeError, ValueError: it is none.
    """
    decided_at = datetime.fromisoformat(step.decided_at)
    if decided_at.tzinfo is None:
        raise ValueError("a time without its zone")
    if len({type(one) for one in step.decisions}) != 1:
        raise ValueError("a step decides about labels, or about duplicates")
    kept = [image_id for group in step.duplicates for image_id in group.keep]
    if not all(0 <= image_id < 1 << 63 for image_id in (*step.image_ids, *kept)):
        raise ValueError("an id that no image has")
    for path in (
        *(d.path for d in step.labels),
        *(image.path for group in step.duplicates for image in group.images),
    ):
        os.fsencode(path)  # undecodable bytes have their surrogates
    checked: tuple[Decision, ...] = (
        *map(check_label_decision, step.labels),
        *map(check_duplicate_decision, step.duplicates),
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
    connection.executemany(
        "INSERT INTO label_decisions (sha256, label, step, decision, new_label, image_id, path) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (d.sha256, d.label or "", number, d.decision, d.new_label, d.image_id, os.fsencode(d.path))
            for d in step.labels
        ],
    )
    connection.executemany(
        "INSERT INTO duplicate_decisions (name, step, decision, images, keep) VALUES (?, ?, ?, ?, ?)",
        [
            (
                d.group,
                number,
                d.decision,
                json.dumps([[i.sha256, i.image_id, i.path] for i in d.images]),
                json.dumps(d.keep),
            )
            for d in step.duplicates
        ],
    )
    return number


def _read_duplicates(
    connection: sqlite3.Connection, *, holding: bool = False, since: int = 0
) -> Iterator[tuple[int, DuplicateDecision]]:
    """As `read_labels`, of groups of duplicates."""
    query = _DUPLICATES.format(when="s.decided_at") + _LAST_DUPLICATES
    if not holding:
        query = _DUPLICATES.format(when="''") + " WHERE d.step >= :since"
    for step, images, decision, keep, when in connection.execute(query, {"since": since}):
        group = tuple(Subject(image_id, sha256, None, path) for sha256, image_id, path in json.loads(images))
        yield step, DuplicateDecision(group, decision, tuple(json.loads(keep)), when)


def _name_subject(decision: Decision) -> str:
    """What a decision holds for: an image and its label, or a group."""
    if isinstance(decision, DuplicateDecision):
        return decision.group
    return f"{decision.sha256}/{decision.label or ''}"


def _meaning(decision: Decision) -> tuple[str, str | None]:
    return decision.decision, decision.new_label if isinstance(decision, LabelDecision) else None


def _is_later(when: str, than: str) -> bool:
    return datetime.fromisoformat(when) > datetime.fromisoformat(than)


def _read_agreement(connection: sqlite3.Connection) -> tuple[Agreement, ...]:
    """Every two people who decided about a label that the other decided about too, by name."""
    by_label: dict[tuple[str, str], dict[str, tuple[str, str | None]]] = {}
    for sha256, label, name, decision, new_label in connection.execute(_NAMED):
        decided = by_label.setdefault((sha256, label), {})
        if decision == OPEN:
            decided.pop(name, None)
        else:
            decided[name] = decision, new_label
    both: Counter[tuple[str, str]] = Counter()
    alike: Counter[tuple[str, str]] = Counter()
    for decided in by_label.values():
        for one, two in combinations(sorted(decided), 2):
            both[one, two] += 1
            alike[one, two] += decided[one] == decided[two]
    return tuple(Agreement(pair, both[pair], alike[pair]) for pair in sorted(both))


def _read_held_labels(connection: sqlite3.Connection) -> dict[LabelKey, LabelDecision]:
    return {d.key: d for _, d in read_labels(connection, holding=True) if d.decision != OPEN}


def _last_step(connection: sqlite3.Connection, about: About) -> int | None:
    row = connection.execute("SELECT max(number) FROM steps WHERE kind = ?", (about,)).fetchone()
    return None if row[0] is None else int(row[0])
