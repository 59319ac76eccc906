"""Image sources: what every kind can do. A new kind is one class in a file, and its line in the registry."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Self

from index.network.remote_store import is_address
from index.sources.items import FoundItem, ItemFields, Place


class Known:
    """What is known of the items of one source: here nothing."""

    def enter(self, archive: FoundItem, scan: Callable[[], Iterator[FoundItem]]) -> Iterator[FoundItem]:
        """The items of an archive that is met on the way: those known, or those that scanning it gives."""
        return scan()

    def recall(self, item: FoundItem) -> tuple[FoundItem, bool]:
        """An item with the size and time that it had, and whether to ask if that is so still; a new one as it is."""
        return item, False


NOTHING_KNOWN = Known()


class Reach(Enum):
    """Where the items of a source may lie."""

    WHOLE = "all that lies at or below its location"
    PART = "some of what lies below its root"
    ANYWHERE = "what it names one by one, wherever that lies"


@dataclass(frozen=True)
class ImageSource(ABC):
    """Where items come from; a small value that compares by its kind and location.

    Attributes:
        location: an absolute path or pattern without symbolic links in its folders, or an address as `scheme://place`.
        kind: its name in catalogues.
        reach: where its items may lie.
        is_one_item: whether it is an item itself, whose disappearance is no trouble with a disk.
    """

    location: str

    kind: ClassVar[str]
    reach: ClassVar[Reach] = Reach.WHOLE
    is_one_item: ClassVar[bool] = False

    @property
    @abstractmethod
    def root(self) -> str:
        """The folder, or address, that the items' paths are relative to."""

    @classmethod
    @abstractmethod
    def find(cls, text: str) -> Self | None:
        """The source that a text of a command line names; None where it names none of this kind."""

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """The same kind of source at another absolute location.

        Links in its folders are resolved, so that sources that are one have one location; where there are many, give
        one `functools.cache(os.path.realpath)` for all. A link to a file keeps its own name, which says what it is; an
        address has no links.
        """
        if is_address(location):
            return replace(self, location=location)
        folder, name = os.path.split(location)
        return replace(self, location=os.path.join(resolve(folder), name))

    @abstractmethod
    def is_there(self) -> bool:
        """Whether the source as a whole can be found now."""

    @abstractmethod
    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """Every item once, and in the same order every time; what cannot be used has a problem.

        Args:
            known: what was found before, so that it need not be looked at again.

        Raises:
            InputError: the source as a whole cannot be used.
            MissingDependencyError: a package is needed to read it.
        """

    @abstractmethod
    def locate(self, item: ItemFields) -> Place:
        """Where the bytes of one of its items are."""


def stays_inside(source: ImageSource, path: str) -> bool:
    """Whether the path of a file, as a catalogue has it, stays in its source as it is written.

    Lists and tables may name files anywhere. Links are followed, as the scan followed them.
    """
    if not path or "\0" in path or ".." in path.split("/"):
        return False
    return source.reach is Reach.ANYWHERE or not path.startswith("/")
