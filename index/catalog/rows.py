"""One row of a catalogue, as every reader gets it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from index.catalog.row_metadata import read_metadata

STATUSES = ("pending", "indexed", "duplicate", "skipped")
COLUMNS = (
    "id, source, path, archive, starts_at, size_bytes, mtime_ns, sha256, phash, status, reason, detail, keeper, "
    "label, metadata"
)
_LABEL = COLUMNS.split(", ").index("label")


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One item.

    `label` is the one that holds, `given_label` what the source or label file gave: they differ where somebody decided
    so. `path` is '/'-separated below its source's root, with undecodable bytes as surrogates; `starts_at` is the
    member's offset in its `archive`; `kept_id` the indexed image that a duplicate repeats.
    """

    id: int
    source: int
    path: str
    archive: str | None
    starts_at: int | None
    size_bytes: int
    mtime_ns: int
    sha256: str | None
    phash: int | None
    status: str
    reason: str | None
    detail: str | None
    kept_id: int | None
    label: str | None
    metadata_json: str | None
    given_label: str | None

    @property
    def former_label(self) -> str | None:
        """The given label where another one was decided; else None."""
        return self.given_label if self.given_label != self.label else None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The item's metadata, JSON values by name; empty without."""
        return read_metadata(self.metadata_json)


def make_row(values: tuple[Any, ...]) -> CatalogRow:
    """The row of a query for `COLUMNS`."""
    number, source, path, archive, *others = values
    place = os.fsdecode(path), None if archive is None else os.fsdecode(archive)
    return CatalogRow(*(number, source, *place, *others, values[_LABEL]))
