"""A text file as a source: it names files, folders and archives, one a line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar

from index.errors import InputError
from index.sources.items import FoundItem
from index.sources.known import NOTHING_KNOWN, Known
from index.sources.local_files import absolute_below, scan_path
from index.sources.local_source import LocalSource
from index.sources.source import Reach
from index.text import printable_path

_MAX_LINE_CHARACTERS = 1 << 16  # far more than a path may have


class ListSource(LocalSource):
    """What the lines of a text name, relative to the text's own folder or absolute; empty lines and # say nothing."""

    kind: ClassVar[str] = "list"
    reach: ClassVar[Reach] = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".lst")

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In the list's order; what is named twice is met once."""
        root = self.root
        named: set[str] = set()
        walked: set[str] = set()
        for name in read_lines(self.location):
            path = absolute_below(root, name)
            if path in named or _lies_in(path, walked):
                continue
            for item in scan_path(path, root=root, known=known):
                file = os.path.join(root, item.archive or item.path)
                if file == path or not (file in named or _lies_in(file, walked)):
                    yield item
            (walked if os.path.isdir(path) else named).add(path)


def _lies_in(path: str, folders: set[str]) -> bool:
    ends = (end for end, character in enumerate(path + "/") if character == "/")
    return bool(folders) and any((path[:end] or "/") in folders for end in ends)


def read_lines(location: str) -> Iterator[str]:
    """The paths that a text names, one a line."""
    shown = printable_path(location)
    try:
        with open(location, encoding="utf-8-sig", errors="surrogateescape") as file:
            number = 0
            while line := file.readline(_MAX_LINE_CHARACTERS):
                number += 1
                path = line.rstrip("\n")
                if "\0" in path or len(line) == _MAX_LINE_CHARACTERS:
                    raise InputError(f"{shown}, line {number}: no path; a list has one path a line")
                if path.strip() and not path.startswith("#"):
                    yield path
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error
