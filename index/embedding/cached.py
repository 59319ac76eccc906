"""An embedding engine before which a cache stands: what was embedded once is not embedded again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path

from index.embedding.engine import ThreadedEngine
from index.embedding.vector_cache import KnownVector, VectorCache, describe_vectors
from index.errors import ImageError
from index.limits import MAX_PIXELS
from index.model.embedder import Embedder
from index.sources.fetching_ahead import fetch_ahead, held
from index.sources.items import EmbeddedItem, Place
from index.sources.reading import read_place
from index.threads import map_ahead, usable_cores

_ASKED_AT_ONCE = 256
_EMBEDDED_AT_ONCE = 1024  # of those that the cache does not have, whose files are read again: soon, from memory
_KEPT_AT_ONCE, _KEPT_EVERY_S = 256, 5.0  # the most that a killed command does again
_HASHED_AHEAD = 64
_HELD_BYTES = 1 << 26  # of remote items, whose bytes are not fetched again

_Hashed = tuple[int, Place, str | None]


class CachedEngine:
    """An engine whose outcomes are looked up first, and kept; see `ThreadedEngine`, whose vectors it gives to the bit.

    Attributes:
        found: images that the cache had.
        embedded: images that the model saw.
        seconds: that these took.
    """

    def __init__(self, engine: ThreadedEngine, cache: VectorCache | None, *, workers: int = 0) -> None:
        self._engine, self._cache, self._workers = engine, cache, workers or usable_cores()
        self.found = self.embedded = 0
        self.seconds = 0.0

    def embed(self, items: Iterable[tuple[int, Place]]) -> Generator[list[EmbeddedItem], None, None]:
        """Outcomes in any order. A place that says which bytes are expected is not read to look it up."""
        if self._cache is None or not len(self._cache):  # or every file would be read twice for nothing
            yield from self._embed(items)
            return
        missing: list[tuple[int, Place]] = []
        ahead = max(_HASHED_AHEAD, 2 * self._workers)
        with (
            closing(fetch_ahead(items)) as source,
            closing(map_ahead(_hash_item, source, workers=self._workers, ahead=ahead)) as hashed,
        ):
            while some := _take_some(hashed):
                outcomes = self._look_up(some, self._cache, missing)
                if outcomes:
                    yield outcomes
                if len(missing) >= _EMBEDDED_AT_ONCE or sum(map(_held_bytes, missing)) >= _HELD_BYTES:
                    yield from self._embed(missing)
                    missing = []
        if missing:
            yield from self._embed(missing)

    def speed(self) -> float | None:
        """Images a second at which the model embeds here, in this work or when what it kept was made."""
        known = None if self._cache is None else self._cache.speed()
        return known or (self.embedded / self.seconds if self.seconds and self.embedded else None)

    def _look_up(
        self, some: list[_Hashed], cache: VectorCache, missing: list[tuple[int, Place]]
    ) -> list[EmbeddedItem]:
        """The outcomes that are known; the other items go to the missing ones."""
        known = cache.find([sha256 for _, _, sha256 in some if sha256 is not None])
        outcomes = []
        for key, place, sha256 in some:
            if sha256 is None or sha256 not in known:
                missing.append((key, place))
                continue
            one = known[sha256]
            fetched = content.file if (content := held(place)) is not None else None
            outcomes.append(EmbeddedItem(key, vector=one.vector, sha256=sha256, phash=one.phash, fetched=fetched))
        self.found += len(outcomes)
        return outcomes

    def _embed(self, items: Iterable[tuple[int, Place]]) -> Iterator[list[EmbeddedItem]]:
        """What the engine gives, kept some at a time, and at its end however it ends."""
        made: dict[str, KnownVector] = {}
        spent, saved = 0.0, time.monotonic()
        with closing(self._engine.embed(items)) as batches:
            try:
                while True:
                    start = time.perf_counter()
                    batch = next(batches, None)
                    spent += time.perf_counter() - start
                    if batch is None:
                        return
                    self._note(batch, made)
                    if len(made) >= _KEPT_AT_ONCE or time.monotonic() - saved >= _KEPT_EVERY_S:
                        self._keep(made, spent)
                        spent, saved = 0.0, time.monotonic()
                    yield batch
            finally:
                self._keep(made, spent)

    def _note(self, batch: list[EmbeddedItem], made: dict[str, KnownVector]) -> None:
        for item in batch:
            if item.vector is not None and item.sha256 is not None and item.phash is not None:
                made[item.sha256] = KnownVector(item.vector, item.phash)
                self.embedded += 1

    def _keep(self, made: dict[str, KnownVector], seconds: float) -> None:
        self.seconds += seconds
        if self._cache is not None:
            self._cache.add(made, seconds=seconds)
        made.clear()


@contextmanager
def open_cached_engine(
    embedder: Embedder,
    *,
    cache: Path | None,
    workers: int = 0,
    batch_size: int = 0,
    max_pixels: int = MAX_PIXELS,
) -> Iterator[CachedEngine]:
    """The usual engine for a model behind the vectors that a cache folder has of it; else as `ThreadedEngine`.

    Args:
        cache: the folder; None for none.
    """
    engine = ThreadedEngine(embedder, workers=workers, batch_size=batch_size, max_pixels=max_pixels)
    described = describe_vectors(embedder, batch_size=batch_size or embedder.usual_batch, max_pixels=max_pixels)
    opened = nullcontext(None) if cache is None else VectorCache(
        cache, name=embedder.contract.backbone, description=described, width=embedder.width
    )  # fmt: skip
    with opened as vectors:
        yield CachedEngine(engine, vectors, workers=workers)


def _held_bytes(item: tuple[int, Place]) -> int:
    content = held(item[1])
    return 0 if content is None else len(content.data)


def _take_some(hashed: Iterator[_Hashed]) -> list[_Hashed]:
    """Some items to be looked up together; fewer where their bytes are held."""
    some: list[_Hashed] = []
    size = 0
    for item in islice(hashed, _ASKED_AT_ONCE):
        some.append(item)
        size += _held_bytes(item[:2])
        if size >= _HELD_BYTES:
            break
    return some


def _hash_item(item: tuple[int, Place]) -> _Hashed:
    """An item with the SHA-256 of its bytes; None where they cannot be read, which the engine will tell of."""
    key, place = item
    if place.sha256 is not None:
        return key, place, place.sha256
    try:
        return key, place, hashlib.sha256(read_place(place)).hexdigest()
    except ImageError:
        return key, place, None
