"""Changing the sources that a gallery knows: one is moved to a new place, or forgotten; all are to be there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from index.catalog.writer import CatalogWriter
from index.errors import InputError
from index.sources.local_source import FileSource
from index.sources.source import ImageSource, Reach
from index.text import command_line, printable_path


def check_sources(catalog: CatalogWriter, *, gallery: Path) -> None:
    """Raise InputError where a source is not there."""
    for source in catalog.sources().values():
        if not source.is_there() and not source.is_one_item:
            raise InputError(
                f"{printable_path(source.location)}: no such folder or file; {_advise(source, gallery)}"
            )


def move_sources(catalog: CatalogWriter, roots: Mapping[str | None, str]) -> None:
    """Record where sources are now; one that a stopped command has recorded already is left as it is."""
    known = {source.location: number for number, source in catalog.sources().items()}
    moves = {
        _find_number(catalog, old): new
        for old, new in roots.items()
        if not (old is not None and new in known and not known.keys() & _spellings(old))
    }
    for number, new in moves.items():
        _check_kind(catalog.sources()[number], new)
    if len(set(moves.values())) < len(moves):
        raise InputError("two sources cannot be moved to one place; give each its own --root OLD=NEW")
    for number, new in moves.items():
        if known.get(new, number) != number and known[new] not in moves:
            raise InputError(
                f"{printable_path(new)}: already a source of the gallery; forget the other one with "
                "`retrieval index remove --source`, then `retrieval index update`"
            )
    for number in moves:  # out of each other's way first: two may swap places
        catalog.move_source(number, f"moving {number}")
    for number, new in moves.items():
        catalog.move_source(number, new)


def _check_kind(source: ImageSource, new: str) -> None:
    """Raise InputError where a table or list would be moved to a folder: that of its images, which its lines name."""
    if source.reach is Reach.ANYWHERE and os.path.isdir(new):
        raise InputError(
            f"{printable_path(new)}: a folder, but {printable_path(source.location)} is a {source.kind}, whose lines "
            "say where the images are: change these, then `retrieval index update`, or put the images back"
        )


def forget_source(catalog: CatalogWriter, location: str) -> int:
    """Remove a source; the number of its items, 0 where a stopped command has removed it already."""
    forgotten = set(json.loads(catalog.setting("forgotten_sources") or "[]"))
    known = {source.location for source in catalog.sources().values()}
    if forgotten & _spellings(location) and not known & _spellings(location):
        return 0
    number = _find_number(catalog, location)
    forgotten |= {catalog.sources()[number].location, catalog.recorded_sources()[number].location}
    catalog.set({"forgotten_sources": json.dumps(sorted(forgotten))})
    return catalog.remove_source(number)


def _find_number(catalog: CatalogWriter, location: str | None) -> int:
    """The number of a source by its location, as it was given or as it is recorded."""
    sources, recorded = catalog.sources(), catalog.recorded_sources()
    names = set() if location is None else _spellings(location)
    outside = [number for number in sources if number != catalog.added_source()]
    found = outside if location is None else [
        number for number in sources if names & {sources[number].location, recorded[number].location}
    ]  # fmt: skip
    if len(found) == 1:
        return found[0]
    listed = list_locations({source.location for source in sources.values()})
    seen = "the gallery has several sources; say which one moved: OLD=NEW" if location is None else (
        f"{printable_path(location)}: no source of the gallery")  # fmt: skip
    raise InputError(f"{seen}; its sources are {listed}")


def _spellings(location: str) -> set[str]:
    """The ways in which a source's location may have been recorded, or is meant now."""
    resolved = FileSource("").at(os.path.abspath(location)).location
    return {location, os.path.abspath(location), os.path.realpath(location), resolved}


def list_locations(locations: Iterable[str]) -> str:
    return ", ".join(printable_path(location) for location in sorted(locations))


def check_emptied(catalog: CatalogWriter, *, gallery: Path) -> None:
    """Raise InputError where a scan met nothing at all in a source that had images: its disk may not be there."""
    for source in catalog.emptied_sources():
        if not source.is_one_item:
            raise InputError(
                f"{printable_path(source.location)}: nothing is left in it; {_advise(source, gallery)}"
            )


def _advise(source: ImageSource, gallery: Path) -> str:
    forget = command_line("remove", gallery, {"--source": source.location})
    return (
        "if it was moved, say where it is now with --root; if its disk is not mounted, mount it; "
        f"if it is gone for good, forget it: {forget}"
    )
