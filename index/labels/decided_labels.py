"""Annotations of a gallery: label and group decisions and marks, applied to the rows of an open version."""

import os
import sqlite3
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

from index.catalog.decided_rows import (
    DROPPED,
    NO_MARKS,
    NOTHING_DECIDED,
    SET_ASIDE,
    DecidedRow,
    DecidedRows,
    MarkedRows,
)
from index.catalog.reader import Catalog, read_catalog
from index.catalog.rows import CatalogRow
from index.errors import GalleryError, InputError
from index.labels.decisions import (
    CHANGE,
    DROP,
    DUPLICATES,
    GIVEN,
    OPEN,
    P_RIGHT,
    DuplicateDecision,
    ImageRef,
    LabelDecision,
    LabelKey,
    Mark,
    match_images,
)
from index.labels.steps import (
    FOREIGN_TABLES,
    KEEP_FILE,
    LabelStates,
    check_version,
    data_version,
    follow_labels,
    last_step,
    read_held,
    read_label_effects,
)
from index.sources.table_rows import as_text
from index.versions.annotations import decisions_file
from index.versions.manifest import CATALOG_NAME, Version
from index.versions.versions import holding_current

DECISIONS_WAIT_S = 2.0  # while another program writes the decisions

OpenGiven = Callable[[], AbstractContextManager[Catalog]]
"""Function that opens the catalogue with its given labels."""


DroppedCopies: TypeAlias = Mapping[int, tuple[str | None, tuple[ImageRef, ...]]]
"""Dropped near-duplicates by id: the given label, and the kept images that get the label and tags."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Annotations:
    """Annotations at one moment, and the `rows` of a version that they change."""

    rows: DecidedRows = NOTHING_DECIDED
    _file: tuple[int, ...] | None = None
    # It stays open to tell later commits by, and then never waits for a lock. To read the file's header instead is no
    # choice: closing the file would take away the locks that this process has on it.
    _connection: sqlite3.Connection | None = None
    _version: int = 0  # `data_version` of that connection
    _labels: LabelStates[DecidedRow] = ((0, {}),)
    _ids: Mapping[LabelKey, tuple[int, ...]] = field(default_factory=dict)  # ids of the images of each decision
    _by_id: Mapping[int, DecidedRow] = field(default_factory=dict)  # changed rows by these ids
    _marked: tuple[int, MarkedRows] = (0, NO_MARKS)  # the last step of marks, and what they say
    _copies: tuple[int, DroppedCopies] = (0, {})  # the last step about groups, and what all of these drop

    def __post_init__(self) -> None:
        if self._connection is not None:
            weakref.finalize(self, self._connection.close)

    @property
    def dropped_copies(self) -> DroppedCopies:
        """The near-duplicates that decisions about groups drop."""
        return self._copies[1]

    def is_present(self, key: LabelKey) -> bool:
        """Whether the gallery has an image that a decision changes or leaves out."""
        return bool(self._ids.get(key))

    def is_current(self, gallery: Path) -> bool:
        """Whether no annotation was added since, without waiting; False if unknown."""
        if identify_file(decisions_file(gallery)) != self._file:
            return False
        try:
            return self._connection is None or data_version(self._connection) == self._version
        except sqlite3.Error:  # locked or damaged: reading it tells
            return False

    def read_again(self, gallery: Path, open_given: OpenGiven, *, wait_s: float = DECISIONS_WAIT_S) -> "Annotations":
        """Current annotations; this object itself if nothing has changed."""
        if self.is_current(gallery):
            return self
        path = decisions_file(gallery)
        file = identify_file(path)
        known = self if file == self._file else Annotations()
        if file is None:
            return known
        with open_decisions(path, wait_s=wait_s) as connection:
            version = data_version(connection)  # before the rest: a commit in between is seen as a later one
            labels, marked, copies = known._labels, known._marked, known._copies
            marks, groups, steps = list[Mark](), list[DuplicateDecision](), (marked[0], copies[0])
            if check_version(connection):
                connection.execute("BEGIN")
                labels = follow_labels(connection, labels, _read_changed_rows)
                steps = last_step(connection, "marks"), last_step(connection, "duplicates")
                if steps[0] != marked[0]:
                    marks = [one for one in read_held(connection, Mark) if one.meaning is not None]
                if steps[1] != copies[0]:
                    groups = [one for one in read_held(connection, DuplicateDecision) if one.meaning is not None]
                connection.execute("COMMIT")
            connection.execute("PRAGMA busy_timeout = 0")
        before, changing = known._labels[-1][1], labels[-1][1]
        is_unchanged = changing is before and steps == (self._marked[0], self._copies[0])
        if is_unchanged and known is self:
            return replace(self, _connection=connection, _version=version)
        if steps[0] != marked[0]:
            marked = steps[0], _find_marked(marks, open_given)
        if steps[1] != copies[0]:
            copies = steps[1], _find_dropped_copies(groups, open_given)
        ids, by_id = dict(known._ids), dict(known._by_id)
        changed = [key for key, row in before.items() if (now := changing.get(key)) is not row and now != row]
        changed += changing.keys() - before.keys()
        for key in changed:
            for number in ids.pop(key, ()):
                del by_id[number]
        if missing := changing.keys() & changed:
            with open_given() as catalog:
                for number, sha256, label in catalog.find_contents({sha256 for sha256, _ in missing}):
                    if (key := (sha256, label)) in missing:
                        ids[key] = (*ids.get(key, ()), number)
                        by_id[number] = changing[key]
        rows = _drop_copies(copies[1], by_id, marked[1])
        rows = self.rows if rows.digest == self.rows.digest and rows.marked == self.rows.marked else rows
        return Annotations(rows, file, connection, version, labels, ids, by_id, marked, copies)


def _read_changed_rows(connection: sqlite3.Connection, since: int) -> Iterator[tuple[LabelKey, DecidedRow | None]]:
    """Rows that the decisions after a step change, by image and given label; None where nothing changes."""
    left_out = {DROP: DROPPED, SET_ASIDE: SET_ASIDE}
    for key, decision, new_label in read_label_effects(connection, since):
        if decision == CHANGE:
            yield key, DecidedRow(key[1], new_label)
        else:
            yield key, DecidedRow(key[1], key[1], left_out[decision]) if decision in left_out else None


@dataclass(frozen=True)
class LabelProbabilities:
    """Probabilities that labels are right, from the current `decisions` in order, `OPEN` ones included."""

    decisions: Mapping[LabelKey, LabelDecision]

    @cached_property
    def others(self) -> tuple[float, int] | None:
        """`others_right` and `others_to` of the last bulk accept; None without a bulk accept."""
        for one in reversed(list(self.decisions.values())):
            if one.others_right is not None and one.others_to is not None:
                return one.others_right, one.others_to
        return None

    def of(self, row: CatalogRow) -> tuple[float | None, str | None]:
        """Probability that a row's label is right (None without a decision), and its label before a machine changed it.

        Without a decision: by the columns `p_right` and `given` of its source, else as the last bulk accept expected.
        """
        decision = self.decisions.get((row.sha256 or "", row.given_label))
        if decision is not None and decision.decision == OPEN:
            return (decision.p_right if decision.source == "bulk" else None), None
        if decision is not None:
            is_moved = decision.decision == CHANGE and decision.p_right < 1
            return decision.p_right, row.given_label if is_moved else None
        metadata = row.metadata
        p_right = metadata.get(P_RIGHT)
        if not isinstance(p_right, int | float) or isinstance(p_right, bool):
            is_covered = self.others is not None and row.id <= self.others[1]
            return (self.others[0] if self.others is not None and is_covered else None), None
        given = as_text(metadata.get(GIVEN)).strip()
        return min(max(float(p_right), 0.0), 1.0), given if given and given != row.label else None


def read_label_probabilities(gallery: Path) -> LabelProbabilities:
    """Probabilities that the labels of a gallery are right, by its decisions."""
    path = decisions_file(gallery)
    if not path.exists():
        return LabelProbabilities({})
    with open_decisions(path, wait_s=DECISIONS_WAIT_S) as connection, closing(connection):
        held = read_held(connection, LabelDecision) if check_version(connection) else []
    return LabelProbabilities({one.key: one for one in held})


@contextmanager
def read_decided_catalog(gallery: Path, version: Version) -> Iterator[Catalog]:
    """Open the catalogue of a version with its annotations, without the gallery."""
    open_given = partial(read_catalog, version.folder / CATALOG_NAME)
    with open_given(decided=Annotations().read_again(gallery, open_given).rows) as catalog:
        yield catalog


@contextmanager
def open_decisions(path: Path, *, wait_s: float) -> Iterator[sqlite3.Connection]:
    """Open a file of decisions; it stays open unless reading fails. `wait_s` limits the wait for another writer."""
    connection = None
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"  # what a killed process left is rolled back; else only read
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=wait_s)
        yield connection
    except (sqlite3.Error, InputError, KeyError, TypeError, ValueError) as error:
        if connection is not None:
            connection.close()
        code, advice = getattr(error, "sqlite_errorname", ""), f"; {KEEP_FILE}"
        if isinstance(error, sqlite3.NotSupportedError):
            advice = ""
        elif code == "SQLITE_ERROR" and "malformed JSON" not in str(error):
            advice = f"; {FOREIGN_TABLES}"
        elif code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            advice = "; put an intact copy of the file back, or move it away to go on without the decisions in it"
        elif code.startswith("SQLITE_BUSY"):
            advice = "; another program is writing it; try again when that is done, and leave the file where it is"
        raise GalleryError(path, f"the label decisions cannot be read: {error}{advice}") from error


def _find_marked(marks: Sequence[Mark], open_given: OpenGiven) -> MarkedRows:
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


def _find_dropped_copies(decisions: Sequence[DuplicateDecision], open_given: OpenGiven) -> DroppedCopies:
    """Images that decisions about groups drop; the last decision about an image counts.

    None of a group is dropped where the gallery lacks a kept image, or where no kept image is indexed.
    """
    by_content = defaultdict[str, list[ImageRef]](list)
    with open_given() as catalog:
        wanted = catalog.find_contents({image.sha256 for one in decisions for image in one.images})
        roots = {number: source.root for number, source in catalog.sources().items()}
        rows = {row.id: row for row in catalog.rows_of([number for number, _, _ in wanted])}
    for row in rows.values():
        path = os.path.join(roots[row.source], row.path)
        by_content[row.sha256 or ""].append(ImageRef(row.id, row.sha256 or "", row.label, path))
    dropped: dict[int, tuple[str | None, tuple[ImageRef, ...]]] = {}
    for decision in decisions:
        here = match_images(
            decision.images, [now for sha256 in {one.sha256 for one in decision.images} for now in by_content[sha256]]
        )
        for image in here:
            dropped.pop(image.image_id, None)
        kept_ids = decision.find_kept(here)
        if (
            decision.decision == DUPLICATES
            and len(kept_ids) == len(decision.keep)
            and any(rows[number].status == "indexed" for number in kept_ids)
        ):
            kept = tuple(image for image in here if image.image_id in kept_ids) if decision.inherits else ()
            dropped |= {image.image_id: (image.label, kept) for image in here if image.image_id not in kept_ids}
    return dropped


def _drop_copies(copies: DroppedCopies, by_id: Mapping[int, DecidedRow], marked: MarkedRows) -> DecidedRows:
    """Rows with dropped near-duplicates: their tags go to the kept images, their only label to unlabelled kept ones."""
    if not copies:
        return DecidedRows(by_id, marked)
    all_rows, tags = dict(by_id), {number: set(names) for number, names in marked.tags.items()}
    labels = defaultdict[int, set[str]](set)
    for number, (given, kept) in copies.items():
        before = by_id.get(number)
        label = given if before is None else before.label
        all_rows[number] = DecidedRow(given, label, left_out=DROPPED)
        for image in kept:
            if number in marked.tags:
                tags.setdefault(image.image_id, set()).update(marked.tags[number])
            is_labelled = image.label is not None or image.image_id in by_id
            if label is not None and not is_labelled and not (before and before.left_out):
                labels[image.image_id].add(label)
    for number, found in labels.items():
        if len(found) == 1 and number not in copies:
            all_rows[number] = DecidedRow(None, found.pop())
    united = {number: tuple(sorted(names)) for number, names in tags.items()}
    return DecidedRows(all_rows, MarkedRows(united, marked.splits))


def identify_file(path: Path) -> tuple[int, ...] | None:
    """Device and inode of a file, which change when it is replaced; None without a file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # opening it tells why
        return (0,)
    return status.st_dev, status.st_ino


@contextmanager
def read_current_catalog(gallery: Path, *, decided: bool = False) -> Iterator[Catalog]:
    """The catalogue of the version on disk, which may be newer than a served one; `decided`: with its annotations."""
    with (
        holding_current(gallery) as version,
        read_decided_catalog(gallery, version) if decided else read_catalog(version.folder / CATALOG_NAME) as catalog,
    ):
        yield catalog
