"""The photos that people took out of a gallery, for a backup, and finding them again in the gallery of a restore."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from index.catalog.catalog_scan import REMOVED
from index.catalog.reader import Catalog
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.labels.decisions import LabelKey

_USABLE = ("indexed", "duplicate")


@dataclass(frozen=True, slots=True)
class Removal:
    """A photo that was taken out; those that were sent are not among these, a backup has them as files.

    Attributes:
        sha256: of its bytes.
        label: that it had.
        source: the location of the source that it is in.
        path: below it.
        kept: how many photos of the same bytes and label were not taken out.
    """

    sha256: str
    label: str | None
    source: str
    path: str
    kept: int

    @property
    def key(self) -> LabelKey:
        """What it is known by in every gallery."""
        return self.sha256, self.label


def list_removals(catalog: Catalog) -> list[Removal]:
    """The photos that are taken out; what could never be read is not known by its bytes, and left out."""
    sources, added = catalog.sources(), catalog.added_source()
    removed = [row for row in catalog.rows(status="skipped")
               if row.reason == REMOVED and row.sha256 is not None and row.source != added]  # fmt: skip
    wanted = {(row.sha256, row.label) for row in removed}
    kept = Counter((row.sha256, row.label) for row in _read_usable(catalog, bool(wanted)) if row.source != added)
    return [
        Removal(row.sha256 or "", row.label, sources[row.source].location, row.path, kept[row.sha256, row.label])
        for row in removed
    ]


def read_removal(line: dict[str, Any]) -> Removal:
    """A removal of its JSON object.

    Raises:
        InputError: it is none.
    """
    texts = [line.get(name) for name in ("sha256", "source", "path")]
    label, kept = line.get("label"), line.get("kept")
    sound = all(isinstance(text, str) and text for text in texts) and isinstance(kept, int) and kept >= 0
    if not sound or not (label is None or isinstance(label, str)):
        raise InputError("a photo that was taken out has no bytes, place or label")
    sha256, source, path = map(str, texts)
    return Removal(sha256, label, source, path, int(kept or 0))


def find_removed(catalog: Catalog, removals: Iterable[Removal]) -> tuple[list[int], int]:
    """Ids of the photos of a gallery that were taken out of another one, and how many it has not, or no more.

    They are known by bytes and label; of several it is the one of the same path, or else any, but never so many that
    fewer would stay than were kept where they were taken out. What is out here already is counted before the rest.
    """
    wanted: dict[LabelKey, list[Removal]] = {}
    for removal in removals:
        wanted.setdefault(removal.key, []).append(removal)
    here: dict[LabelKey, list[tuple[CatalogRow, str]]] = {}
    sources, added = catalog.sources(), catalog.added_source()
    taken_out = (row for row in catalog.rows(status="skipped") if row.reason == REMOVED)
    for rows in (taken_out, _read_usable(catalog, bool(wanted))):
        for row in rows:
            key = (row.sha256 or "", row.label)
            if key in wanted and row.source != added:
                here.setdefault(key, []).append((row, os.path.join(sources[row.source].root, row.path)))
    there, out = list[int](), 0
    for key, meant in wanted.items():
        chosen = [row.id for row in _choose(meant, here.get(key, [])) if row.reason != REMOVED]
        there += chosen
        out += len(meant) - len(chosen)
    return there, out


def _read_usable(catalog: Catalog, is_needed: bool) -> Iterator[CatalogRow]:
    for status in _USABLE if is_needed else ():
        yield from catalog.rows(status=status)


def _choose(meant: list[Removal], here: list[tuple[CatalogRow, str]]) -> Iterator[CatalogRow]:
    """Of rows with the same bytes and label, those that are meant; the surest matches first."""
    ways: tuple[Callable[[Removal, CatalogRow, str], bool], ...] = (
        lambda removal, _, place: place == os.path.join(removal.source, removal.path),
        lambda removal, row, _: row.path == removal.path,
        lambda removal, _, place: place.endswith("/" + removal.path),
        lambda removal, row, _: os.path.basename(row.path) == os.path.basename(removal.path),
        lambda *_: True,
    )
    left, rows = list(meant), list(here)
    for number, is_meant in enumerate(ways):
        for removal in tuple(left):
            if number > 0 and len(rows) <= removal.kept:  # the very same file needs no other to stay
                return
            match = next((pair for pair in rows if is_meant(removal, *pair)), None)
            if match is not None:
                left.remove(removal)
                rows.remove(match)
                yield match[0]
