"""Sources of groups: what a gallery, or images that were just embedded, tell beside their vectors."""

from collections.abc import Sequence

import numpy as np

from index.arrays import Ids
from index.duplicates.duplicate_config import DuplicateConfig
from index.duplicates.gallery_duplicates import Fingerprint, find_gallery_duplicates
from index.duplicates.near_duplicates import ReadVectors
from index.errors import InputError
from index.evaluation.groups import COLUMN, GroupSources, name_group
from index.gallery.gallery import Gallery
from index.items import Place
from index.network.remote_store import has_time
from index.text import printable_path

_NANOSECONDS = 1e-9


def read_group_sources(
    gallery: Gallery, *, column: str | None = None, copies: Ids | None = None, near_copies: bool = True
) -> GroupSources:
    """Sources of groups of the members of a gallery, in the order of their ids.

    Args:
        gallery: of the files whose names and times count; members of archives have no times.
        column: of the metadata that defines the groups; None: `group`, where there is one.
        copies: as `GroupSources` has them; None looks for them.
        near_copies: whether to find near-duplicates, or equal bytes alone.
    """
    names, times, given, prints = [], [], list[str | None](), []
    with gallery.catalog() as catalog:
        for row in catalog.rows(status="indexed"):
            names.append(f"{row.source}/{row.path}")
            is_timed = row.archive is None and has_time(row.mtime_ns)
            times.append(row.mtime_ns * _NANOSECONDS if is_timed else np.nan)
            given.append(name_group(row.metadata, column))
            prints.append(Fingerprint(row.id, row.sha256 or f"#{row.id}", row.phash, labelled=row.label is not None))
    if column is not None and not any(given):
        raise InputError(f"{printable_path(str(gallery.path))}: no image has a value in its metadata for {column!r}")
    if copies is None:
        copies = find_copies(prints, gallery.vectors, near=near_copies)
    return GroupSources(names, np.array(times, dtype=np.float64), given=given, copies=copies, column=column or COLUMN)


def gather_group_sources(
    places: Sequence[Place], *, given: Sequence[str | None], copies: Ids, column: str | None = None
) -> GroupSources:
    """Sources of groups of images at these places; the others as `GroupSources` has them."""
    names = [str(place.file) if place.offset is None else f"{place.file}/{place.name}" for place in places]
    times = np.array([_read_time(place) for place in places], dtype=np.float64)
    return GroupSources(names, times, given=given, copies=copies, column=column or COLUMN)


def _read_time(place: Place) -> float:
    """Modification time of an image file in seconds; NaN for members of archives and remote files."""
    if place.offset is not None or place.store is not None:
        return float("nan")
    try:
        return place.file.stat().st_mtime
    except OSError:
        return float("nan")


def find_copies(prints: Sequence[Fingerprint], read: ReadVectors, *, near: bool = True) -> Ids:
    """(N,) int64, the same for equal files, and for near-duplicates if `near`."""
    kept = find_gallery_duplicates(prints, read, config=DuplicateConfig() if near else None)
    return np.array([kept.get(image.id, image.id) for image in prints], dtype=np.int64)
