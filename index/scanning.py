"""Scanning the sources of a gallery: every item once, also where sources overlap."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from index.assigned_labels import AssignedLabels
from index.catalog_writer import CatalogWriter
from index.items import FoundItem
from index.sources import Source, scan_below, scan_source

_NAMES_FILES = ("list", "table")  # kinds whose items may lie anywhere
_NAMED_BY_PATH = ("folder", "archive", "file")  # kinds that can be a part of a folder


def scan_sources(
    catalog: CatalogWriter, numbers: Sequence[int], *, labels: AssignedLabels | None, restore: bool = False
) -> Iterator[tuple[int, FoundItem]]:
    """(source, item) of some of a catalogue's sources, in their order; an item in several belongs to the first.

    Sources that are not scanned now have the items that their rows say.

    Args:
        catalog: which records the items while they are given.
        numbers: of the sources to scan.
        labels: labels that go before those of the sources.
        restore: let items of other sources that were taken out, and are met here, come back.

    Raises:
        InputError: a source cannot be scanned.
    """
    sources = catalog.sources()
    for position, number in enumerate(numbers):
        source = sources[number]
        rivals = {
            rival: rival in numbers
            for rival in sources
            if rival != number and (rival not in numbers or rival in numbers[:position])
        }
        near = {rival: scanned for rival, scanned in rivals.items() if _may_share(source, sources[rival])}
        for item in scan_source(source):
            location = os.path.join(source.root, item.path)
            owners = [key for rival in near for key in _keys(rival, sources[rival], location)]
            owner = next((key for key in owners if catalog.has_item(*key, in_scan=near[key[0]])), None)
            if owner is None:
                yield number, item if labels is None else labels.label(item, location)
            elif restore:
                catalog.restore(*owner)


def find_parts(catalog: CatalogWriter, given: Iterable[Source]) -> dict[str, int]:
    """Those locations that lie in a folder which is a source of the catalogue already, and its number."""
    folders = {n: source for n, source in catalog.sources().items() if source.kind == "folder"}
    known = {source.location for source in catalog.sources().values()}
    return {
        source.location: number
        for source in given
        if source.kind in _NAMED_BY_PATH and source.location not in known
        for number, folder in folders.items()
        if Path(source.location).is_relative_to(folder.root)
    }


def scan_parts(
    catalog: CatalogWriter, parts: Mapping[str, int], *, labels: AssignedLabels | None
) -> Iterator[tuple[int, FoundItem]]:
    """(source, item) of parts of sources, as `find_parts` gives them."""
    for location, number in parts.items():
        source = catalog.sources()[number]
        for item in scan_below(source, location):
            yield number, item if labels is None else labels.label(item, os.path.join(source.root, item.path))


def _may_share(source: Source, other: Source) -> bool:
    roots = source.root, other.root
    nested = roots[0].is_relative_to(roots[1]) or roots[1].is_relative_to(roots[0])
    return nested or bool({source.kind, other.kind} & set(_NAMES_FILES))


def _keys(number: int, source: Source, location: str) -> list[tuple[int, str]]:
    """What an item at an absolute location is called, were it one of the source."""
    paths = [location] if source.kind in _NAMES_FILES else []
    if Path(location).is_relative_to(source.root):
        paths.append(os.path.relpath(location, source.root))
    return [(number, path) for path in paths]
