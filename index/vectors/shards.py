"""Vectors on disk: the `.npy` shards of a version, in id order, and the checkpoints of a build."""

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

SHARD_ROWS = 1 << 22  # few files, because a search reads rows of all
_ROWS_AT_ONCE = 65_536
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class VectorSource(Protocol):
    """Vectors by id, read on demand."""

    @property
    def ids(self) -> Ids:
        """(n,) int64 in ascending order."""

    def read(self) -> Any:
        """An object that gives (m, D) float32 vectors for (m,) int64 positions."""


@dataclass(frozen=True, slots=True)
class VectorRows:
    """(n,) int64 ascending `ids` and their (n, D) float32 `vectors`, mapped from a file."""

    ids: Ids
    vectors: Vectors

    def read(self) -> Vectors:
        return self.vectors


def write_checkpoint(path: Path, rows: VectorRows) -> str:
    """Write vectors with their ids as one file, durably and atomically; its SHA-256."""
    table = np.empty(len(rows.ids), dtype=[("id", "<i8"), ("vector", "<f4", (rows.vectors.shape[1],))])
    table["id"], table["vector"] = rows.ids, rows.vectors
    with replacing(path) as temporary:
        write_array(temporary, table)
    return hash_file(path)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an `.npy` file; unlike `numpy.save`, a full disk always raises."""
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
    """File of vectors with (n,) sorted `ids`, open only while it is read; `columns` of wider rows are the vectors."""

    ids: Ids
    path: Path
    columns: slice | None = None

    def read(self) -> Vectors:
        array = _map_array(self.path)
        vectors: Vectors = array["vector"] if array.dtype.names else array
        return vectors if self.columns is None else vectors[:, self.columns]


def find_checkpoint(path: Path, *, sha256: str) -> VectorFile:
    """A checkpoint, checked against its SHA-256."""
    table = _map_array(path)
    if hash_file(path) != sha256:
        raise GalleryDamagedError(path, "damaged: its SHA-256 is not the one recorded")
    return VectorFile(np.array(table["id"]), path)


def find_shards(version: Path) -> Iterator[VectorFile]:
    """The shards of a version, in the order of their names."""
    for path in sorted((version / "vectors").glob("*.npy")):
        shard = VectorFile(np.array(_map_array(version / "ids" / path.name)), path)
        count = len(shard.read())
        if len(shard.ids) != count:
            detail = f"{count} vectors for {len(shard.ids)} ids"
            raise GalleryDamagedError(path, f"damaged: {detail}")
        yield shard


def read_shards(version: Path) -> list[VectorRows]:
    """Map all shards of a version, in the order of their names."""
    return [VectorRows(shard.ids, shard.read()) for shard in find_shards(version)]


def read_ids(path: Path) -> Ids:
    return np.array(_map_array(path))


def write_shards(version: Path, ids: Ids, files: Sequence[VectorSource], *, embedding_dim: int, first: int = 0) -> None:
    """Write the vectors of (n,) ascending ids as `vectors/*.npy` and `ids/*.npy`, numbered from `first`."""
    for number, start in enumerate(range(0, len(ids), SHARD_ROWS), start=first):
        part = ids[start : start + SHARD_ROWS]
        write_array(version / "ids" / f"{number:05d}.npy", part)
        blocks = (
            gather_rows(part[at : at + _ROWS_AT_ONCE], files, embedding_dim=embedding_dim)
            for at in range(0, len(part), _ROWS_AT_ONCE)
        )
        _write_blocks(version / "vectors" / f"{number:05d}.npy", blocks, shape=(len(part), embedding_dim))


def gather_rows(ids: Ids, files: Sequence[VectorSource], *, embedding_dim: int) -> Vectors:
    """The (n, D) float32 vectors of (n,) int64 ids, in their order; of an id in several files the last one's."""
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
        raise GalleryDamagedError(path, f"damaged or missing: {error}") from error
    except OSError as error:  # may be a limit of the process, and no damage
        advice = "; raise the limit (ulimit -n) and run it again" if error.errno in _NO_DESCRIPTORS else ""
        raise GalleryError(path, f"cannot be read: {error.strerror}{advice}") from error
    return array
