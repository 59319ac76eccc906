"""Review store: decisions about labels and near-duplicates, marks and saved searches, beside the gallery's versions."""

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.errors import InputError
from index.labels.decided_labels import LabelProbabilities
from index.labels.decisions import DuplicateDecision, LabelDecision, LabelKey
from index.labels.steps import (
    SCHEMA,
    About,
    Decision,
    DecisionT,
    LabelStates,
    SavedSearch,
    Step,
    check_decisions,
    follow_labels,
    insert_step,
    last_step,
    merge_steps,
    read_held,
    read_label_decisions,
    read_steps,
)
from index.versions.annotations import decisions_file
from retrieval_app.review.database import Database, DecidedSinceError

MAX_STEP_DECISIONS = 100_000


class ReviewStore:
    """The decisions of a gallery, for any number of threads.

    The first decision makes the file. A later decision about the same image and label, group, mark or search takes the
    place of the one before; undoing it brings that one back. A decision is on the disk when its call returns.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA)
        self._lock = threading.Lock()
        self._held: dict[About, tuple[object, Any]] = {}
        self._labels: tuple[object, LabelStates[LabelDecision]] = (
            None,
            (),
        )  # identity of the open file, and its label states

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
        decisions: Sequence[Decision],
        *,
        by: str | None = None,
        seen: Mapping[LabelKey, LabelDecision] | None = None,
    ) -> Step:
        """Keep decisions of one kind as one step; with `seen`, raise DecidedSinceError where other labels hold now."""
        if not 1 <= len(decisions) <= MAX_STEP_DECISIONS:
            raise InputError(f"one call decides 1 to {MAX_STEP_DECISIONS} times, got {len(decisions)}")
        step = Step(datetime.now(UTC).isoformat(timespec="seconds"), check_decisions(decisions), by)
        with self._database.writing() as connection:
            if seen is not None and self._follow_labels(connection) != seen:
                raise DecidedSinceError
            return replace(step, number=insert_step(connection, step))

    def undo(self, number: int | None = None, *, about: About = "labels") -> Step | None:
        """Undo the last step of a kind; None without one, DecidedSinceError where it is not the step `number`."""
        if not self.can_undo(about):  # a transaction would make the file
            return None
        with self._database.writing() as connection:
            last = last_step(connection, about)
            if not last or (number is not None and last < number):
                return None
            if number is not None and last > number:
                raise DecidedSinceError
            (undone,) = read_steps(connection, since=last, about=about)
            connection.execute("DELETE FROM steps WHERE number = ?", (last,))
        return undone

    def can_undo(self, about: About = "labels") -> bool:
        """Whether there is a step of a kind to take back."""
        with self._database.reading() as connection:
            return connection is not None and last_step(connection, about) > 0

    def label_decisions(self) -> Mapping[LabelKey, LabelDecision]:
        """The decisions about labels that hold, in the order they were made; not to be changed."""
        with self._lock, self._database.reading() as connection:
            return {} if connection is None else self._follow_labels(connection)

    def label_probabilities(self) -> LabelProbabilities:
        """How probably labels are right, by their decisions."""
        with self._lock, self._database.reading() as connection:
            if connection is None:
                return LabelProbabilities({})
            return LabelProbabilities({one.key: one for one in read_held(connection, LabelDecision)})

    def duplicate_decisions(self) -> Mapping[str, DuplicateDecision]:
        """The decisions about groups that hold, by the group's name, in the order they were made; not to be changed."""
        return self._read_held("duplicates", DuplicateDecision)

    def saved_searches(self) -> dict[str, SavedSearch]:
        """The saved searches by name, in the order they were made."""
        return {search.name: search for search in self._read_held("searches", SavedSearch).values()}

    def steps(self) -> list[Step]:
        """All steps of one moment; other processes may go on deciding."""
        with self._database.reading() as connection:
            return [] if connection is None else read_steps(connection)

    def merge(self, steps: Sequence[Step]) -> dict[str, int]:
        """Import steps, all or none, as `merge_steps` does."""
        if not steps:
            return {"restored": 0, "present": 0, "older": 0}
        with self._database.writing() as connection:
            return merge_steps(connection, steps)

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        self._database.close()

    def _follow_labels(self, connection: sqlite3.Connection) -> Mapping[LabelKey, LabelDecision]:
        opened, states = self._labels
        states = follow_labels(connection, states if opened == self._database.opened else (), read_label_decisions)
        self._labels = self._database.opened, states
        return states[-1][1]

    def _read_held(self, about: About, kind: type[DecisionT]) -> Mapping[str, DecisionT]:
        """The decisions of a kind that hold, by their subjects; read again only after a step of that kind."""
        with self._lock, self._database.reading() as connection:
            last = None if connection is None else (self._database.opened, last_step(connection, about))
            if about not in self._held or self._held[about][0] != last:
                found = [] if connection is None else read_held(connection, kind)
                self._held[about] = last, {one.subject: one for one in found if one.meaning is not None}
            held: Mapping[str, DecisionT] = self._held[about][1]
            return held
