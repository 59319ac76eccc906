"""What is the same in every kind of source whose items are files of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from index.images.image_files import CheckContent, check_content
from index.sources.items import ItemFields, Place
from index.sources.reading import read_local
from index.sources.source import Reach
from index.text import printable_path


@dataclass(frozen=True)
class LocalSource:
    """A source that is one file, unless a kind says otherwise; see `ImageSource`.

    `suffixes` are how the names of such files end.
    """

    location: str

    reach: ClassVar[Reach] = Reach.WHOLE
    is_one_item: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = ("",)

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A regular file of such a name."""
        is_meant = os.path.isfile(text) and text.lower().endswith(cls.suffixes)
        return cls(os.path.abspath(text)) if is_meant else None

    @property
    def root(self) -> str:
        """The folder that the items' paths are relative to."""
        return os.path.dirname(self.location)

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """A link to a file keeps its own name, which says what it is."""
        folder, name = os.path.split(location)
        return replace(self, location=os.path.join(resolve(folder), name))

    def is_there(self) -> bool:
        """Whether there is anything of this name."""
        return os.path.exists(self.location)

    def locate(self, item: ItemFields) -> Place:
        """The file, or the part of an archive."""
        name = printable_path(os.path.join(self.root, item.path))
        if item.archive is None:
            return Place(Path(self.root, item.path), name)
        return Place(
            Path(self.root, item.archive),
            name,
            offset=item.starts_at,
            size_bytes=item.size_bytes,
            mtime_ns=item.mtime_ns,
        )

    def read(self, place: Place, *, check: CheckContent = check_content) -> bytes:
        """The bytes of the file, or of the archive's member."""
        return read_local(place, check=check)
