"""A made-up collection of images, as a scan of folders finds it and as embedding settles it; no file is made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from index.catalog.rows import CatalogRow
from index.catalog.writer import Outcome
from index.sources.items import FoundItem

CLASSES = 1000
_REASONS = ("corrupt", "not-an-image", "too-many-pixels")
MOST_CHANGED_EACH = 100
_SKIPPED_EACH = MOST_CHANGED_EACH  # one of so many items is skipped
_DESCRIBED_EACH = 4  # one of so many has metadata
_FIRST_MTIME_NS = 1_500_000_000_000_000_000
_NAME_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Collection:
    """`rows` items in 1,000 label folders, in the order of a walk.

    Attributes:
        rows: items before anything is changed.
        new, changed, moved, vanished: items, spread over the collection, that a later scan finds so; at most one of
            `MOST_CHANGED_EACH` rows, none of them skipped.
    """

    rows: int
    new: int = 0
    changed: int = 0
    moved: int = 0
    vanished: int = 0

    def items(self) -> Iterator[FoundItem]:
        """What a scan finds."""
        ends = (self.changed, self.changed + self.moved, self.changed + self.moved + self.vanished)
        step = self.rows // max(1, ends[-1]) // _SKIPPED_EACH * _SKIPPED_EACH or self.rows
        for number in range(self.rows + self.new):
            turn, rest = divmod(number, step)
            if rest or number >= self.rows or turn >= ends[2]:
                yield self._item(number)
            elif turn < ends[0]:
                yield self._item(number, later_ns=1)
            elif turn < ends[1]:
                yield self._item(number, folder="moved")

    def label(self, number: int) -> str:
        """The label of an item, which is its first folder."""
        return f"category-{number * CLASSES // self.rows:04d}"

    def _item(self, number: int, *, folder: str = "", later_ns: int = 0) -> FoundItem:
        scattered = number * 2_654_435_761 % 2**32
        label = self.label(number)
        month = f"{2015 + scattered % 10}-{1 + scattered % 12:02d}"
        size = 20_000 + scattered % 400_000
        mtime = _FIRST_MTIME_NS + number * 1_000_000_007 + later_ns
        path = f"{label}/{folder or month}/IMG_{number:0{_NAME_DIGITS}d}.jpg"
        if number % _DESCRIBED_EACH:
            return FoundItem(path, size, mtime, label=label)
        url = f"https://images.example.com/{label}/{scattered:08x}.jpg"
        metadata = {"url": url, "width": 400 + scattered % 3000, "shop": f"shop-{scattered % 50}"}
        return FoundItem(path, size, mtime, label=label, metadata=metadata)


def settle_row(row: CatalogRow) -> Outcome:
    """What embedding a pending item comes to; the same for the same file name."""
    number = int(row.path[-4 - _NAME_DIGITS : -4])
    digest = hashlib.sha256(row.path[-4 - _NAME_DIGITS :].encode())
    if number % _SKIPPED_EACH == _SKIPPED_EACH - 1:  # none of those that a later scan changes
        reason = _REASONS[number // _SKIPPED_EACH % len(_REASONS)]
        return Outcome(row.id, sha256=digest.hexdigest(), reason=reason, detail="image file is truncated")
    return Outcome(row.id, digest.hexdigest(), int.from_bytes(digest.digest()[:8], "big", signed=True))
