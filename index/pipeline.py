"""Items to embeddings: in threads, in order, in bounded memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np

from index.ahead import map_ahead
from index.archive_members import read_place
from index.byte_budget import ByteBudget
from index.embedder import Embedder, Vectors, unit_rows
from index.errors import ImageError
from index.images import MAX_PIXELS
from index.items import Place
from index.perceptual_hash import perceptual_hash
from index.preprocess import Pixels

BATCHES_AHEAD = 3
ITEMS_AHEAD = 4  # of every worker
_SMALL_BYTES = 1 << 23  # of a file that is read without asking for room
_files_held = ByteBudget(1 << 30)


@dataclass(frozen=True, slots=True)
class EmbeddedItem:
    """One item's outcome: a (D,) float32 unit `vector` or the `problem` it has, and hashes as far as it was read."""

    id: int
    vector: Vectors | None = None
    sha256: str | None = None
    phash: int | None = None
    problem: ImageError | None = None


@dataclass(frozen=True, slots=True)
class _DecodedItem:
    id: int
    name: str
    pixels: Pixels | None = None
    sha256: str | None = None
    phash: int | None = None
    problem: ImageError | None = None


def embed_items(
    items: Iterable[tuple[int, Place]],
    embedder: Embedder,
    *,
    workers: int,
    batch_size: int = 0,
    max_pixels: int = MAX_PIXELS,
) -> Iterator[list[EmbeddedItem]]:
    """Embed items given as (id, place): their outcomes in the order given, `batch_size` items at a time.

    On a CPU each worker decodes a batch and runs the model on it, so no core waits for another: give an embedder of one
    thread. On a GPU the workers decode, and the model runs meanwhile. A `batch_size` of 0 is the embedder's usual one.
    No more than `BATCHES_AHEAD` batches, or two for each worker, are held. A batch holds the usable ones of
    `batch_size` consecutive items, filled up to one fixed shape, so that an item's vector does not depend on its
    neighbours.

    Raises:
        ModelFileError: the model fails on a batch.
    """
    size = batch_size or embedder.usual_batch
    source = iter(items)
    batches: Iterator[list[tuple[int, Place]]] = iter(lambda: list(islice(source, size)), [])

    def decode(batch: list[tuple[int, Place]]) -> list[_DecodedItem]:
        return [_decode(*item, embedder=embedder, max_pixels=max_pixels) for item in batch]

    def embed(batch: list[_DecodedItem]) -> list[EmbeddedItem]:
        return _embed(batch, embedder, batch_size=size)

    if not embedder.on_gpu:
        ahead = max(BATCHES_AHEAD, 2 * workers)
        done = map_ahead(lambda batch: embed(decode(batch)), batches, workers=workers, ahead=ahead)
        with closing(done):
            yield from done
        return
    ahead = max(BATCHES_AHEAD * size, ITEMS_AHEAD * workers)
    with closing(map_ahead(lambda item: decode([item]), source, workers=workers, ahead=ahead)) as decoded:
        while some := list(islice(decoded, size)):
            yield embed([item for items in some for item in items])


def _decode(key: int, place: Place, *, embedder: Embedder, max_pixels: int) -> _DecodedItem:
    sha256 = None
    size_bytes = _announced_bytes(place)
    try:
        with nullcontext() if size_bytes < _SMALL_BYTES else _files_held.hold(size_bytes):
            data = read_place(place)
            sha256 = hashlib.sha256(data).hexdigest()
            pixels = embedder.preprocess(data, name=place.name, max_pixels=max_pixels)
            del data
    except ImageError as error:
        return _DecodedItem(key, place.name, sha256=sha256, problem=error.apart())
    return _DecodedItem(key, place.name, pixels, sha256, perceptual_hash(pixels))


def _announced_bytes(place: Place) -> int:
    """How large the item is said to be; 0 for a file that is not there, which reading will tell of."""
    try:
        return os.stat(place.file).st_size if place.size_bytes is None else place.size_bytes
    except OSError:
        return 0


def _embed(batch: list[_DecodedItem], embedder: Embedder, *, batch_size: int) -> list[EmbeddedItem]:
    pixels = [item.pixels for item in batch if item.pixels is not None]
    if not pixels:
        return [EmbeddedItem(item.id, sha256=item.sha256, problem=item.problem) for item in batch]
    vectors = embedder.embed_padded(np.stack(pixels), batch_size=batch_size)
    rows = iter(zip(vectors, unit_rows(vectors), strict=True))
    return [_outcome(item, rows) for item in batch]


def _outcome(item: _DecodedItem, rows: Iterator[tuple[Vectors, np.bool_]]) -> EmbeddedItem:
    if item.pixels is None:
        return EmbeddedItem(item.id, sha256=item.sha256, problem=item.problem)
    vector, usable = next(rows)
    if usable:
        return EmbeddedItem(item.id, vector, item.sha256, item.phash)
    problem = ImageError(path=item.name, reason="bad-embedding", detail="the model gave no finite unit vector")
    return EmbeddedItem(item.id, sha256=item.sha256, problem=problem)
