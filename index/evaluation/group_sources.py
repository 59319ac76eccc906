"""Sources of groups: what a gallery, or images that were just embedded, tell beside their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from index.arrays import Ids, Vectors
from index.duplicates.duplicate_config import DuplicateConfig
from index.duplicates.gallery_duplicates import Fingerprint, find_gallery_duplicates
from index.duplicates.near_duplicates import ReadVectors
from index.errors import InputError
from index.evaluation.groups import COLUMN, GroupSources
from index.gallery.gallery import Gallery
from index.network.remote_store import has_time
from index.sources.items import EmbeddedItem, Place
from index.sources.table_rows import as_text
from index.text import printable_path

_NANOSECONDS = 1e-9


def read_group_sources(
    gallery: Gallery, *, column: str | None = None, copies: Ids | None = None, near_copies: bool = True
) -> GroupSources:
    """Sources of groups of the members of a gallery, in the order of their ids.

    Args:
        gallery: whose files' names and times count; times of archives are not those of their members.
        column: of the metadata that defines the groups; None: `group`, where there is one.
        copies: as `GroupSources` has them; None looks for them.
        near_copies: whether it looks for more than equal bytes.
    """
    names, times, given, prints = [], [], list[str | None](), []
    with gallery.catalog() as catalog:
        for row in catalog.rows(status="indexed"):
            names.append(f"{row.source}/{row.path}")
            is_timed = row.archive is None and has_time(row.mtime_ns)
            times.append(row.mtime_ns * _NANOSECONDS if is_timed else np.nan)
            value = row.metadata.get(column or COLUMN)
            given.append(None if isinstance(value, dict | list) else as_text(value) or None)
            prints.append(
                Fingerprint(row.id, row.sha256 or f"#{row.id}", row.phash, labelled=row.label is not None)
            )
    if column is not None and not any(given):
        raise InputError(
            f"{printable_path(str(gallery.path))}: no image has a value in its metadata for {column!r}"
        )
    if copies is None:
        copies = _find_copies(prints, gallery.vectors, near=near_copies)
    return GroupSources(
        names, np.array(times, dtype=np.float64), given=given, copies=copies, column=column or COLUMN
    )


def gather_group_sources(
    items: Sequence[EmbeddedItem],
    places: Sequence[Place],
    *,
    vectors: Vectors,
    given: Sequence[str | None],
    column: str | None = None,
) -> GroupSources:
    """Sources of groups of embedded images, with their places, (N, D) float32 `vectors` and the column `given`."""
    prints = [Fingerprint(row, item.sha256 or f"#{row}", item.phash) for row, item in enumerate(items)]
    names = [str(place.file) if place.offset is None else f"{place.file}/{place.name}" for place in places]
    times = np.array([read_time(place) for place in places], dtype=np.float64)
    return GroupSources(
        names, times, given=given, copies=_find_copies(prints, lambda rows: vectors[rows]), column=column or COLUMN
    )


def read_time(place: Place) -> float:
    """When the file of an image was changed, in seconds; NaN for members of archives and what has no time."""
    if place.offset is not None or place.store is not None:
        return float("nan")
    try:
        return place.file.stat().st_mtime
    except OSError:
        return float("nan")


def _find_copies(prints: Sequence[Fingerprint], read: ReadVectors, *, near: bool = True) -> Ids:
    """(N,) int64, the same for images that are copies by their bytes, or where `near` by hash and embedding."""
    found = find_gallery_duplicates(prints, read, config=DuplicateConfig() if near else None)
    kept = {pair.id: pair.kept_id for pair in found}
    return np.array([kept.get(image.id, image.id) for image in prints], dtype=np.int64)
