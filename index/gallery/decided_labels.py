"""Annotations of a gallery, label decisions and marks, applied to the rows of an open version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from index.catalog.decided_rows import NO_MARKS, NOTHING_DECIDED, DecidedLabel, DecidedRows, MarkedRows
from index.catalog.reader import Catalog, read_catalog
from index.errors import GalleryError
from index.labels.decisions import (
    CHANGE,
    DROP,
    FOREIGN_TABLES,
    OPEN,
    LabelDecision,
    LabelKey,
    check_version,
    data_version,
    read_labels,
)
from index.labels.marks import Mark, last_marks_step, read_marks
from index.text import printable_path
from index.versions.annotations import decisions_file
from index.versions.manifest import CATALOG_NAME, Version

LOCK_WAIT_S = 2.0  # while another program writes the decisions

OpenGiven = Callable[[], AbstractContextManager[Catalog]]
"""Opens the catalogue with its given labels."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """What a file of decisions holds at one moment.

    Attributes:
        labels: decisions about labels without those that were taken back.
        marks: without those that were taken away; None where the last step is that of before.
        marks_step: the last step of marks.
        connection: stays open to tell later commits by, and then never waits for a lock. To read the file's header
            instead is no choice: closing the file would take away the locks that this process has on it.
        version: its `data_version`.
    """

    labels: Mapping[LabelKey, LabelDecision]
    marks: list[Mark] | None
    marks_step: int
    connection: sqlite3.Connection
    version: int


@dataclass(frozen=True, slots=True)
class DecidedLabels:
    """The annotations at one moment, and the `rows` of a version that they change."""

    rows: DecidedRows = NOTHING_DECIDED
    _file: tuple[int, ...] | None = None
    _connection: sqlite3.Connection | None = None  # none without a file
    _version: int = 0  # of the data, as that connection tells it
    _marks_step: int = 0
    _ids: Mapping[LabelKey, tuple[int, ...]] = field(default_factory=dict)

    def is_current(self, gallery: Path) -> bool:
        """Whether no annotation came since, without waiting; False where that is unknown."""
        if _identify(decisions_file(gallery)) != self._file:
            return False
        try:
            return self._connection is None or data_version(self._connection) == self._version
        except sqlite3.Error:  # locked or damaged: reading it tells
            return False

    def read_again(self, gallery: Path, open_given: OpenGiven, *, wait_s: float = LOCK_WAIT_S) -> DecidedLabels:
        """The annotations of now; itself where none came since."""
        if self.is_current(gallery):
            return self
        path = decisions_file(gallery)
        file, connection, version, step = _identify(path), None, 0, 0
        decisions: Mapping[LabelKey, LabelDecision] = {}
        marked = NO_MARKS
        if file is not None:
            found = read_annotations(path, wait_s=wait_s, known_step=self._marks_step if file == self._file else None)
            decisions, connection, version, step = found.labels, found.connection, found.version, found.marks_step
            marked = self.rows.marked if found.marks is None else _find_marked(found.marks, open_given)
        changing = {key: one for key, one in decisions.items() if one.decision in (CHANGE, DROP)}
        ids = {key: found for key, found in self._ids.items() if key in changing}
        if missing := changing.keys() - ids.keys():
            with open_given() as catalog:
                ids |= _find_ids(catalog, missing)
        by_id: dict[int, DecidedLabel] = {}
        for key, numbers in ids.items():
            one = changing[key]
            label = one.new_label if one.decision == CHANGE else one.label
            by_id |= dict.fromkeys(numbers, DecidedLabel(one.label, label, one.decision == DROP))
        rows = DecidedRows(by_id, marked)
        is_same = rows.digest == self.rows.digest and (marked is self.rows.marked or marked == self.rows.marked)
        return DecidedLabels(self.rows if is_same else rows, file, connection, version, step, ids)


@contextmanager
def read_decided_catalog(gallery: Path, version: Version) -> Iterator[Catalog]:
    """The catalogue of a version with its annotations, without opening the gallery."""
    open_given = partial(read_catalog, version.folder / CATALOG_NAME)
    with open_given(decided=DecidedLabels().read_again(gallery, open_given).rows) as catalog:
        yield catalog


def read_annotations(path: Path, *, wait_s: float, known_step: int | None = None) -> Annotations:
    """Read a file of decisions.

    Args:
        wait_s: seconds to wait while somebody else writes.
        known_step: the last step of the marks that are known, which are not read again.
    """
    connection = None
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"  # what a killed process left is rolled back; else only read
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=wait_s)
        version = data_version(connection)  # before the rest: a commit in between is seen as a later one
        labels, marks, step = list[LabelDecision](), list[Mark](), 0
        if check_version(connection):
            connection.execute("BEGIN")
            labels, step = read_labels(connection), last_marks_step(connection)
            marks = [] if step == known_step else read_marks(connection)
            connection.execute("COMMIT")
        if any(one.decision == CHANGE and not isinstance(one.new_label, str) for one in labels):
            raise TypeError("a changed label has no new one")
        connection.execute("PRAGMA busy_timeout = 0")
    except (sqlite3.Error, TypeError, ValueError) as error:
        if connection is not None:
            connection.close()
        problem = f"the label decisions cannot be read: {error}"
        advice = "put a sound copy of the file back, or move it away to go on without the decisions in it"
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            advice = "another program is writing it; try again when that is done, and leave the file where it is"
        elif getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":
            advice = FOREIGN_TABLES
        raise GalleryError(printable_path(str(path)), f"{problem}; {advice}") from error
    held = {one.key: one for one in labels if one.decision != OPEN}
    return Annotations(held, None if step == known_step else marks, step, connection, version)


def _find_marked(marks: Iterable[Mark], open_given: OpenGiven) -> MarkedRows:
    """The rows that have the marks."""
    marks = list(marks)
    ids: dict[str, list[int]] = {}
    with open_given() as catalog:
        for number, sha256, _ in catalog.find_contents({mark.sha256 for mark in marks}):
            ids.setdefault(sha256, []).append(number)
    tags, splits = dict[int, list[str]](), dict[int, str]()
    for mark in marks:
        for number in ids.get(mark.sha256, ()):
            if mark.tag is not None:
                tags.setdefault(number, []).append(mark.tag)
            elif mark.value is not None:
                splits[number] = mark.value
    return MarkedRows({number: tuple(sorted(names)) for number, names in tags.items()}, splits)


def _identify(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # opening it tells why
        return (0,)
    return status.st_dev, status.st_ino


def _find_ids(catalog: Catalog, keys: Iterable[LabelKey]) -> dict[LabelKey, tuple[int, ...]]:
    """The ids of rows by SHA-256 and given label."""
    found: dict[LabelKey, list[int]] = {key: [] for key in keys}
    for number, sha256, label in catalog.find_contents({sha256 for sha256, _ in found}):
        if (sha256, label) in found:
            found[sha256, label].append(number)
    return {key: tuple(ids) for key, ids in found.items()}
