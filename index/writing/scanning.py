"""Scanning a gallery's sources: every item once, also where sources overlap."""

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from index.catalog.reader import Catalog
from index.catalog.writer import CatalogWriter
from index.errors import InputError
from index.items import FoundItem
from index.labels.decisions import GIVEN, P_RIGHT, parse_p_right
from index.network.remote_store import is_address
from index.paths import below, folders_above
from index.progress import Progress, no_progress
from index.sources.archive_scan import is_compressed
from index.sources.local_source import FolderSource
from index.sources.source import ImageSource, Reach
from index.sources.table_rows import find_table, read_column, read_column_names, read_labels
from index.sources.url_list import UrlListSource
from index.text import printable_path

_REPORTED_ITEMS = 1000


class AssignedLabels:
    """The labels of a CSV or Parquet file, by real path; an item without a row is unlabelled."""

    def __init__(self, labels_file: Path) -> None:
        self._file = labels_file
        self._labels = {_real(path): label for path, label in read_labels(labels_file).items()}
        self._trust = _read_trust(labels_file)
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
                f"{printable_path(str(self._file))}: none of its {len(self._labels)} labelled paths is an image of "
                "the gallery's sources; paths are relative to the label file's own folder, or absolute"
            )


def _read_trust(labels_file: Path) -> dict[str, dict[str, str | float]]:
    """The columns `p_right` and `given` of a label file by real path, as metadata; empty without the first."""
    table, columns = find_table(labels_file)
    if P_RIGHT not in read_column_names(table):
        return {}
    given, found = read_column(table, GIVEN, columns=columns), dict[str, dict[str, str | float]]()
    for path, text in read_column(table, P_RIGHT, columns=columns).items():
        p_right = parse_p_right(text, where=f"{printable_path(str(table))}: {printable_path(path)}")
        if p_right is not None:
            found[_real(path)] = {P_RIGHT: p_right} | ({GIVEN: given[path]} if path in given else {})
    return found


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
            f"{printable_path(str(labels_file))}: the label file that the gallery was built with is gone; put it "
            "back, or run `retrieval index build` with another one, or without --labels"
        )
    return AssignedLabels(labels_file)


def _scan_source(catalog: CatalogWriter, number: int, *, trust: bool, ask: bool) -> Iterator[FoundItem]:
    """The items of one source; of an archive that needs no reading those of its rows.

    `ask` looks up known addresses of lists for changes; a stopped command's look-ups are not repeated.
    """
    source = catalog.sources()[number]
    if isinstance(source, UrlListSource):
        asks = ask and not catalog.was_scanned(number)
        yield from source.check_changes(_recall(catalog, number, item, asks=asks) for item in source.find_files())
        return
    for found in source.find_files():
        if not found.is_archive:
            yield found
            continue
        known = None
        if trust:
            is_costly = is_address(source.location) or is_compressed(found.path)
            known = catalog.archive_items(number, found.path, mtime_ns=found.mtime_ns, with_skipped=is_costly)
        yield from source.members(found) if known is None else known


def _recall(catalog: CatalogWriter, number: int, item: FoundItem, *, asks: bool) -> tuple[FoundItem, bool]:
    """An item with its known size and time, and whether to check it for a change; a new item stays as it is."""
    if item.problem is not None or (known := catalog.known_state(number, item.path)) is None:
        return item, False
    size_bytes, mtime_ns, status = known
    return replace(item, size_bytes=size_bytes, mtime_ns=mtime_ns), asks and status in ("indexed", "duplicate")


def scan_sources(
    catalog: CatalogWriter,
    numbers: Sequence[int],
    *,
    labels: AssignedLabels | None,
    parts: Mapping[str, int] | None = None,
    restore: bool = False,
    trust: bool = False,
    ask: bool = True,
    progress: Progress = no_progress,
) -> Iterator[tuple[int, FoundItem]]:
    """(source, item) of some sources, in order; an item of several sources belongs to the first.

    Sources that are not scanned have the items of their rows.

    Args:
        catalog: records the items while they are found.
        numbers: of the sources to scan.
        labels: replace those of the sources.
        parts: of `find_parts`, scanned first.
        restore: let removed items of other sources, met here, come back.
        trust: take the items of an archive of unchanged time from its rows, labels included.
        ask: check the addresses of lists for changes.
        progress: called with (items met, 0).
    """
    sources = catalog.sources()
    owners = _Owners(catalog, sources, progress)
    for location, number in (parts or {}).items():
        found = FolderSource(sources[number].location).scan_below(location)
        yield from owners.sort_out(found, number, labels=labels, restore=restore)
    for number in numbers:
        found = _scan_source(catalog, number, trust=trust, ask=ask)
        yield from owners.sort_out(found, number, labels=labels, restore=restore)


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


class _Owners:
    """Decides which source an item belongs to where sources overlap."""

    def __init__(self, catalog: CatalogWriter, sources: Mapping[int, ImageSource], progress: Progress) -> None:
        self._catalog, self._sources, self._progress, self._met = catalog, sources, progress, 0
        self._anywhere = [n for n, source in sources.items() if source.reach is not Reach.WHOLE]
        self._at: dict[str, list[int]] = defaultdict(list)
        for number, source in sources.items():
            if source.reach is Reach.WHOLE:
                self._at[source.location].append(number)
        self._locations = sorted(self._at)

    def sort_out(
        self, found: Iterable[FoundItem], number: int, *, labels: AssignedLabels | None, restore: bool
    ) -> Iterator[tuple[int, FoundItem]]:
        """The items of a source that belong to no earlier source."""
        root, has_rivals = self._sources[number].root, self._has_rivals(number)
        for item in found:
            self._met += 1
            if self._met % _REPORTED_ITEMS == 0:
                self._progress(self._met, 0)
            location = os.path.join(root, item.path)
            if has_rivals:
                names = self._names(location, other_than=number)
                owner = next((name for name in names if self._catalog.has_item(*name)), None)
                if owner is not None:
                    if restore:
                        self._catalog.restore(*owner, item)
                    continue
            yield number, item if labels is None else labels.label(item, location)

    def _has_rivals(self, number: int) -> bool:
        """Whether another source may have an item of this one."""
        source = self._sources[number]
        if source.reach is Reach.ANYWHERE or any(other != number for other in self._anywhere):
            return len(self._sources) > 1
        start = source.root if source.reach is Reach.PART else source.location
        if any(other != number for location in folders_above(start) for other in self._at.get(location, ())):
            return True
        after = bisect_left(self._locations, start + "/")
        return after < len(self._locations) and self._locations[after].startswith(start + "/")

    def _names(self, location: str, *, other_than: int) -> Iterator[tuple[int, str]]:
        """The possible (source, path) of an absolute location in the other sources."""
        for number in self._anywhere:
            if number != other_than:
                yield from ((number, path) for path in {location, below(self._sources[number].root, location)})
        for above in folders_above(location):
            for number in self._at.get(above, ()):
                if number != other_than:
                    yield number, below(self._sources[number].root, location)
