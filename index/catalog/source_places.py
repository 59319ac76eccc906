"""Where the sources of a gallery are now, though it, or they, were moved, copied, restored or linked since.

A catalogue names a source that lies in the gallery by its place there, and any other by its absolute path; where the
others lay as seen from the gallery is a setting of their numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from index.catalog.rows import CatalogRow
from index.sources.source import ImageSource
from index.text import printable_path
from index.versions.annotations import ADDED_PLACE, added_folder

PLACES_SETTING = "places"
LABELS_PLACE = "labels"  # in that setting, of the file that labels come from
_LOOKED_AT = 64  # items of a source, by which it is known again


@dataclass(frozen=True, slots=True)
class Places:
    """The sources by number, where they are now.

    Attributes:
        added: the number of the one that holds the images that were sent to this gallery; None without.
        moves: what people are told of those outside the gallery that are not where they were, and were found.
    """

    sources: Mapping[int, ImageSource]
    added: int | None
    moves: tuple[str, ...]


def find_places(
    recorded: Mapping[int, ImageSource],
    *,
    gallery: Path,
    places: Mapping[str, str],
    take_sample: Callable[[int, int], list[CatalogRow]],
) -> Places:
    """Where the recorded sources are.

    Args:
        recorded: the sources with their locations as the catalogue has them, relative ones included.
        gallery: its folder.
        places: what `describe_places` said of them when they were recorded.
        take_sample: gives up to so many items of the source of a number, by which it is known again.
    """
    home, real = Path(os.path.realpath(gallery)), cache(os.path.realpath)
    found = {number: source.at(_absolute(source.location, home), real) for number, source in recorded.items()}
    added = next((number for number, source in recorded.items() if source.location == ADDED_PLACE), None)
    taken, moves = {source.location for source in found.values()}, []
    for number, source in recorded.items():
        beside = places.get(str(number))
        if beside is None or number == added or found[number].is_there():
            continue
        now = source.at(os.path.normpath(home / beside), real)
        # At least half of its items must be there: some may be changed or gone; another folder may share a few.
        sample = take_sample(number, _LOOKED_AT) if now.location not in taken and now.is_there() else None
        if sample is not None and sum(_has_file(now, item) for item in sample) * 2 >= len(sample):
            old, new = printable_path(found[number].location), printable_path(now.location)
            moves.append(f"{old}: not there any more; its images were found in {new}, which is used instead")
            found[number] = now
            taken.add(now.location)
    return Places(found, added, tuple(moves))


def place_in_gallery(location: str, *, gallery: Path) -> str:
    """How a catalogue records a location: relative where it lies in the gallery."""
    home = os.path.realpath(gallery)
    if location == str(added_folder(Path(home))):
        return ADDED_PLACE
    return os.path.relpath(location, home) if location.startswith(home + "/") else location


def describe_places(
    sources: Mapping[int, ImageSource], *, gallery: Path, labels_file: Path | None, before: Mapping[str, str]
) -> str:
    """The setting that tells where sources outside a gallery, and its label file, lie as seen from it.

    Of what cannot be found at the moment it goes on to say what it said `before`.
    """
    home = os.path.realpath(gallery)
    recorded = {str(number): (source.is_there(), source.location) for number, source in sources.items()}
    if labels_file is not None:
        recorded[LABELS_PLACE] = (labels_file.exists(), os.path.realpath(labels_file))
    return json.dumps({
        name: before[name] if name in before and not is_there else os.path.relpath(location, home)
        for name, (is_there, location) in recorded.items()
        if os.path.isabs(place_in_gallery(location, gallery=gallery))
    })  # fmt: skip


def find_file_beside(recorded: str, *, gallery: Path, places: Mapping[str, str]) -> str:
    """Where a label file is now: as it was recorded, or where it lay as seen from the gallery."""
    beside = places.get(LABELS_PLACE)
    if beside is None or os.path.exists(recorded):
        return recorded
    now = os.path.normpath(os.path.join(os.path.realpath(gallery), beside))
    return now if os.path.isfile(now) else recorded


def _absolute(location: str, home: Path) -> str:
    """Where a recorded location is, if its gallery is here."""
    if os.path.isabs(location) or "://" in location:
        return location
    return str(added_folder(home)) if location == ADDED_PLACE else os.path.normpath(home / location)


def _has_file(source: ImageSource, item: CatalogRow) -> bool:
    """Whether an item's file is there, of the size that it had; of an archive, whether that goes so far."""
    try:
        size = os.stat(source.locate(item).file).st_size
    except (OSError, ValueError):
        return False
    return size == item.size_bytes if item.archive is None else size > (item.starts_at or 0)
