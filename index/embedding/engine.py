"""Embedding engine: decodes and embeds items in threads of this process."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import numpy as np

from index.errors import ImageError
from index.images.decode import find_facts, find_original
from index.images.preprocess import Pixels, perceptual_hash, preprocess_image
from index.items import EmbeddedItem, Place
from index.limits import MAX_PIXELS
from index.measures import measure_image
from index.model.embedder import Embedder
from index.sources.reading import fetch_ahead, read_place
from index.threads import map_ahead, usable_cores

Outcome = TypeVar("Outcome")

BATCHES_AHEAD = 3
ITEMS_AHEAD = 4  # of every worker
_SMALL_BYTES = 1 << 23  # of a file that is read outside the `ByteBudget`


class ByteBudget:
    """A limit on memory that threads share; one that needs more than the capacity holds it alone."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes, self._held_bytes = capacity_bytes, 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(
                lambda: not self._held_bytes or self._held_bytes + size_bytes <= self._capacity_bytes
            )
            self._held_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._held_bytes -= size_bytes
                self._changed.notify_all()


_files_held = ByteBudget(1 << 30)

_Decoded = tuple[EmbeddedItem, str, Pixels | None]
"""An outcome without vector, the item's name, and the pixels of a usable item."""


class ThreadedEngine:
    """Embeds any number of items in threads, in bounded memory.

    An unusable item comes back with its problem; only a failing model stops the work. An item's vector does not depend
    on its neighbours. On a CPU each worker decodes a batch and runs the model on it, so no core waits for another. On a
    GPU the workers decode while the model runs. At most `BATCHES_AHEAD` batches, or two for each worker, are held. A
    batch has the usable ones of `batch_size` consecutive items, padded to a fixed shape.

    On a CPU the embedder has a single thread. `workers` 0 is one for each usable core, `batch_size` 0 is the model's
    usual number.
    """

    def __init__(
        self, embedder: Embedder, *, workers: int = 0, batch_size: int = 0, max_pixels: int = MAX_PIXELS
    ) -> None:
        self._embedder, self._max_pixels = embedder, max_pixels
        self._workers, self._size = workers or usable_cores(), batch_size or embedder.usual_batch

    def embed(self, items: Iterable[tuple[int, Place]]) -> Generator[list[EmbeddedItem], None, None]:
        """Embed items, given as (id, place), in order, `batch_size` at a time; closing the generator ends the work."""

        def embed(batch: list[tuple[int, Place]]) -> list[EmbeddedItem]:
            return self._run([self._decode(item) for item in batch])

        size, workers = self._size, self._workers
        with closing(fetch_ahead(items)) as source:
            if self._embedder.on_gpu:
                ahead = max(BATCHES_AHEAD * size, ITEMS_AHEAD * workers)
                with closing(map_ahead(self._decode, source, workers=workers, ahead=ahead)) as decoded:
                    while some := list(islice(decoded, size)):
                        yield self._run(some)
                return
            batches: Iterator[list[tuple[int, Place]]] = iter(lambda: list(islice(source, size)), [])
            ahead = max(BATCHES_AHEAD, 2 * workers)
            with closing(map_ahead(embed, batches, workers=workers, ahead=ahead)) as done:
                yield from done

    def _decode(self, item: tuple[int, Place]) -> _Decoded:
        key, place = item
        sha256 = None
        try:
            with holding_bytes(place):
                data = read_place(place)
                sha256 = hashlib.sha256(data).hexdigest()
                image = self._embedder.decode(data, name=place.name, max_pixels=self._max_pixels)
                del data
        except ImageError as error:
            problem = error.apart()
            return EmbeddedItem(key, sha256=sha256, problem=problem, fetched=place.fetched), place.name, None
        pixels = preprocess_image(image, self._embedder.contract.preprocess)
        measures, phash = measure_image(image, *find_original(image)), perceptual_hash(pixels)
        found = EmbeddedItem(
            key, sha256=sha256, phash=phash, measures=measures, facts=find_facts(image), fetched=place.fetched
        )
        return found, place.name, pixels

    def _run(self, batch: list[_Decoded]) -> list[EmbeddedItem]:
        usable = [pixels for _, _, pixels in batch if pixels is not None]
        if not usable:
            return [item for item, _, _ in batch]
        vectors = self._embedder.embed_padded(np.stack(usable), batch_size=self._size)
        rows = iter(zip(vectors, self._embedder.are_usable(vectors), strict=True))
        outcomes = []
        for item, name, pixels in batch:
            if pixels is None:
                outcomes.append(item)
                continue
            vector, is_unit = next(rows)
            if is_unit:
                outcomes.append(replace(item, vector=vector))
            else:
                problem = ImageError(path=name, reason="bad-embedding", detail="the model gave no finite unit vector")
                outcomes.append(EmbeddedItem(item.id, sha256=item.sha256, problem=problem, fetched=item.fetched))
        return outcomes


def holding_bytes(place: Place) -> AbstractContextManager[None]:
    """The budget for the bytes of an item that is read and decoded, shared by all threads."""
    size_bytes = _announced_bytes(place)
    return nullcontext() if size_bytes < _SMALL_BYTES else _files_held.hold(size_bytes)


def _announced_bytes(place: Place) -> int:
    """The item's announced size; 0 where it is unknown."""
    try:
        is_told = place.size_bytes is not None or place.store is not None
        return place.size_bytes or 0 if is_told else os.stat(place.file).st_size
    except OSError:
        return 0


def in_order(batches: Iterable[list[EmbeddedItem]], ids: Iterable[int]) -> Iterator[EmbeddedItem]:
    """Outcomes in the order of ids, each as soon as possible."""
    done: dict[int, EmbeddedItem] = {}
    wanted = iter(ids)
    following = next(wanted, None)
    for batch in batches:
        done |= {item.id: item for item in batch}
        while following in done:
            yield done.pop(following)
            following = next(wanted, None)


def in_checkpoints(
    batches: Iterable[list[Outcome]], *, images: int, seconds: float, progress: Callable[[int], None]
) -> Iterator[list[Outcome]]:
    """Group outcomes into checkpoints of so many images or seconds; `progress` gets the number of outcomes so far."""
    gathered: list[Outcome] = []
    done, saved = 0, time.monotonic()
    for batch in batches:
        gathered += batch
        done += len(batch)
        if len(gathered) >= images or time.monotonic() - saved >= seconds:
            yield gathered
            gathered, saved = [], time.monotonic()
        progress(done)
    if gathered:
        yield gathered
