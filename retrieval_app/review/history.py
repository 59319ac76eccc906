"""All steps of people's decisions, in their order: read at one moment, and brought into other decisions."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from index.labels.decisions import LabelDecision
from retrieval_app.review.database import Database
from retrieval_app.review.duplicate_decisions import DuplicateDecision, GroupImage

LABELS, DUPLICATES = "labels", "duplicates"
_WHAT_HOLDS = {
    LABELS: (
        "SELECT d.sha256 || '/' || d.label, s.decided_at, d.decision, d.new_label FROM label_decisions AS d "
        "JOIN steps AS s ON s.number = d.step WHERE d.step = "
        "(SELECT max(step) FROM label_decisions WHERE sha256 = d.sha256 AND label = d.label)"
    ),
    DUPLICATES: (
        "SELECT d.name, s.decided_at, d.decision, NULL FROM duplicate_decisions AS d "
        "JOIN steps AS s ON s.number = d.step WHERE d.step = "
        "(SELECT max(step) FROM duplicate_decisions WHERE name = d.name)"
    ),
}


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """What one call decided about labels, or about duplicates; one of the two is empty.

    Attributes:
        decided_at: UTC, ISO 8601.
        labels: decisions about labels.
        duplicates: decisions about groups.
    """

    decided_at: str
    labels: tuple[LabelDecision, ...] = ()
    duplicates: tuple[DuplicateDecision, ...] = ()

    @property
    def kind(self) -> str:
        """What it is about."""
        return LABELS if self.labels else DUPLICATES

    def by_subject(self) -> dict[str, LabelDecision | DuplicateDecision]:
        """Its decisions by what each holds for."""
        labels = {f"{d.sha256}/{d.label or ''}": d for d in self.labels}
        return {**labels, **{d.group: d for d in self.duplicates}}

    def keep(self, wanted: set[str]) -> DecidedStep:
        """The step with the decisions about some subjects only."""
        kept = [decision for subject, decision in self.by_subject().items() if subject in wanted]
        return DecidedStep(
            self.decided_at,
            tuple(d for d in kept if isinstance(d, LabelDecision)),
            tuple(d for d in kept if isinstance(d, DuplicateDecision)),
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of decisions that were brought in: taken over, there already, or older than what holds."""

    restored: int
    present: int
    older: int


def read_history(database: Database) -> list[DecidedStep]:
    """Every step, as all of them were at one moment; other processes may go on deciding.

    Raises:
        ReviewError: the file is damaged, foreign or unreadable.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        with database.reading() as connection:
            if connection is None or not connection.execute("PRAGMA user_version").fetchone()[0]:
                return []
            connection.backup(copy)
        return list(_read_steps(copy))


def merge_history(database: Database, steps: Iterable[DecidedStep]) -> Merged:
    """Bring steps into the decisions, all or none: about each subject the later decision holds.

    Where nothing was decided before, all steps are taken over; else of every subject the last decision, if it is later
    than what holds. Steps that are taken over keep their time and can be undone.

    Raises:
        ReviewError: the decisions cannot be kept.
    """
    brought = list(steps)
    if not brought:
        return Merged(0, 0, 0)
    last = {
        (step.kind, subject): (step, decision)
        for step in brought
        for subject, decision in step.by_subject().items()
    }
    with database.writing() as connection:
        if connection.execute("SELECT count(*) FROM steps").fetchone()[0] == 0:
            for step in brought:
                _insert_step(connection, step)
            return Merged(len(last), 0, 0)
        held = {kind: _read_held(connection, kind) for kind in (LABELS, DUPLICATES)}
        winners: dict[int, set[str]] = {}
        present = 0
        for (kind, subject), (step, decision) in last.items():
            holding = held[kind].get(subject)
            if holding is None or _is_later(step.decided_at, holding[0]):
                winners.setdefault(id(step), set()).add(subject)
            elif holding == (step.decided_at, decision.decision, getattr(decision, "new_label", None)):
                present += 1
        for step in brought:
            if id(step) in winners:
                _insert_step(connection, step.keep(winners[id(step)]))
    restored = sum(map(len, winners.values()))
    return Merged(restored, present, len(last) - restored - present)


def _read_held(connection: sqlite3.Connection, kind: str) -> dict[str, tuple[str, str, str | None]]:
    """When and what was decided last, by subject."""
    return {subject: (when, *what) for subject, when, *what in connection.execute(_WHAT_HOLDS[kind])}


def _is_later(when: str, than: str) -> bool:
    return datetime.fromisoformat(when) > datetime.fromisoformat(than)


def _insert_step(connection: sqlite3.Connection, step: DecidedStep) -> None:
    made = connection.execute("INSERT INTO steps (kind, decided_at) VALUES (?, ?)", (step.kind, step.decided_at))
    number = made.lastrowid
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
            (d.group, number, d.decision,
             json.dumps([(i.sha256, i.image_id, i.path) for i in d.images]), json.dumps(d.keep))
            for d in step.duplicates
        ],
    )  # fmt: skip


def _read_steps(connection: sqlite3.Connection) -> Iterator[DecidedStep]:
    labels, duplicates = _read_labels(connection), _read_duplicates(connection)
    for number, decided_at in connection.execute(
        "SELECT number, decided_at FROM steps ORDER BY number"
    ).fetchall():
        about = (tuple(labels.get(number, ())), tuple(duplicates.get(number, ())))
        if any(about):
            yield DecidedStep(decided_at, *about)


def _read_labels(connection: sqlite3.Connection) -> dict[int, list[LabelDecision]]:
    found: dict[int, list[LabelDecision]] = {}
    query = "SELECT step, sha256, label, decision, new_label, image_id, path FROM label_decisions"
    for step, sha256, label, decision, new_label, image_id, path in connection.execute(query):
        given = LabelDecision(sha256, label or None, decision, new_label, image_id, path=os.fsdecode(path))
        found.setdefault(step, []).append(given)
    return found


def _read_duplicates(connection: sqlite3.Connection) -> dict[int, list[DuplicateDecision]]:
    found: dict[int, list[DuplicateDecision]] = {}
    query = "SELECT step, decision, images, keep FROM duplicate_decisions"
    for step, decision, images, keep in connection.execute(query):
        group = tuple(GroupImage(sha256, image_id, path) for sha256, image_id, path in json.loads(images))
        found.setdefault(step, []).append(DuplicateDecision(group, decision, tuple(json.loads(keep))))
    return found
