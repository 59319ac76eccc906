"""What an earlier scan of a source found, for those scans that would have to read or fetch it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from index.sources.items import FoundItem


@dataclass(frozen=True, slots=True)
class KnownItem:
    """The size and time, or what stands for it, of an item as it was; and whether to ask if that is so still."""

    size_bytes: int
    mtime_ns: int
    is_doubted: bool


class Known(Protocol):
    """What is known of the items of one source."""

    def enter(self, archive: FoundItem, scan: Callable[[], Iterator[FoundItem]]) -> Iterator[FoundItem]:
        """The items of an archive that is met on the way: those known, or those that scanning it gives."""

    def find(self, path: str) -> KnownItem | None:
        """An item by its path; None for a new one."""


class _NothingKnown:
    def enter(self, archive: FoundItem, scan: Callable[[], Iterator[FoundItem]]) -> Iterator[FoundItem]:
        return scan()

    def find(self, path: str) -> None:
        return None


NOTHING_KNOWN: Known = _NothingKnown()
