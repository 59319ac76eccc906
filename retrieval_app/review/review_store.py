"""People's decisions about labels and duplicates, kept beside the gallery so that they outlive its versions."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeAlias

from index.errors import InputError
from index.labels.decisions import OPEN, LabelDecision, LabelKey, check_label_decision, read_labels
from index.versions.people import decisions_file
from retrieval_app.review.database import Database, DecidedSinceError
from retrieval_app.review.duplicate_decisions import DuplicateDecision, check_duplicate_decision
from retrieval_app.review.history import DecidedStep, insert_step, parse_images, read_duplicates

_NAMED = (
    "SELECT sha256, label, decided_by, decision, new_label FROM label_decisions AS d "
    "JOIN steps ON steps.number = d.step WHERE decided_by IS NOT NULL ORDER BY d.step"
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two people: labels that both decided about, each by the last decision, and those decided alike."""

    reviewers: tuple[str, str]
    both: int
    alike: int


def read_agreement(connection: sqlite3.Connection) -> tuple[Agreement, ...]:
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
    agreement: tuple[Agreement, ...]


class ReviewStore:
    """The decisions of a gallery; any number of threads may ask and decide.

    The file is made by the first decision. A later decision about the same image and label, or group, takes the place
    of the one before; undoing it brings that one back. What a call has answered is on the disk.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path)
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
        step = DecidedStep(_now(), labels=tuple(chosen.values()), decided_by=by)
        return self._keep(step, {d.image_id for d in decisions}, seen=seen)

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
            return connection is not None and _last_step(connection, about) is not None

    def label_decisions(self) -> Mapping[LabelKey, LabelDecision]:
        """The decisions about labels that hold, in the order they were made; not to be changed.

        Raises:
            ReviewError: they cannot be read.
        """
        return self._read_current().labels

    def decide_duplicates(self, decisions: Sequence[DuplicateDecision], *, by: str | None = None) -> Step:
        """Keep decisions about groups of duplicates as one step, of somebody of a name.

        Raises:
            InputError: none, too many, one that says nothing clear, or two about one group.
            ReviewError: they cannot be kept.
        """
        checked = [check_duplicate_decision(decision) for decision in decisions]
        if len({decision.group for decision in checked}) < len(checked):
            raise InputError("two of the decisions are about one group; decide it once")
        ids = {image.image_id for decision in checked for image in decision.images}
        return self._keep(DecidedStep(_now(), duplicates=tuple(checked), decided_by=by), ids)

    def duplicate_decisions(self) -> Mapping[str, DuplicateDecision]:
        """The decisions about groups that hold, by the group's name, in the order they were made; not to be changed.

        Raises:
            ReviewError: they cannot be read.
        """
        return self._read_current().duplicates

    def agreement(self) -> tuple[Agreement, ...]:
        """How far people who are known by name agree about labels.

        Raises:
            ReviewError: the decisions cannot be read.
        """
        return self._read_current().agreement

    def close(self) -> None:
        """Let go of the file; nothing is lost by not calling it."""
        self._database.close()

    def _keep(
        self,
        step: DecidedStep,
        image_ids: set[int | None] | set[int],
        *,
        seen: Mapping[LabelKey, LabelDecision] | None = None,
    ) -> Step:
        count = len(step.labels) + len(step.duplicates)
        if not 1 <= count <= MAX_STEP_DECISIONS:
            raise InputError(f"one call decides 1 to {MAX_STEP_DECISIONS} times, got {count}")
        with self._database.writing() as connection:
            if seen is not None and _read_held_labels(connection) != seen:
                raise DecidedSinceError
            number = insert_step(connection, step)
        return Step(number, tuple(sorted(found for found in image_ids if found is not None)), count)

    def _read_current(self) -> _Current:
        """What holds now; read again only after a change."""
        with self._lock:
            state = self._database.state()
            if self._current is None or self._current.state != state:
                with self._database.reading() as connection:
                    labels = {} if connection is None else _read_held_labels(connection)
                    groups = (
                        [] if connection is None else [d for _, d in read_duplicates(connection, holding=True)]
                    )
                    agreement = () if connection is None else read_agreement(connection)
                self._current = _Current(
                    state,
                    labels,
                    {d.group: d for d in groups if d.decision != OPEN},
                    agreement,
                )
            return self._current


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_held_labels(connection: sqlite3.Connection) -> dict[LabelKey, LabelDecision]:
    return {d.key: d for _, d in read_labels(connection, holding=True) if d.decision != OPEN}


def _last_step(connection: sqlite3.Connection, about: About) -> int | None:
    row = connection.execute("SELECT max(number) FROM steps WHERE kind = ?", (about,)).fetchone()
    return None if row[0] is None else int(row[0])


def _describe_step(connection: sqlite3.Connection, about: About, number: int) -> tuple[set[int], int]:
    """The ids of the images that a step is about, and its number of decisions."""
    if about == "labels":
        rows = connection.execute("SELECT image_id FROM label_decisions WHERE step = ?", (number,)).fetchall()
        return {row[0] for row in rows if row[0] is not None}, len(rows)
    rows = connection.execute("SELECT images FROM duplicate_decisions WHERE step = ?", (number,)).fetchall()
    return {image.image_id for row in rows for image in parse_images(row[0])}, len(rows)
