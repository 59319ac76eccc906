"""Places of a gallery's sources: sources in it are recorded by relative paths, others by both kinds of paths."""

import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from index.catalog.rows import CatalogRow
from index.paths import below
from index.sources.source import ImageSource
from index.text import printable_path
from index.versions.annotations import ADDED_PLACE, added_folder

PLACES_SETTING = "places"
LABELS_PLACE = "labels"  # in that setting, of the label file
_LOOKED_AT = 64  # items that identify a source


def find_places(
    recorded: Mapping[int, ImageSource],
    *,
    gallery: Path,
    places: Mapping[str, str],
    take_sample: Callable[[int, int], list[CatalogRow]],
) -> tuple[dict[int, ImageSource], tuple[str, ...]]:
    """The recorded sources at their current places, identified by a sample of items, and messages about moved ones."""
    home, real = Path(os.path.realpath(gallery)), cache(os.path.realpath)
    found = {number: source.at(_absolute(source.location, home), real) for number, source in recorded.items()}
    taken, moves = {source.location for source in found.values()}, []
    for number, source in recorded.items():
        beside = places.get(str(number))
        if beside is None or source.location == ADDED_PLACE or found[number].is_there():
            continue
        now = source.at(os.path.normpath(home / beside), real)
        # At least half of the sampled items must be there: some may be gone, another folder may share a few.
        sample = take_sample(number, _LOOKED_AT) if now.location not in taken and now.is_there() else None
        if sample is not None and sum(_has_file(now, item) for item in sample) * 2 >= len(sample):
            old, new = printable_path(found[number].location), printable_path(now.location)
            moves.append(f"{old}: not there any more; its images were found in {new}, which is used instead")
            found[number] = now
            taken.add(now.location)
    return found, tuple(moves)


def place_in_gallery(location: str, *, gallery: Path) -> str:
    """A location as a catalogue records it: relative in the gallery, else absolute."""
    home = os.path.realpath(gallery)
    if location == str(added_folder(Path(home))):
        return ADDED_PLACE
    return below(home, location)


def describe_places(
    sources: Mapping[int, ImageSource], *, gallery: Path, labels_file: Path | None, before: Mapping[str, str]
) -> str:
    """The setting with relative paths of outside sources and the label file; a missing one keeps that of `before`."""
    home = os.path.realpath(gallery)
    recorded = {str(number): (source.is_there(), source.location) for number, source in sources.items()}
    if labels_file is not None:
        recorded[LABELS_PLACE] = (labels_file.exists(), os.path.realpath(labels_file))
    return json.dumps(
        {
            name: before[name] if name in before and not is_there else os.path.relpath(location, home)
            for name, (is_there, location) in recorded.items()
            if os.path.isabs(place_in_gallery(location, gallery=gallery))
        }
    )


def find_file_beside(recorded: str, *, gallery: Path, places: Mapping[str, str]) -> str:
    """The label file's current path: as recorded, or relative to the gallery."""
    beside = places.get(LABELS_PLACE)
    if beside is None or os.path.exists(recorded):
        return recorded
    now = os.path.normpath(os.path.join(os.path.realpath(gallery), beside))
    return now if os.path.isfile(now) else recorded


def _absolute(location: str, home: Path) -> str:
    """The absolute path of a recorded location, for a gallery at `home`."""
    if os.path.isabs(location) or "://" in location:
        return location
    return str(added_folder(home)) if location == ADDED_PLACE else os.path.normpath(home / location)


def _has_file(source: ImageSource, item: CatalogRow) -> bool:
    """Whether an item's file is there with its size; an archive must be long enough."""
    try:
        size = os.stat(source.locate(item).file).st_size
    except (OSError, ValueError):
        return False
    return size == item.size_bytes if item.archive is None else size > (item.starts_at or 0)
