"""Vectors on disk: `.npy` shards in id order (the source of truth of a version) and checkpoints of a build."""

from __future__ import annotations

import errno
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Vectors
from index.durable import hash_file, replacing
from index.errors import GalleryDamagedError, GalleryError
from index.text import printable_path

SHARD_ROWS = 1 << 22  # few files: a search reads rows of all of them
_ROWS_AT_ONCE = 65_536
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class HeldVectors(Protocol):
    """Vectors by id, wherever they are, of which only those are read that are asked for."""

    @property
    def ids(self) -> Ids:
        """(n,) int64 in rising order."""

    def read(self) -> Any:
        """What gives (m, D) float32 vectors by (m,) int64 positions."""


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Some vectors: (n,) int64 `ids` in rising order and their (n, D) float32 `vectors`, mapped from a file."""

    ids: Ids
    vectors: Vectors

    def read(self) -> Vectors:
        """The vectors."""
        return self.vectors


def write_checkpoint(path: Path, rows: VectorRows) -> str:
    """Write vectors with their ids as one file, durably and in one step; its SHA-256."""
    table = np.empty(len(rows.ids), dtype=[("id", "<i8"), ("vector", "<f4", (rows.vectors.shape[1],))])
    table["id"], table["vector"] = rows.ids, rows.vectors
    with replacing(path) as temporary:
        write_array(temporary, table)
    return hash_file(path)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as an `.npy` file; unlike by `numpy.save`, a full disk never goes unnoticed."""
    _write_blocks(path, [array], shape=array.shape)


def _write_blocks(path: Path, blocks: Iterable[npt.NDArray[Any]], *, shape: tuple[int, ...]) -> None:
    left = iter(blocks)
    first = np.ascontiguousarray(next(left))
    with path.open("wb") as file:
        header = {**np.lib.format.header_data_from_array_1_0(first), "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in chain([first], left):
            file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A file of vectors that is open only while it is read, for there are many; (n,) `ids` are in rising order.

    Of wider rows `columns` are the vectors.
    """

    ids: Ids
    path: Path
    columns: slice | None = None

    def read(self) -> Vectors:
        """Map the (n, D) float32 vectors; the file is closed when they are let go."""
        array = _map_array(self.path)
        vectors: Vectors = array["vector"] if array.dtype.names else array
        return vectors if self.columns is None else vectors[:, self.columns]


def find_checkpoint(path: Path, *, sha256: str) -> VectorFile:
    """A checkpoint, with its ids read."""
    table = _map_array(path)
    if hash_file(path) != sha256:
        raise GalleryDamagedError(printable_path(str(path)), "damaged: its SHA-256 is not the one recorded")
    return VectorFile(np.array(table["id"]), path)


def find_shards(version: Path) -> Iterator[VectorFile]:
    """The shards of a version in the order of their names, with their ids read."""
    for path in sorted((version / "vectors").glob("*.npy")):
        shard = VectorFile(np.array(_map_array(version / "ids" / path.name)), path)
        count = len(shard.read())
        if len(shard.ids) != count:
            detail = f"{count} vectors for {len(shard.ids)} ids"
            raise GalleryDamagedError(printable_path(str(path)), f"damaged: {detail}")
        yield shard


def read_shards(version: Path) -> list[VectorRows]:
    """Map the shards of a version, in the order of their names, all at once."""
    return [VectorRows(shard.ids, shard.read()) for shard in find_shards(version)]


def read_ids(path: Path) -> Ids:
    """The (n,) int64 ids of a file."""
    return np.array(_map_array(path))


def write_shards(
    version: Path, ids: Ids, files: Sequence[HeldVectors], *, embedding_dim: int, first: int = 0
) -> None:
    """Write the vectors of (n,) rising ids, gathered from the files, as `vectors/*.npy` and `ids/*.npy`.

    Where several files have an id, the last one's vector is taken. `first` is the number of the first shard.
    """
    for number, start in enumerate(range(0, len(ids), SHARD_ROWS), start=first):
        part = ids[start : start + SHARD_ROWS]
        write_array(version / "ids" / f"{number:05d}.npy", part)
        blocks = (
            gather_rows(part[at : at + _ROWS_AT_ONCE], files, embedding_dim=embedding_dim)
            for at in range(0, len(part), _ROWS_AT_ONCE)
        )
        _write_blocks(version / "vectors" / f"{number:05d}.npy", blocks, shape=(len(part), embedding_dim))


def gather_rows(ids: Ids, files: Sequence[HeldVectors], *, embedding_dim: int) -> Vectors:
    """The (n, D) float32 vectors of (n,) int64 ids, in their order; of each file only the rows wanted are read.

    Where several files have an id, the last one's vector is taken.
    """
    vectors = np.empty((len(ids), embedding_dim), dtype=np.float32)
    missing = np.ones(len(ids), dtype=bool)
    first, last = (ids.min(), ids.max()) if len(ids) else (0, -1)
    for file in files:
        if not len(file.ids) or file.ids[-1] < first or file.ids[0] > last:
            continue
        position = np.searchsorted(file.ids, ids).clip(max=len(file.ids) - 1)
        here = np.flatnonzero(file.ids[position] == ids)
        if len(here):
            vectors[here] = file.read()[position[here]]
            missing[here] = False
    if missing.any():
        raise GalleryDamagedError("vectors", f"damaged: image {int(ids[missing][0])} has no vector")
    return vectors


def _map_array(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise GalleryDamagedError(printable_path(str(path)), f"damaged or missing: {error}") from error
    except OSError as error:  # says nothing of the file where the process has used up a limit
        advice = "; raise the limit (ulimit -n) and run it again" if error.errno in _NO_DESCRIPTORS else ""
        raise GalleryError(printable_path(str(path)), f"cannot be read: {error.strerror}{advice}") from error
    return array
