"""What a source holds: items, each a file or a member of an archive, and the place its bytes are read from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.errors import ImageError
from index.images import printable_path


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of one item are.

    Attributes:
        file: the file, or the archive.
        name: what messages call the item, printable.
        offset: as in `FoundItem`; None for a file.
        size_bytes: of the member; None for a file.
        mtime_ns: of the archive when it was scanned: its members may be elsewhere in a newer one.
        sha256: of the bytes that are expected; None for any.
    """

    file: Path
    name: str
    offset: int | None = None
    size_bytes: int | None = None
    mtime_ns: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class FoundItem:
    """One item of a scanned source.

    Attributes:
        path: '/'-separated, below the source's root, undecodable bytes as surrogates; absolute where a list or table
            names a file outside the root. Of a member: the archive's path, '/', and the member's name.
        size_bytes: of the file or member.
        mtime_ns: of the file, or of the archive.
        archive: path of the archive below the root; None for a file.
        offset: where the member starts in its archive: its content in a tar, its local header in a zip.
        label: from a table or sidecar, else the first folder; None where there is none.
        metadata: JSON values, from a table's other columns or a sidecar.
        problem: why it cannot be used, where that is known without reading it.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    archive: str | None = None
    offset: int | None = None
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    problem: ImageError | None = None

    def locate(self, root: Path) -> Place:
        """Where its bytes are, in a source of this root."""
        return locate(
            root, self.path, archive=self.archive, offset=self.offset, size_bytes=self.size_bytes,
            mtime_ns=self.mtime_ns,
        )  # fmt: skip


def is_below(path: str, *, kind: str) -> bool:
    """Whether the path of a file, as a row has it, stays in a source of this kind as it is written.

    Lists and tables may name files anywhere. Links are followed, as the scan followed them.
    """
    if not path or "\0" in path or ".." in path.split("/"):
        return False
    return kind in ("list", "table") or not path.startswith("/")


def locate(
    root: Path, path: str, *, archive: str | None, offset: int | None, size_bytes: int, mtime_ns: int
) -> Place:
    """Where the bytes of an item are; all as in `FoundItem`."""
    name = printable_path(os.path.join(root, path))
    if archive is None:
        return Place(root / path, name)
    return Place(root / archive, name, offset=offset, size_bytes=size_bytes, mtime_ns=mtime_ns)
