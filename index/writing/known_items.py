"""What the catalogue of a gallery knows of a source's items, so that a scan need not read or fetch them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from index.catalog.writer import CatalogWriter
from index.network.stores import is_address
from index.sources.archive_scan import is_compressed
from index.sources.items import FoundItem
from index.sources.known import KnownItem


class Trust(Enum):
    """Which archives of unchanged time are taken to hold what their rows say, labels included."""

    NONE = "none"
    SHARDS = "those that would have to be fetched or unpacked"
    ALL = "all"


class CatalogKnown:
    """The rows of one source; see `index.sources.known.Known`.

    Args:
        catalog: which records the items while they are found.
        number: of the source.
        trust: which archives are not read again.
        ask: whether items of lists of addresses are asked if they changed; not where a command that was stopped
            has asked them, or where all are fetched again anyway.
    """

    def __init__(self, catalog: CatalogWriter, number: int, *, trust: Trust, ask: bool) -> None:
        self._catalog, self._number, self._trust = catalog, number, trust
        self._asks = ask and not catalog.was_scanned(number)
        self._is_remote = is_address(catalog.sources()[number].location)

    def enter(self, archive: FoundItem, scan: Callable[[], Iterator[FoundItem]]) -> Iterator[FoundItem]:
        """The rows of an unchanged archive, or what scanning it gives."""
        is_shard = self._is_remote or is_compressed(archive.path)
        known = None
        if self._trust is Trust.ALL or (self._trust is Trust.SHARDS and is_shard):
            known = self._catalog.archive_items(
                self._number, archive.path, mtime_ns=archive.mtime_ns, with_skipped=is_shard
            )
        return scan() if known is None else known

    def find(self, path: str) -> KnownItem | None:
        """The row of an item."""
        return self._catalog.known_item(self._number, path, ask=self._asks)
