"""A folder as a source: every file below it, archives entered as folders would be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from index.sources.folder_walk import check_folder
from index.sources.items import FoundItem
from index.sources.known import NOTHING_KNOWN, Known
from index.sources.local_files import scan_path, scan_tree
from index.sources.local_source import LocalSource


class FolderSource(LocalSource):
    """All that lies below a folder."""

    kind: ClassVar[str] = "folder"

    @property
    def root(self) -> str:
        """The folder itself."""
        return self.location

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Whatever is a folder, also one with * ? [ in its name."""
        return cls(str(check_folder(Path(text)))) if os.path.isdir(text) else None

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """A link to a folder is that folder."""
        return replace(self, location=resolve(location))

    def is_there(self) -> bool:
        """Whether there is a folder."""
        return os.path.isdir(self.location)

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """Depth first in sorted order."""
        return scan_tree(self.location, root=self.location, known=known)

    def scan_below(self, location: str) -> Iterator[FoundItem]:
        """The items that lie at, or below, an absolute normal path in the folder."""
        return scan_path(location, root=self.location, known=NOTHING_KNOWN)
