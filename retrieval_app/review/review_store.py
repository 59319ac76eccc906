"""People's decisions about labels and duplicates, kept beside the gallery so that they outlive its versions."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeAlias

from index.errors import InputError
from index.labels.decisions import OPEN, LabelDecision, LabelKey, check_label_decision, read_labels
from index.versions.people import decisions_file
from retrieval_app.review.database import Database, DecidedSinceError, check_schema, copy_tables
from retrieval_app.review.subjects import DuplicateDecision, Subject, check_duplicate_decision

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
    def kind(self) -> About:
        """What it is about."""
        return "labels" if self.labels else "duplicates"

    def by_subject(self) -> dict[str, LabelDecision | DuplicateDecision]:
        """Its decisions by what each holds for."""
        labels = {_name_key(d.key): d for d in self.labels}
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


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two people: labels that both decided about, each by the last decision, and those decided alike."""

    reviewers: tuple[str, str]
    both: int
    alike: int


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
        """The decisions about labels that hold, in the order they were made; not to be changed."""
        return self._read_current().labels

    def decide_duplicates(self, decisions: Sequence[DuplicateDecision], *, by: str | None = None) -> Step:
        """Keep decisions about groups of duplicates as one step, of somebody of a name."""
        checked = [check_duplicate_decision(decision) for decision in decisions]
        if len({decision.group for decision in checked}) < len(checked):
            raise InputError("two of the decisions are about one group; decide it once")
        ids = {image.image_id for decision in checked for image in decision.images}
        return self._keep(DecidedStep(_now(), duplicates=tuple(checked), decided_by=by), ids)

    def duplicate_decisions(self) -> Mapping[str, DuplicateDecision]:
        """The decisions about groups that hold, by the group's name, in the order they were made; not to be changed."""
        return self._read_current().duplicates

    def agreement(self) -> tuple[Agreement, ...]:
        """How far people who are known by name agree about labels."""
        return self._read_current().agreement

    def copy(self) -> bytes:
        """All steps of one moment, for `read_steps`; other processes may go on deciding. b"" where there are none."""
        with self._database.reading() as connection:
            return b"" if connection is None else copy_tables(connection)

    def merge(self, steps: Sequence[DecidedStep]) -> Merged:
        """Bring steps in, all or none: about each subject the later decision holds.

        Where nothing was decided before, all steps are taken over; else of every subject the last decision, if it is
        later than what holds. Steps that are taken over keep their time and can be undone.
        """
        if not steps:
            return Merged(0, 0, 0)
        last = {
            (step.kind, subject): (step, decision)
            for step in steps
            for subject, decision in step.by_subject().items()
        }
        with self._database.writing() as connection:
            if connection.execute("SELECT count(*) FROM steps").fetchone()[0] == 0:
                for step in steps:
                    _insert_step(connection, step)
                return Merged(len(last), 0, 0)
            held: dict[tuple[About, str], LabelDecision | DuplicateDecision] = {
                ("labels", _name_key(d.key)): d for _, d in read_labels(connection, holding=True)
            }
            held |= {("duplicates", d.group): d for _, d in _read_duplicates(connection, holding=True)}
            winners: dict[int, set[str]] = {}
            present = 0
            for (kind, subject), (step, decision) in last.items():
                holding = held.get((kind, subject))
                if holding is None or _is_later(step.decided_at, holding.decided_at):
                    winners.setdefault(id(step), set()).add(subject)
                elif (holding.decided_at, _meaning(holding)) == (step.decided_at, _meaning(decision)):
                    present += 1
            for step in steps:
                if id(step) in winners:
                    _insert_step(connection, step.keep(winners[id(step)]))
        restored = sum(map(len, winners.values()))
        return Merged(restored, present, len(last) - restored - present)

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
            number = _insert_step(connection, step)
        return Step(number, tuple(sorted(found for found in image_ids if found is not None)), count)

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


def read_steps(copy: bytes) -> list[DecidedStep]:
    """The steps of `ReviewStore.copy`, each value looked at, as it may come from anywhere."""
    if not copy:
        return []
    try:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.deserialize(copy)
            check_schema(connection)
            return [_check_step(step) for step in _read_steps(connection)]
    except (sqlite3.Error, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"no file of decisions: {type(error).__name__}: {error}") from error


def _read_steps(connection: sqlite3.Connection) -> Iterator[DecidedStep]:
    labels: dict[int, list[LabelDecision]] = {}
    for number, label in read_labels(connection):
        labels.setdefault(number, []).append(label)
    duplicates: dict[int, list[DuplicateDecision]] = {}
    for number, group in _read_duplicates(connection):
        duplicates.setdefault(number, []).append(group)
    steps = connection.execute("SELECT number, decided_at, decided_by FROM steps ORDER BY number")
    for number, decided_at, decided_by in steps:
        about = (tuple(labels.get(number, ())), tuple(duplicates.get(number, ())))
        if any(about):
            yield DecidedStep(decided_at, *about, decided_by)


def _check_step(step: DecidedStep) -> DecidedStep:
    """A step of which every value has its type; SQLite keeps what it is given."""
    decided_at = datetime.fromisoformat(step.decided_at)
    if decided_at.tzinfo is None:
        raise ValueError("a time without its zone")
    if all((step.labels, step.duplicates)):
        raise ValueError("a step decides about labels, or about duplicates")
    images = [image for group in step.duplicates for image in group.images]
    texts = [step.decided_by, *(d.label for d in step.labels)]
    ids = [*(d.image_id for d in step.labels), *(image.image_id for image in images)]
    ids += [number for group in step.duplicates for number in group.keep]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise TypeError("expected text")
    if not all(number is None or (type(number) is int and 0 <= number < 1 << 63) for number in ids):
        raise TypeError("expected an id")
    for image in images:
        os.fsencode(image.path)  # undecodable bytes have their surrogates
    checked = DecidedStep(
        decided_at.astimezone(UTC).isoformat(timespec="seconds"),
        tuple(map(check_label_decision, step.labels)),
        tuple(map(check_duplicate_decision, step.duplicates)),
        step.decided_by,
    )
    if len(checked.by_subject()) < len(checked.labels) + len(checked.duplicates):
        raise ValueError("a step decides twice about the same")
    return checked


def _insert_step(connection: sqlite3.Connection, step: DecidedStep) -> int:
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
        [(d.group, number, d.decision, _write_images(d.images), json.dumps(d.keep)) for d in step.duplicates],
    )
    return number


def _read_duplicates(
    connection: sqlite3.Connection, *, holding: bool = False
) -> Iterator[tuple[int, DuplicateDecision]]:
    """As `read_labels`, of groups of duplicates."""
    query = (
        _DUPLICATES.format(when="s.decided_at") + _LAST_DUPLICATES if holding else _DUPLICATES.format(when="''")
    )
    for step, images, decision, keep, when in connection.execute(query):
        yield step, DuplicateDecision(_parse_images(images), decision, tuple(json.loads(keep)), when)


def _write_images(images: Iterable[Subject]) -> str:
    return json.dumps([[image.sha256, image.image_id, image.path] for image in images])


def _parse_images(text: str) -> tuple[Subject, ...]:
    return tuple(Subject(image_id, sha256, None, path) for sha256, image_id, path in json.loads(text))


def _name_key(key: LabelKey) -> str:
    return f"{key[0]}/{key[1] or ''}"


def _meaning(decision: LabelDecision | DuplicateDecision) -> tuple[str, str | None]:
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
    return {image.image_id for row in rows for image in _parse_images(row[0])}, len(rows)
