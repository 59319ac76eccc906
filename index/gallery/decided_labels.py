"""Label decisions of a gallery, applied to the rows of an open version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from index.catalog.decided_rows import NOTHING_DECIDED, DecidedLabel, DecidedRows
from index.catalog.reader import Catalog, read_catalog
from index.labels.decisions import CHANGE, DROP, LabelDecision, LabelKey, data_version, read_held_labels
from index.versions.annotations import decisions_file
from index.versions.manifest import CATALOG_NAME, Version

LOCK_WAIT_S = 2.0  # while another program writes the decisions

OpenGiven = Callable[[], AbstractContextManager[Catalog]]
"""Opens the catalogue with its given labels."""


@dataclass(frozen=True, slots=True)
class DecidedLabels:
    """The label decisions at one moment, and the `rows` of a version that they change."""

    rows: DecidedRows = NOTHING_DECIDED
    _file: tuple[int, ...] | None = None
    _connection: sqlite3.Connection | None = None  # none without a file
    _version: int = 0  # of the data, as that connection tells it
    _ids: Mapping[LabelKey, tuple[int, ...]] = field(default_factory=dict)

    def is_current(self, gallery: Path) -> bool:
        """Whether no decision came since, without waiting; False where that is unknown."""
        if _identify(decisions_file(gallery)) != self._file:
            return False
        try:
            return self._connection is None or data_version(self._connection) == self._version
        except sqlite3.Error:  # locked or damaged: reading it tells
            return False

    def read_again(self, gallery: Path, open_given: OpenGiven, *, wait_s: float = LOCK_WAIT_S) -> DecidedLabels:
        """The decisions of now; itself where none came since."""
        if self.is_current(gallery):
            return self
        path = decisions_file(gallery)
        file, connection, version = _identify(path), None, 0
        decisions: Mapping[LabelKey, LabelDecision] = {}
        if file is not None:
            decisions, connection, version = read_held_labels(path, wait_s=wait_s)
        changing = {key: one for key, one in decisions.items() if one.decision in (CHANGE, DROP)}
        ids = {key: found for key, found in self._ids.items() if key in changing}
        if missing := changing.keys() - ids.keys():
            with open_given() as catalog:
                ids |= _find_ids(catalog, missing)
        by_id: dict[int, DecidedLabel] = {}
        for key, found in ids.items():
            one = changing[key]
            label = one.new_label if one.decision == CHANGE else one.label
            by_id |= dict.fromkeys(found, DecidedLabel(one.label, label, one.decision == DROP))
        rows = DecidedRows(by_id)
        rows = self.rows if rows.digest == self.rows.digest else rows
        return DecidedLabels(rows, file, connection, version, ids)


@contextmanager
def read_decided_catalog(gallery: Path, version: Version) -> Iterator[Catalog]:
    """The catalogue of a version with its label decisions, without opening the gallery."""
    open_given = partial(read_catalog, version.folder / CATALOG_NAME)
    with open_given(decided=DecidedLabels().read_again(gallery, open_given).rows) as catalog:
        yield catalog


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
