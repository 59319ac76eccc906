"""People's decisions about labels and duplicates, kept beside the gallery so that they outlive its versions."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from index.errors import InputError
from index.labels.decisions import OPEN, LabelDecision, LabelKey, check_label_decision
from index.versions.people import decisions_file, former_decisions_file
from retrieval_app.review.database import Database, DecidedSinceError
from retrieval_app.review.duplicate_decisions import DuplicateDecision, GroupImage, check_duplicate_decision

MAX_STEP_DECISIONS = 10_000

About: TypeAlias = Literal["labels", "duplicates"]
"""What a step decides about."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one call decided, and an undo takes back: its number, and the images shown or grouped, by id."""

    number: int
    image_ids: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class _Current:
    """The decisions that hold, and the state of the file that they were read at."""

    state: tuple[int, int]
    labels: Mapping[LabelKey, LabelDecision]
    duplicates: Mapping[str, DuplicateDecision]


class ReviewStore:
    """The decisions of a gallery; any number of threads may ask and decide.

    The file is made by the first decision. A later decision about the same image and label, or group, takes the place
    of the one before; undoing it brings that one back. What a call has answered is on the disk.

    Args:
        path: of the file.
        formerly: where it is as long as nobody has moved it to `path`.
    """

    def __init__(self, path: Path, *, formerly: Path | None = None) -> None:
        self._database = Database(path, formerly=formerly)
        self._lock = threading.Lock()
        self._current: _Current | None = None

    @classmethod
    def of_gallery(cls, gallery: Path) -> ReviewStore:
        """The decisions of a gallery."""
        return cls(decisions_file(gallery), formerly=former_decisions_file(gallery))

    @property
    def path(self) -> Path:
        """Where the file is now, or will be made."""
        return self._database.path

    def decide(self, decisions: Sequence[LabelDecision]) -> Step:
        """Keep decisions about labels as one step.

        Raises:
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
        _check_count(len(chosen))
        with self._database.writing() as connection:
            number = _begin_step(connection, "labels")
            connection.executemany(
                "INSERT INTO label_decisions (sha256, label, step, decision, new_label, image_id, path) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (d.sha256, d.label or "", number, d.decision, d.new_label, d.image_id, os.fsencode(d.path))
                    for d in chosen.values()
                ],
            )
        ids = {d.image_id for d in decisions if d.image_id is not None}
        return Step(number, tuple(sorted(ids)), len(chosen))

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
            ids, count = _describe_step(connection, about, last)
            connection.execute("DELETE FROM steps WHERE number = ?", (last,))
        return Step(last, tuple(sorted(ids)), count)

    def can_undo(self, about: About = "labels") -> bool:
        """Whether there is a step about labels or duplicates to take back."""
        with self._database.reading() as connection:
            return connection is not None and _has_tables(connection) and _last_step(connection, about) is not None

    def label_decisions(self) -> Mapping[LabelKey, LabelDecision]:
        """The decisions about labels that hold, in the order they were made; not to be changed.

        Raises:
            ReviewError: they cannot be read.
        """
        return self._read_current().labels

    def decide_duplicates(self, decisions: Sequence[DuplicateDecision]) -> Step:
        """Keep decisions about groups of duplicates as one step.

        Raises:
            InputError: none, too many, one that says nothing clear, or two about one group.
            ReviewError: they cannot be kept.
        """
        checked = [check_duplicate_decision(decision) for decision in decisions]
        if len({decision.group for decision in checked}) < len(checked):
            raise InputError("two of the decisions are about one group; decide it once")
        _check_count(len(checked))
        with self._database.writing() as connection:
            number = _begin_step(connection, "duplicates")
            connection.executemany(
                "INSERT INTO duplicate_decisions (name, step, decision, images, keep) VALUES (?, ?, ?, ?, ?)",
                [(d.group, number, d.decision, _write_images(d.images), json.dumps(d.keep)) for d in checked],
            )
        ids = {image.image_id for decision in checked for image in decision.images}
        return Step(number, tuple(sorted(ids)), len(checked))

    def duplicate_decisions(self) -> Mapping[str, DuplicateDecision]:
        """The decisions about groups that hold, by the group's name, in the order they were made; not to be changed.

        Raises:
            ReviewError: they cannot be read.
        """
        return self._read_current().duplicates

    def close(self) -> None:
        """Let go of the file; nothing is lost by not calling it."""
        self._database.close()

    def _read_current(self) -> _Current:
        """What holds now; read again only after a change."""
        with self._lock:
            state = self._database.state()
            if self._current is None or self._current.state != state:
                with self._database.reading() as connection:
                    if connection is None or not _has_tables(connection):
                        self._current = _Current(state, {}, {})
                    else:
                        labels = {d.key: d for d in _read_labels(connection) if d.decision != OPEN}
                        duplicates = {d.group: d for d in _read_duplicates(connection) if d.decision != OPEN}
                        self._current = _Current(state, labels, duplicates)
            return self._current


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_STEP_DECISIONS:
        raise InputError(f"one call decides 1 to {MAX_STEP_DECISIONS} times, got {count}")


def _begin_step(connection: sqlite3.Connection, about: About) -> int:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = connection.execute("INSERT INTO steps (kind, decided_at) VALUES (?, ?) RETURNING number", (about, now))
    return int(row.fetchone()[0])


def _last_step(connection: sqlite3.Connection, about: About) -> int | None:
    row = connection.execute("SELECT max(number) FROM steps WHERE kind = ?", (about,)).fetchone()
    return None if row[0] is None else int(row[0])


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Whether anything was ever decided: a process killed before its first decision leaves an empty file."""
    return bool(connection.execute("PRAGMA user_version").fetchone()[0])


def _describe_step(connection: sqlite3.Connection, about: About, number: int) -> tuple[set[int], int]:
    """The ids of the images that a step is about, and its number of decisions."""
    if about == "labels":
        rows = connection.execute("SELECT image_id FROM label_decisions WHERE step = ?", (number,)).fetchall()
        return {row[0] for row in rows if row[0] is not None}, len(rows)
    rows = connection.execute("SELECT images FROM duplicate_decisions WHERE step = ?", (number,)).fetchall()
    return {image.image_id for row in rows for image in _parse_images(row[0])}, len(rows)


def _read_labels(connection: sqlite3.Connection) -> Iterable[LabelDecision]:
    query = (
        "SELECT d.sha256, d.label, d.decision, d.new_label, d.image_id, d.path, s.decided_at "
        "FROM label_decisions AS d JOIN steps AS s ON s.number = d.step WHERE d.step = "
        "(SELECT max(step) FROM label_decisions WHERE sha256 = d.sha256 AND label = d.label) "
        "ORDER BY d.step, d.image_id"
    )
    for sha256, label, decision, new_label, image_id, path, decided_at in connection.execute(query):
        yield LabelDecision(
            sha256, label or None, decision, new_label, image_id, path=os.fsdecode(path), decided_at=decided_at
        )


def _read_duplicates(connection: sqlite3.Connection) -> Iterable[DuplicateDecision]:
    query = (
        "SELECT d.images, d.decision, d.keep, s.decided_at "
        "FROM duplicate_decisions AS d JOIN steps AS s ON s.number = d.step WHERE d.step = "
        "(SELECT max(step) FROM duplicate_decisions WHERE name = d.name) ORDER BY d.step, d.name"
    )
    for images, decision, keep, decided_at in connection.execute(query):
        yield DuplicateDecision(_parse_images(images), decision, tuple(json.loads(keep)), decided_at)


def _write_images(images: Iterable[GroupImage]) -> str:
    return json.dumps([(image.sha256, image.image_id, image.path) for image in images])


def _parse_images(text: str) -> tuple[GroupImage, ...]:
    return tuple(GroupImage(sha256, image_id, path) for sha256, image_id, path in json.loads(text))
