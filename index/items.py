"""Items of sources: found items, the places of their bytes, and embedded items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from index.errors import ImageError

if TYPE_CHECKING:  # the commands' help loads no numpy
    from index.arrays import Vectors
    from index.measures import Measures


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an item's bytes."""

    file: Path  # the file, or the archive
    name: str  # the item's name in messages, printable
    offset: int | None = None  # of an archive member, as `FoundItem.starts_at`; None for a file
    size_bytes: int | None = None  # of a member, or of a remote item where it is known; None for a file
    mtime_ns: int | None = None  # of the archive when it was scanned; a newer one may have other offsets
    sha256: str | None = None  # of the expected bytes; None for any
    store: str | None = None  # address of the remote store, "" where `key` is a whole address; None: local
    key: str = ""  # the item's name in the store
    data: bytes | None = None  # bytes that were fetched already
    problem: Any = None  # `ImageError` of a failed fetch; pydantic, which sees places in kept duplicates, has no schema
    fetched: tuple[int, int] | None = None  # size and time of a remote file, as its store said with the bytes

    def is_there(self) -> bool:
        """Whether the file exists; a remote item counts as there until it is read."""
        return self.store is not None or self.file.is_file()


class ItemFields(Protocol):
    """The fields that locate an item, of a `FoundItem` or a catalogue row."""

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
    """One item of a scanned source, one member of an archive, or one file of a remote store."""

    # '/'-separated, below the source's root, undecodable bytes as surrogates; absolute where a list names a file
    # outside the root. A member's path is the archive's path, '/', and the member's name.
    path: str
    size_bytes: int  # 0 where a store does not say it
    mtime_ns: int  # of the file or archive; for a remote one see `index.network.remote_store.make_stamp`
    archive: str | None = None  # path of the archive below the root; None for a file
    starts_at: int | None = None  # offset in the archive: of the content in a tar, of the local header in a zip
    label: str | None = None  # from a table or sidecar, else the first folder
    metadata: Mapping[str, Any] | None = None  # JSON values, from a table's other columns or a sidecar
    problem: ImageError | None = None  # why the item cannot be used, where that is known without reading it
    is_archive: bool = False  # of items, see `ImageSource.members`

    def with_problem(self, reason: str, detail: str) -> FoundItem:
        """The item, which cannot be used for a reason."""
        return replace(self, problem=ImageError(path=self.path, reason=reason, detail=detail))

    def at(self, path: str) -> FoundItem:
        """The item under another path."""
        found = replace(self, path=path)
        return found if self.problem is None else found.with_problem(self.problem.reason, self.problem.detail)


@dataclass(frozen=True, slots=True)
class EmbeddedItem:
    """One item's outcome: a (D,) float32 unit `vector` or its `problem`; `fetched` as of a `Place`.

    `facts` is what the file says of itself (`index.images.file_facts`).
    """

    id: int
    vector: Vectors | None = None
    sha256: str | None = None
    phash: int | None = None
    measures: Measures | None = None
    facts: Mapping[str, Any] | None = None
    problem: ImageError | None = None
    fetched: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ImageText:
    """The text in an image file of this SHA-256: "" where there is none, None where the file could not be read now."""

    sha256: str
    text: str | None
    confidence: float = 0.0  # 0..1
