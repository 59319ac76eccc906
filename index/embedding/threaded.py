"""The engine that embeds items in threads of this process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np

from index.arrays import Vectors, unit_rows
from index.byte_budget import ByteBudget
from index.embedding.engine import EmbeddedItem
from index.errors import ImageError
from index.images.perceptual_hash import perceptual_hash
from index.images.preprocess import Pixels
from index.model.embedder import Embedder
from index.sources.items import Place
from index.sources.reading import read_place
from index.threads import map_ahead

BATCHES_AHEAD = 3
ITEMS_AHEAD = 4  # of every worker
_SMALL_BYTES = 1 << 23  # of a file that is read without asking for room
_files_held = ByteBudget(1 << 30)


@dataclass(frozen=True, slots=True)
class _DecodedItem:
    id: int
    name: str
    pixels: Pixels | None = None
    sha256: str | None = None
    phash: int | None = None
    problem: ImageError | None = None


class ThreadedEngine:
    """Threads of this process; see `EmbeddingEngine`. Outcomes come in the order given, `batch_size` items at a time.

    On a CPU each worker decodes a batch and runs the model on it, so no core waits for another. On a GPU the workers
    decode, and the model runs meanwhile. No more than `BATCHES_AHEAD` batches, or two for each worker, are held. A
    batch holds the usable ones of `batch_size` consecutive items, filled up to one fixed shape.
    """

    def __init__(self, embedder: Embedder, *, workers: int, batch_size: int, max_pixels: int) -> None:
        self._embedder, self._workers, self._size = embedder, workers, batch_size
        self._max_pixels = max_pixels

    def embed(self, items: Iterable[tuple[int, Place]]) -> Generator[list[EmbeddedItem], None, None]:
        """Batches in the items' order."""
        source, size = iter(items), self._size
        if self._embedder.on_gpu:
            ahead = max(BATCHES_AHEAD * size, ITEMS_AHEAD * self._workers)
            with closing(map_ahead(self._decode, source, workers=self._workers, ahead=ahead)) as decoded:
                while some := list(islice(decoded, size)):
                    yield self._run(some)
            return

        def embed(batch: list[tuple[int, Place]]) -> list[EmbeddedItem]:
            return self._run([self._decode(item) for item in batch])

        batches: Iterator[list[tuple[int, Place]]] = iter(lambda: list(islice(source, size)), [])
        ahead = max(BATCHES_AHEAD, 2 * self._workers)
        with closing(map_ahead(embed, batches, workers=self._workers, ahead=ahead)) as done:
            yield from done

    def _decode(self, item: tuple[int, Place]) -> _DecodedItem:
        key, place = item
        sha256 = None
        size_bytes = _announced_bytes(place)
        try:
            with nullcontext() if size_bytes < _SMALL_BYTES else _files_held.hold(size_bytes):
                data = read_place(place)
                sha256 = hashlib.sha256(data).hexdigest()
                pixels = self._embedder.preprocess(data, name=place.name, max_pixels=self._max_pixels)
                del data
        except ImageError as error:
            return _DecodedItem(key, place.name, sha256=sha256, problem=error.apart())
        return _DecodedItem(key, place.name, pixels, sha256, perceptual_hash(pixels))

    def _run(self, batch: list[_DecodedItem]) -> list[EmbeddedItem]:
        pixels = [item.pixels for item in batch if item.pixels is not None]
        if not pixels:
            return [EmbeddedItem(item.id, sha256=item.sha256, problem=item.problem) for item in batch]
        vectors = self._embedder.embed_padded(np.stack(pixels), batch_size=self._size)
        rows = iter(zip(vectors, unit_rows(vectors), strict=True))
        return [_outcome(item, rows) for item in batch]


def _announced_bytes(place: Place) -> int:
    """How large the item is said to be; 0 for a file that is not there, which reading will tell of."""
    try:
        return os.stat(place.file).st_size if place.size_bytes is None else place.size_bytes
    except OSError:
        return 0


def _outcome(item: _DecodedItem, rows: Iterator[tuple[Vectors, np.bool_]]) -> EmbeddedItem:
    if item.pixels is None:
        return EmbeddedItem(item.id, sha256=item.sha256, problem=item.problem)
    vector, usable = next(rows)
    if usable:
        return EmbeddedItem(item.id, vector, item.sha256, item.phash)
    problem = ImageError(path=item.name, reason="bad-embedding", detail="the model gave no finite unit vector")
    return EmbeddedItem(item.id, sha256=item.sha256, problem=problem)
