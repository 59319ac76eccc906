"""Scanning a gallery's sources: every item, with its label."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from index.catalog.reader import Catalog
from index.catalog.scans import archive_items, known_state, was_scanned
from index.catalog.writer import CatalogWriter
from index.errors import InputError
from index.items import FoundItem
from index.labels.decision_files import read_trust
from index.labels.decisions import GIVEN, P_RIGHT
from index.progress import Progress, no_progress
from index.sources.local_source import FolderSource
from index.sources.source import ImageSource, Reach
from index.sources.table_rows import find_table, read_labels
from index.sources.url_list import UrlListSource
from index.text import printable_path

_REPORTED_ITEMS = 1000


class AssignedLabels:
    """The labels of a CSV or Parquet file, by real path; an item without a row is unlabelled."""

    def __init__(self, labels_file: Path) -> None:
        self._file = labels_file
        self._labels = {_real(path): label for path, label in read_labels(labels_file).items()}
        self._trust = {
            _real(path): {P_RIGHT: p_right} | ({} if given is None else {GIVEN: given})
            for path, (p_right, given) in read_trust(*find_table(labels_file), labels={}).items()
            if p_right is not None
        }
        self._used = 0

    def label(self, item: FoundItem, location: str) -> FoundItem:
        path = _real(location)
        label, trust = self._labels.get(path), self._trust.get(path)
        self._used += label is not None
        return replace(item, label=label, metadata={**(item.metadata or {}), **trust} if trust else item.metadata)

    def check_used(self) -> None:
        """Raise InputError where no item had a label."""
        if not self._used:
            raise InputError(
                f"{printable_path(self._file)}: none of its {len(self._labels)} labelled paths is an image of "
                "the gallery's sources; paths are relative to the label file's own folder, or absolute"
            )


def _real(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder), name)


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def find_assigned(catalog: Catalog) -> AssignedLabels | None:
    """The current labels of the gallery's label file."""
    labels_file = catalog.labels_file()
    if labels_file is None:
        return None
    if not labels_file.is_file():
        raise InputError(
            f"{printable_path(labels_file)}: the label file that the gallery was built with is gone; put it "
            "back, or run `retrieval index build` with another one, or without --labels"
        )
    return AssignedLabels(labels_file)


def _scan_source(catalog: CatalogWriter, number: int, *, trust: bool, ask: bool) -> Iterator[FoundItem]:
    """The items of one source; a stopped command's look-ups of addresses are not repeated."""
    source = catalog.sources()[number]
    if isinstance(source, UrlListSource):
        asks = ask and not was_scanned(catalog, number)
        yield from source.check_changes(_recall(catalog, number, item, asks=asks) for item in source.find_files())
        return
    for found in source.find_files():
        if not found.is_archive:
            yield found
            continue
        known = archive_items(catalog, number, found.path, mtime_ns=found.mtime_ns) if trust else None
        yield from source.members(found) if known is None else known


def _recall(catalog: CatalogWriter, number: int, item: FoundItem, *, asks: bool) -> tuple[FoundItem, bool]:
    """An item with its known size and time, and whether to check it for a change; a new item stays as it is."""
    if item.problem is not None or (known := known_state(catalog, number, item.path)) is None:
        return item, False
    size_bytes, mtime_ns, status = known
    return replace(item, size_bytes=size_bytes, mtime_ns=mtime_ns), asks and status in ("indexed", "duplicate")


def scan_sources(
    catalog: CatalogWriter,
    numbers: Sequence[int],
    *,
    labels: AssignedLabels | None,
    parts: Mapping[str, int] | None = None,
    trust: bool = False,
    ask: bool = True,
    progress: Progress = no_progress,
) -> Iterator[tuple[int, FoundItem]]:
    """(source, item) of `parts` (of `find_parts`) and of some sources by number, in order.

    `trust` takes items of unchanged archives from their rows, `ask` checks addresses of lists for changes.
    """
    sources, met = catalog.sources(), 0
    scans = [
        (number, FolderSource(sources[number].location).scan_below(location))
        for location, number in (parts or {}).items()
    ]
    scans += [(number, _scan_source(catalog, number, trust=trust, ask=ask)) for number in numbers]
    for number, found in scans:
        root = sources[number].root
        for item in found:
            met += 1
            if met % _REPORTED_ITEMS == 0:
                progress(met, 0)
            yield number, item if labels is None else labels.label(item, os.path.join(root, item.path))


def find_parts(catalog: CatalogWriter, given: Iterable[ImageSource]) -> dict[str, int]:
    """Locations inside a folder that is a source already, and the number of that source."""
    sources = catalog.sources()
    known = {source.location for source in sources.values()}
    folders = {source.location: n for n, source in sources.items() if isinstance(source, FolderSource)}
    parts = {}
    for source in given:
        if source.reach is Reach.WHOLE and source.location not in known:
            holding = [folders[str(above)] for above in Path(source.location).parents if str(above) in folders]
            if holding:
                parts[source.location] = min(holding)
    return parts
