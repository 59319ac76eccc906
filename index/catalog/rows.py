"""Rows of a catalogue."""

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from index.measures import MEASURES, Measures

CLUSTER = "cluster"
"""Metadata column with the name of the image's cluster."""
CLUSTERS_SETTING = "clusters"  # of a catalogue: whether that column is of `set_clusters`
TEXT_IN_IMAGE, TEXT_CONFIDENCE = "text_in_image", "text_confidence"
"""Metadata columns of text recognition."""
TEXTS_SETTING = "texts"  # of a catalogue with them: how many contents were read; see `image_texts`
FACTS_SETTING, GPS_SETTING = "facts", "gps"  # of a catalogue; see `described`
REMOVED = "removed"  # the reason of a removed item
SPLIT = "split"
"""The metadata column of the parts of a data set, such as train and test."""
SKIPPED_IF = "skip-if"  # the reason of an image that matches `SKIP_SETTING`, which is its detail
SKIP_SETTING = "skip_if"
MAX_CHARACTERS = 1 << 24  # of metadata, above the limits of sources
_MAX_NESTING = 200  # below the limits of JSON encoders
VALID_METADATA = (
    f"CASE WHEN typeof(metadata) = 'text' AND length(metadata) <= {MAX_CHARACTERS} THEN "
    "CASE WHEN json_valid(metadata) THEN CASE WHEN json_type(metadata) = 'object' THEN metadata END END END"
)

COLUMNS = (
    "id, source, path, archive, starts_at, size_bytes, mtime_ns, sha256, phash, status, reason, detail, keeper, "
    f"label, metadata, {', '.join(MEASURES)}"
)
_LABEL = COLUMNS.split(", ").index("label")
_FIRST_MEASURE = COLUMNS.split(", ").index(MEASURES[0])


def without_keys(document: str, names: Iterable[str]) -> str:
    """SQL of a JSON object without some of its keys."""
    return f"json_remove({document}, {', '.join(repr(f'$.{name}') for name in names)})"


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One item.

    `label` is the current one, `given_label` that of the source or label file; a decision makes them differ. `path` is
    '/'-separated below its source's root, with undecodable bytes as surrogates; `starts_at` is the member's offset in
    its `archive`; `kept_id` the kept image of a near-duplicate; `tags` are those that people gave.
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
    measured: tuple[Any, ...]
    given_label: str | None
    tags: tuple[str, ...] = ()

    @property
    def former_label(self) -> str | None:
        """The given label where another one was decided; else None."""
        return self.given_label if self.given_label != self.label else None

    @property
    def measures(self) -> Measures:
        """Size, sharpness and others; all None for an item that was not decoded."""
        return Measures(*self.measured)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The item's metadata, JSON values by name; empty without."""
        return read_metadata(self.metadata_json)


def make_row(values: tuple[Any, ...]) -> CatalogRow:
    number, source, path, archive, *others = values
    place = os.fsdecode(path), None if archive is None else os.fsdecode(archive)
    others, measured = others[: _FIRST_MEASURE - 4], values[_FIRST_MEASURE:]
    return CatalogRow(*(number, source, *place, *others, measured, values[_LABEL]))


def read_metadata(text: str | None) -> Mapping[str, Any]:
    """JSON values by name; empty for anything but a JSON object of sane size and depth."""
    if not text or not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return {}
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and not _is_deep(values) else {}


def has_spoiled_labels(connection: sqlite3.Connection) -> bool:
    """Whether some label is not text: numbers sort before texts, bytes behind."""
    query = "SELECT typeof((SELECT min(label) FROM images)), typeof((SELECT max(label) FROM images))"
    return not set(connection.execute(query).fetchone()) <= {"text", "null"}


def has_spoiled_metadata(connection: sqlite3.Connection) -> bool:
    """Whether some metadata is not a JSON object; reads all rows."""
    query = f"SELECT 1 FROM images WHERE metadata IS NOT ({VALID_METADATA}) LIMIT 1"
    return connection.execute(query).fetchone() is not None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _is_deep(values: Mapping[str, Any]) -> bool:
    level: list[Any] = [values]
    for _ in range(_MAX_NESTING):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
