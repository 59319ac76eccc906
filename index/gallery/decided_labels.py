"""The label decisions of a gallery, and which rows of an open version they are about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from index.catalog.decided_rows import NOTHING_DECIDED, DecidedLabel, DecidedRows
from index.catalog.reader import Catalog, read_catalog
from index.labels.decision_database import read_held_labels
from index.labels.decisions import CHANGE, DROP, LabelDecision, LabelKey
from index.versions.manifest import CATALOG_NAME, Version
from index.versions.people import decisions_file

_TICK_S = 0.1  # more than the step of a file's times: within it, two changes may have the same one

OpenGiven = Callable[[], AbstractContextManager[Catalog]]
"""Opens the catalogue with its given labels."""


@dataclass(frozen=True, slots=True)
class DecidedLabels:
    """What was decided at one moment, as one version of a gallery shows it.

    Attributes:
        rows: what it changes.
    """

    rows: DecidedRows = NOTHING_DECIDED
    _file: tuple[int, ...] | None = None
    _is_settled: bool = False  # whether every later change shows in the file's identity
    _ids: Mapping[LabelKey, tuple[int, ...]] = field(default_factory=dict)  # of what was looked up

    def read_again(self, gallery: Path, open_given: OpenGiven) -> DecidedLabels:
        """What is decided now; itself where nothing was decided since.

        Raises:
            GalleryError: the decisions cannot be read, or the catalogue is damaged.
        """
        path, now = decisions_file(gallery), time.time()
        file = _identify(path)
        if file == self._file and self._is_settled:
            return self
        decisions = read_held_labels(path) if file is not None else {}
        changing = {key: one for key, one in decisions.items() if one.decision in (CHANGE, DROP)}
        ids = {key: found for key, found in self._ids.items() if key in changing}
        if missing := changing.keys() - ids.keys():
            with open_given() as catalog:
                ids |= _find_ids(catalog, missing)
        rows = DecidedRows({number: _decide(changing[key]) for key, found in ids.items() for number in found})
        is_settled = file is None or file[-1] < (now - _TICK_S) * 1e9
        return DecidedLabels(self.rows if rows.digest == self.rows.digest else rows, file, is_settled, ids)


@contextmanager
def read_decided_catalog(gallery: Path, version: Version) -> Iterator[Catalog]:
    """The catalogue of a version with what is decided about its labels, where nothing else of it is opened.

    Raises:
        GalleryError: one of the two cannot be read.
    """
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
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _decide(decision: LabelDecision) -> DecidedLabel:
    label = decision.new_label if decision.decision == CHANGE else decision.label
    return DecidedLabel(decision.label, label, decision.decision == DROP)


def _find_ids(catalog: Catalog, keys: Iterable[LabelKey]) -> dict[LabelKey, tuple[int, ...]]:
    """The rows that have these bytes and given labels."""
    found: dict[LabelKey, list[int]] = {key: [] for key in keys}
    contents, labels = {sha256 for sha256, _ in found}, {label for _, label in found}
    for number, sha256, label in catalog.find_contents(contents, labels=labels):
        if (sha256, label) in found:
            found[sha256, label].append(number)
    return {key: tuple(ids) for key, ids in found.items()}
