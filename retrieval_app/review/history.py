"""All steps of people's decisions, in their order: read at one moment, and brought into other decisions."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from datetime import datetime

from index.labels.decisions import LabelDecision, read_labels
from retrieval_app.review.database import Database
from retrieval_app.review.duplicate_decisions import DuplicateDecision, GroupImage

LABELS, DUPLICATES = "labels", "duplicates"
_DUPLICATES = "SELECT d.step, images, decision, keep, {when} FROM duplicate_decisions AS d"
_LAST_DUPLICATES = (
    " JOIN steps AS s ON s.number = d.step "
    "WHERE d.step = (SELECT max(step) FROM duplicate_decisions WHERE name = d.name) ORDER BY d.step, name"
)


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """What one call decided about labels, or about duplicates; one of the two is empty.

    Attributes:
        decided_at: UTC, ISO 8601.
        labels: decisions about labels.
        duplicates: decisions about groups.
        decided_by: the name of who decided, where it is known.
    """

    decided_at: str
    labels: tuple[LabelDecision, ...] = ()
    duplicates: tuple[DuplicateDecision, ...] = ()
    decided_by: str | None = None

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
            self.decided_by,
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
            if connection is None:
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
                insert_step(connection, step)
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
                insert_step(connection, step.keep(winners[id(step)]))
    restored = sum(map(len, winners.values()))
    return Merged(restored, present, len(last) - restored - present)


def _read_held(connection: sqlite3.Connection, kind: str) -> dict[str, tuple[str, str, str | None]]:
    """When and what was decided last, by subject."""
    if kind == LABELS:
        labels = (decision for _, decision in read_labels(connection, holding=True))
        return {f"{d.sha256}/{d.label or ''}": (d.decided_at, d.decision, d.new_label) for d in labels}
    duplicates = (decision for _, decision in read_duplicates(connection, holding=True))
    return {d.group: (d.decided_at, d.decision, None) for d in duplicates}


def _is_later(when: str, than: str) -> bool:
    return datetime.fromisoformat(when) > datetime.fromisoformat(than)


def insert_step(connection: sqlite3.Connection, step: DecidedStep) -> int:
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
            (d.group, number, d.decision, json.dumps(list(map(astuple, d.images))), json.dumps(d.keep))
            for d in step.duplicates
        ],
    )
    return number


def _read_steps(connection: sqlite3.Connection) -> Iterator[DecidedStep]:
    labels: dict[int, list[LabelDecision]] = {}
    for number, label in read_labels(connection):
        labels.setdefault(number, []).append(label)
    duplicates: dict[int, list[DuplicateDecision]] = {}
    for number, group in read_duplicates(connection):
        duplicates.setdefault(number, []).append(group)
    steps = connection.execute("SELECT number, decided_at, decided_by FROM steps ORDER BY number")
    for number, decided_at, decided_by in steps:
        about = (tuple(labels.get(number, ())), tuple(duplicates.get(number, ())))
        if any(about):
            yield DecidedStep(decided_at, *about, decided_by)


def read_duplicates(
    connection: sqlite3.Connection, *, holding: bool = False
) -> Iterator[tuple[int, DuplicateDecision]]:
    """As `read_labels`, of groups of duplicates."""
    query = (
        _DUPLICATES.format(when="s.decided_at") + _LAST_DUPLICATES if holding else _DUPLICATES.format(when="''")
    )
    for step, images, decision, keep, when in connection.execute(query):
        yield step, DuplicateDecision(parse_images(images), decision, tuple(json.loads(keep)), when)


def parse_images(text: str) -> tuple[GroupImage, ...]:
    """The images of a group, as its row has them."""
    return tuple(GroupImage(*values) for values in json.loads(text))
