"""Vectors on disk: `.npy` shards in id order (the source of truth of a version) and checkpoints of a build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.embedder import Vectors
from index.errors import GalleryError
from index.exact import Ids
from index.images import printable_path
from index.versions import replacing

SHARD_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Some vectors: (n,) int64 `ids` in rising order and their (n, D) float32 `vectors`, mapped from a file."""

    ids: Ids
    vectors: Vectors


def write_checkpoint(path: Path, rows: VectorRows) -> None:
    """Write vectors with their ids as one file, durably and in one step."""
    table = np.empty(len(rows.ids), dtype=[("id", "<i8"), ("vector", "<f4", (rows.vectors.shape[1],))])
    table["id"], table["vector"] = rows.ids, rows.vectors
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, table, allow_pickle=False)


def read_checkpoint(path: Path) -> VectorRows:
    """Map a checkpoint.

    Raises:
        GalleryError: it is missing or damaged.
    """
    table = _map_array(path)
    return VectorRows(np.array(table["id"]), table["vector"])


def write_shards(version: Path, ids: Ids, sources: Sequence[VectorRows], *, embedding_dim: int) -> None:
    """Write the vectors of (n,) rising ids, gathered from the sources, as `vectors/*.npy` and `ids/*.npy`."""
    for folder in ("vectors", "ids"):
        (version / folder).mkdir()
    for number, start in enumerate(range(0, len(ids), SHARD_ROWS)):
        part = ids[start : start + SHARD_ROWS]
        np.save(version / "ids" / f"{number:05d}.npy", part, allow_pickle=False)
        vectors = gather_rows(part, sources, embedding_dim=embedding_dim)
        np.save(version / "vectors" / f"{number:05d}.npy", vectors, allow_pickle=False)


def read_shards(version: Path) -> list[VectorRows]:
    """Map the shards of a version, in id order.

    Raises:
        GalleryError: one is missing or damaged.
    """
    return list(_shards(version))


def _shards(version: Path) -> Iterator[VectorRows]:
    for path in sorted((version / "vectors").glob("*.npy")):
        rows = VectorRows(np.array(_map_array(version / "ids" / path.name)), _map_array(path))
        if len(rows.ids) != len(rows.vectors):
            detail = f"{len(rows.vectors)} vectors for {len(rows.ids)} ids"
            raise GalleryError(printable_path(str(path)), f"damaged: {detail}")
        yield rows


def gather_rows(ids: Ids, sources: Sequence[VectorRows], *, embedding_dim: int) -> Vectors:
    """The (n, D) float32 vectors of (n,) int64 ids, in their order.

    Raises:
        GalleryError: no source has one of the ids.
    """
    vectors = np.empty((len(ids), embedding_dim), dtype=np.float32)
    missing = np.ones(len(ids), dtype=bool)
    for source in sources:
        position = np.searchsorted(source.ids, ids).clip(max=len(source.ids) - 1)
        here = source.ids[position] == ids
        vectors[here] = source.vectors[position[here]]
        missing &= ~here
    if missing.any():
        first = int(ids[missing][0])
        raise GalleryError("vectors", f"damaged: image {first} has no vector; build the gallery again")
    return vectors


def _map_array(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise GalleryError(printable_path(str(path)), f"damaged or missing: {error}") from error
    return array
