"""Image sources: the base class. A new kind is one class in a file, and its line in the registry."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Self

from index.items import FoundItem, ItemFields, Place
from index.network.remote_store import is_address
from index.paths import names_no_parent


class Reach(Enum):
    """Where the items of a source may lie."""

    WHOLE = "all at or below its location"
    PART = "some below its root"
    ANYWHERE = "listed one by one, anywhere"


@dataclass(frozen=True)
class ImageSource(ABC):
    """A source of images; a small value that compares by kind and location.

    Attributes:
        location: an absolute path or pattern without symbolic links in its folders, or an address as `scheme://place`.
        kind: its name in catalogues.
    """

    location: str

    kind: ClassVar[str]

    @property
    def reach(self) -> Reach:
        return Reach.WHOLE

    @property
    def is_one_item(self) -> bool:
        """Whether the source is one image; if it is missing, the disk is not assumed to be unmounted."""
        return False

    @property
    @abstractmethod
    def root(self) -> str:
        """The folder, or address, that the items' paths are relative to."""

    @classmethod
    @abstractmethod
    def find(cls, text: str) -> Self | None:
        """The source of this kind that a command-line argument names, if any."""

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """Source of the same kind at another absolute location.

        Links in its folders are resolved, so that one source has one location. `resolve` may be a cached
        `os.path.realpath`. A link to a file keeps its own name, whose suffix says what it is.
        """
        if is_address(location):
            return replace(self, location=location)
        folder, name = os.path.split(location)
        return replace(self, location=os.path.join(resolve(folder), name))

    @abstractmethod
    def is_there(self) -> bool:
        """Whether the source as a whole can be found now."""

    @abstractmethod
    def find_files(self) -> Iterator[FoundItem]:
        """Every file once, in a fixed order; an archive is one item, and an unusable file has a problem."""

    def members(self, archive: FoundItem) -> Iterator[FoundItem]:
        """The items in an archive that `find_files` gave."""
        raise NotImplementedError

    def scan(self) -> Iterator[FoundItem]:
        """Items of `find_files`, with the members of archives in place of the archives."""
        for found in self.find_files():
            yield from self.members(found) if found.is_archive else (found,)

    @abstractmethod
    def locate(self, item: ItemFields) -> Place:
        """The place of the bytes of an item."""


def stays_inside(source: ImageSource, path: str) -> bool:
    """Whether a catalogue's path of a file stays in its source; lists and tables may name files anywhere."""
    if not path or "\0" in path or not names_no_parent(path):
        return False
    return source.reach is Reach.ANYWHERE or not path.startswith("/")
