"""Items of sources: what a scan finds, the place its bytes are read from, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from index.arrays import Vectors
from index.errors import ImageError
from index.network.remote_store import RemoteFile


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes of a remote item, or why there are none, and what its store says of the whole file."""

    data: bytes = b""
    file: RemoteFile | None = None
    problem: Any = None  # an ImageError, for which pydantic has no schema: kept duplicates hold places


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of one item are.

    Attributes:
        file: the file, or the archive.
        name: what messages call the item, printable.
        offset: where a member starts, as `FoundItem.starts_at`; None for a file.
        size_bytes: of the member, or of what is no file of this machine where that is known; None for a file.
        mtime_ns: of the archive when it was scanned: its members may be elsewhere in a newer one.
        sha256: of the bytes that are expected; None for any.
        store: the address of the store that has it, "" where `key` is a whole address; None for files.
        key: what the store calls it.
        fetched: what was fetched of it already.
    """

    file: Path
    name: str
    offset: int | None = None
    size_bytes: int | None = None
    mtime_ns: int | None = None
    sha256: str | None = None
    store: str | None = None
    key: str = ""
    fetched: Fetched | None = None

    def is_there(self) -> bool:
        """Whether there is such a file; of what is no file of this machine only reading tells."""
        return self.store is not None or self.file.is_file()


class ItemFields(Protocol):
    """What says where an item of a source lies: a found item, or a row of a catalogue; see `FoundItem`."""

    @property
    def path(self) -> str: ...
    @property
    def archive(self) -> str | None: ...
    @property
    def starts_at(self) -> int | None: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FoundItem:
    """One item of a scanned source.

    Attributes:
        path: '/'-separated, below the source's root, undecodable bytes as surrogates; absolute where a list or table
            names a file outside the root. Of a member: the archive's path, '/', and the member's name.
        mtime_ns: of the file, or of the archive; of a remote one as `index.network.remote_store.make_stamp` has it.
        archive: path of the archive below the root; None for a file.
        starts_at: where the member starts in its archive: its content in a tar, its local header in a zip.
        label: from a table or sidecar, else the first folder; None where there is none.
        metadata: JSON values, from a table's other columns or a sidecar.
        problem: why it cannot be used, where that is known without reading it.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    archive: str | None = None
    starts_at: int | None = None
    label: str | None = None
    metadata: Mapping[str, Any] | None = None
    problem: ImageError | None = None


@dataclass(frozen=True, slots=True)
class EmbeddedItem:
    """One item's outcome: a (D,) float32 unit `vector` or the `problem` it has, and hashes as far as it was read.

    `fetched` is what the store of a remote file said of it when it was fetched.
    """

    id: int
    vector: Vectors | None = None
    sha256: str | None = None
    phash: int | None = None
    problem: ImageError | None = None
    fetched: RemoteFile | None = None
