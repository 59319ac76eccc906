"""A pattern with * ? [ as a source: what lies at or below any path that matches."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from index.errors import InputError
from index.sources.items import FoundItem
from index.sources.known import NOTHING_KNOWN, Known
from index.sources.local_files import scan_path
from index.sources.local_source import LocalSource
from index.sources.source import Reach
from index.text import printable_path

_WILDCARD = re.compile(r"[*?[]")


class GlobSource(LocalSource):
    """What a pattern matches; * stays within a folder, ** goes through any number of them."""

    kind: ClassVar[str] = "glob"
    reach: ClassVar[Reach] = Reach.PART

    @cached_property
    def root(self) -> str:
        """The leading folders in whose names nothing is a wildcard."""
        parts = Path(self.location).parts
        first = next((i for i, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
        return os.path.join(*parts[:first])

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A text with a wildcard; what exists is never read as a pattern."""
        is_meant = not os.path.lexists(text) and "\0" not in text and _WILDCARD.search(text)
        return cls(os.path.abspath(text)) if is_meant else None

    def at(self, location: str, resolve: Callable[[str], str] = os.path.realpath) -> Self:
        """Links before the first wildcard are resolved."""
        fixed = GlobSource(location).root
        tail = location.removeprefix(fixed).lstrip("/")
        return replace(self, location=f"{resolve(fixed).rstrip('/')}/{tail}")

    def is_there(self) -> bool:
        """Whether the folder is there that the pattern looks into."""
        return os.path.isdir(self.root)

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In sorted order; links are followed as `walk_folder` does, which never loops."""
        root, parts = self.root, Path(self.location).parts
        first = parts.index("**") if "**" in parts else len(parts)
        matches = sorted(glob.glob(os.path.join(*parts[:first])), key=lambda match: os.fsencode(match).split(b"/"))
        tail = Tail(parts[first:])
        empty = True
        for match in matches:
            if tail.parts and not os.path.isdir(match):
                continue
            wanted = tail.holds if tail.parts else None
            for item in scan_path(match, root=root, known=known, wanted=wanted):
                empty = False
                yield item
        if empty:
            raise InputError(
                f"{printable_path(self.location)}: the pattern matches no file; "
                f"* stays within a folder, ** goes through any number of them"
            )


def has_wildcard(text: str) -> bool:
    """Whether a text has one of * ? [ in it."""
    return _WILDCARD.search(text) is not None


@dataclass(frozen=True, slots=True)
class Tail:
    """The parts of a pattern from its first `**`, which stands for any number of folders."""

    parts: tuple[str, ...]

    def holds(self, path: str) -> bool:
        """Whether a path below, or a folder that it lies in, matches."""
        reached = self._with_no_folders({0})
        for name in path.split("/"):
            reached = self._with_no_folders({place for at in reached for place in self._step(at, name)})
            if len(self.parts) in reached:
                return True
        return False

    def _step(self, at: int, name: str) -> Iterator[int]:
        part = self.parts[at] if at < len(self.parts) else ""
        if name.startswith(".") and not part.startswith("."):  # as in a shell
            return
        if part == "**":
            yield at
        elif fnmatchcase(name, part):
            yield at + 1

    def _with_no_folders(self, reached: set[int]) -> set[int]:
        """The places reached, and those behind a `**` that stands for no folder."""
        for at, part in enumerate(self.parts):
            if at in reached and part == "**":
                reached.add(at + 1)
        return reached
