"""Where the sources of a gallery are now, though it, or they, were moved, copied, restored or linked since.

A catalogue names a source that lies in the gallery by its place there, and any other by its absolute path; where the
others lay as seen from the gallery is a setting of their numbers. Earlier programs wrote absolute paths alone, those of
the images that were sent included.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from index.images import printable_path
from index.items import locate
from index.people import ADDED, ADDED_PLACE, added_folder
from index.sources import FolderResolver, Source

PLACES_SETTING = "places"
LABELS_PLACE = "labels"  # in that setting, of the file that labels come from
_SENT_NAME = re.compile(r"([^/]+/)?(?P<sha256>[0-9a-f]{64})\.[a-z0-9]+")
_LOOKED_AT = 64  # items of a source, by which it is known again


@dataclass(frozen=True, slots=True)
class Sample:
    """An item as its row has it, by which a source is known again; None for what the row does not have."""

    path: str
    archive: str | None
    starts_at: int | None
    size_bytes: int
    sha256: str | None

    def is_below(self, root: Path) -> bool:
        """Whether it is there, of the size that it had; of an archive, whether that goes so far."""
        place = locate(
            root, self.path, archive=self.archive, offset=self.starts_at, size_bytes=self.size_bytes, mtime_ns=0
        )
        try:
            size = os.stat(place.file).st_size
        except (OSError, ValueError):
            return False
        if self.archive is not None:
            return size > (self.starts_at or 0)
        return size == self.size_bytes


TakeSample = Callable[[int, int], list[Sample]]
"""Up to so many items of the source of a number."""


@dataclass(frozen=True, slots=True)
class Move:
    """A source that was found in another place than the catalogue says."""

    recorded: str
    found: str


@dataclass(frozen=True, slots=True)
class Places:
    """The sources by number, where they are now.

    Attributes:
        sources: all.
        added: the number of the one that holds the images that were sent to this gallery; None without.
        moves: those outside the gallery that are not where they were, and were found.
    """

    sources: Mapping[int, Source]
    added: int | None
    moves: tuple[Move, ...]


def find_places(
    recorded: Mapping[int, Source], *, gallery: Path, places: Mapping[str, str], take_sample: TakeSample
) -> Places:
    """Where the recorded sources are.

    Args:
        recorded: the sources with their locations as the catalogue has them, relative ones included.
        gallery: its folder.
        places: what `describe_places` said of them when they were recorded.
        take_sample: how a source's items are looked up.
    """
    home, real = Path(os.path.realpath(gallery)), FolderResolver()
    found = {number: real.resolve(_anchor(source, home)) for number, source in recorded.items()}
    added = _find_added(recorded, found, home=home, take_sample=take_sample)
    if added is not None:
        found[added] = Source("folder", str(added_folder(home)))
        if (former := _find_former_home(recorded[added], home=home)) is not None:
            places = {**_look_from(former, found), **places}
    taken, moves = {source.location for source in found.values()}, []
    for number, source in recorded.items():
        beside = places.get(str(number))
        if beside is None or number == added or os.path.exists(_anchor_of(found[number])):
            continue
        now = real.resolve(Source(source.kind, os.path.normpath(home / beside)))
        if now.location not in taken and _holds_items(now, take_sample(number, _LOOKED_AT)):
            moves.append(Move(found[number].location, now.location))
            found[number] = now
            taken.add(now.location)
    return Places(found, added, tuple(moves))


def describe_move(move: Move) -> str:
    """What people are told of a source that was found in another place."""
    old, new = printable_path(move.recorded), printable_path(move.found)
    return f"{old}: not there any more; its images were found in {new}, which is used instead"


def place_in_gallery(location: str, *, gallery: Path) -> str:
    """How a catalogue records a location: relative where it lies in the gallery."""
    home = os.path.realpath(gallery)
    if location == str(added_folder(Path(home))):
        return ADDED_PLACE
    return os.path.relpath(location, home) if location.startswith(home + "/") else location


def describe_places(
    sources: Mapping[int, Source], *, gallery: Path, labels_file: Path | None, before: Mapping[str, str]
) -> str:
    """The setting that tells where sources outside a gallery, and its label file, lie as seen from it.

    Of what cannot be found at the moment it goes on to say what it said `before`.
    """
    home = os.path.realpath(gallery)
    anchors = {str(number): (_anchor_of(source), source.location) for number, source in sources.items()}
    if labels_file is not None:
        anchors[LABELS_PLACE] = (str(labels_file), os.path.realpath(labels_file))
    return json.dumps({
        name: before[name] if name in before and not os.path.exists(anchor) else os.path.relpath(location, home)
        for name, (anchor, location) in anchors.items()
        if os.path.isabs(place_in_gallery(location, gallery=gallery))
    })  # fmt: skip


def find_file_beside(recorded: str, *, gallery: Path, places: Mapping[str, str]) -> str:
    """Where a label file is now: as it was recorded, or where it lay as seen from the gallery."""
    beside = places.get(LABELS_PLACE)
    if beside is None or os.path.exists(recorded):
        return recorded
    now = os.path.normpath(os.path.join(os.path.realpath(gallery), beside))
    return now if os.path.isfile(now) else recorded


def _anchor(source: Source, home: Path) -> Source:
    """A source with an absolute location."""
    if os.path.isabs(source.location):
        return source
    if source.location == ADDED_PLACE:
        return Source(source.kind, str(added_folder(home)))
    return Source(source.kind, os.path.normpath(home / source.location))


def _anchor_of(source: Source) -> str:
    """The file or folder that must be there for a source to be."""
    return str(source.root) if source.kind == "glob" else source.location


def _holds_items(source: Source, sample: Iterable[Sample]) -> bool:
    if not os.path.exists(_anchor_of(source)):
        return False
    sampled = list(sample)  # some may be changed or gone since; another folder may share a few
    return sum(item.is_below(source.root) for item in sampled) * 2 >= len(sampled)


def _find_added(
    recorded: Mapping[int, Source], found: Mapping[int, Source], *, home: Path, take_sample: TakeSample
) -> int | None:
    """The source of the images that were sent: by its place, or else, in a gallery that was moved, by what it holds.

    It was called `added`, or its files are named by their bytes; and most of its items are in this gallery's folder.
    """
    folder = added_folder(home)
    for number, source in recorded.items():
        if source.location == ADDED_PLACE:
            return number
    folders = {number: source for number, source in found.items() if source.kind == "folder"}
    for number, source in folders.items():
        if source.location in (str(folder), str(home / ADDED)):
            return number
    if not folder.is_dir():
        return None
    shares = {}
    for number, source in folders.items():
        sample = take_sample(number, _LOOKED_AT)
        if sample and (os.path.basename(source.location) == ADDED or all(map(_is_sent, sample))):
            shares[number] = sum(item.is_below(folder) for item in sample) / len(sample)
    best = max(shares, key=lambda number: shares[number], default=None)
    return best if best is not None and shares[best] > 0.5 else None


def _find_former_home(added: Source, *, home: Path) -> str | None:
    """Where a gallery was when an earlier program recorded the images sent to it; None where it tells nothing new."""
    former, name = os.path.split(added.location)
    return former if os.path.isabs(former) and name == ADDED and former != str(home) else None


def _look_from(former: str, found: Mapping[int, Source]) -> dict[str, str]:
    """Where sources lay as seen from the gallery's former place."""
    return {str(number): os.path.relpath(source.location, former) for number, source in found.items()}


def _is_sent(item: Sample) -> bool:
    named = _SENT_NAME.fullmatch(item.path)
    return named is not None and item.sha256 in (None, named["sha256"])
