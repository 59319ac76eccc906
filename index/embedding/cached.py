"""Cache of vectors, and the embedding engine that uses it.

CACHE/vectors.sqlite has rows of: a key of everything that an entry depends on beside the image, the image file's
SHA-256, the entry (perceptual hash, measures, vector and facts, or the text in the image), and a CRC of all; a damaged
row is ignored. Processes may share the file. Problems with the cache are logged, and images are then embedded again.
"""

import hashlib
import json
import logging
import sqlite3
import struct
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import PIL

from index.embedding.engine import ThreadedEngine
from index.errors import ImageError
from index.images.decode import decoder_version
from index.images.file_facts import FACTS_VERSION
from index.images.preprocess import DECODING_VERSION
from index.items import EmbeddedItem, Place
from index.limits import MAX_PIXELS
from index.measures import MEASURES, MEASURES_VERSION, Measures
from index.model.embedder import Embedder
from index.sources.reading import fetch_ahead, read_place
from index.text import printable_path
from index.threads import map_ahead, usable_cores

logger = logging.getLogger(__name__)

Cached = TypeVar("Cached")

MAX_BYTES = 2 << 30  # used in the file; above it the oldest vectors are removed
CACHE_NAME = "vectors.sqlite"
_WAIT_S = 10.0  # for another process that writes the same file
_HEAD = struct.Struct(f"<q{len(MEASURES)}d")  # perceptual hash, measures
_ERRORS = (sqlite3.Error, OSError, ValueError)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    id INTEGER PRIMARY KEY, key BLOB, sha256 BLOB, entry BLOB NOT NULL, crc INTEGER NOT NULL, UNIQUE (key, sha256)
);
"""
_USED_BYTES = (
    "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)

_ASKED_AT_ONCE = 256
_EMBEDDED_AT_ONCE = 1024  # cache misses, whose files are read again soon, from the page cache
_KEPT_AT_ONCE, _KEPT_EVERY_S = 256, 5.0  # the most that a killed command does again
_HASHED_AHEAD = 64
_HELD_BYTES = 1 << 26  # of remote items, which are not fetched twice


def describe_vectors(embedder: Embedder, *, batch_size: int, max_pixels: int) -> dict[str, Any]:
    """Everything that a vector depends on beside its image and the model's own preprocessing."""
    return {
        "model_sha256": embedder.sha256,
        "outputs": list(embedder.outputs),
        "runtime": embedder.runtime,
        "batch_size": batch_size,  # for which a runtime may choose other kernels
        "max_pixels": max_pixels,
        "measures": MEASURES_VERSION,
        "facts": FACTS_VERSION,
        "decoding": f"{DECODING_VERSION}, Pillow {PIL.__version__}, HEIC by {decoder_version()}",
    }


class ContentCache(Generic[Cached]):
    """Cached entries by the SHA-256 of image files; used by one thread at a time. A subclass packs and unpacks them."""

    def __init__(self, folder: Path, *, description: Mapping[str, Any], max_bytes: int = MAX_BYTES) -> None:
        self._key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).digest()[:16]
        self.path = folder / CACHE_NAME
        self._max_bytes = max_bytes
        self._database: sqlite3.Connection | None = None
        with self._forgiving("opened"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._database = self._connect()
            except _ERRORS as error:
                if not _is_damage(error):
                    raise
                logger.warning("%s: damaged (%s), so it begins anew", printable_path(self.path), error)
                self._remove()
                self._database = self._connect()

    def _pack(self, item: Cached) -> tuple[str, bytes]:
        """The SHA-256 of an item's file, and its entry."""
        raise NotImplementedError

    def _unpack(self, sha256: str, entry: bytes) -> Cached | None:
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether it can be used; problems close it."""
        return self._database is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_WAIT_S, check_same_thread=False, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = OFF")  # the CRC detects damage of a power cut
            database.executescript(_SCHEMA)
            database.execute("SELECT id, key, sha256, entry, crc FROM vectors LIMIT 1").fetchone()
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def _forgiving(self, what: str) -> Iterator[None]:
        """On an error, log it once and stop using the cache."""
        try:
            yield
        except _ERRORS as error:
            shown = printable_path(self.path)
            logger.warning("%s: the cache of vectors cannot be %s (%s), so it is not used", shown, what, error)
            database, self._database = self._database, None
            if database is not None:
                with suppress(sqlite3.Error):
                    database.close()
            if _is_damage(error):
                self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            for name in (self.path.name, f"{self.path.name}-journal"):
                self.path.with_name(name).unlink(missing_ok=True)

    def __len__(self) -> int:
        if self._database is not None:
            with self._forgiving("read"):
                counted = self._database.execute("SELECT count(*) FROM vectors WHERE key = ?", (self._key,))
                return int(counted.fetchone()[0])
        return 0

    def find(self, hashes: Iterable[str]) -> dict[str, Cached]:
        """Cached items by the SHA-256 of their files."""
        found: dict[str, Cached] = {}
        if self._database is None:
            return found
        damaged = 0
        with self._forgiving("read"):
            wanted = [bytes.fromhex(sha256) for sha256 in set(hashes)]
            query = (
                f"SELECT sha256, entry, crc FROM vectors WHERE key = ? AND sha256 IN ({', '.join('?' * len(wanted))})"
            )
            for sha256, entry, crc in self._database.execute(query, [self._key, *wanted]):
                known = self._check(sha256, entry, crc)
                damaged += known is None
                if known is not None:
                    found[sha256.hex()] = known
        if damaged:
            shown = printable_path(self.path)
            logger.warning("%s: %d damaged entries are ignored, and made again", shown, damaged)
        return found

    def _check(self, sha256: Any, entry: Any, crc: Any) -> Cached | None:
        if not isinstance(sha256, bytes) or not isinstance(entry, bytes):
            return None
        return self._unpack(sha256.hex(), entry) if zlib.crc32(self._key + sha256 + entry) == crc else None

    def add(self, items: Sequence[Cached]) -> None:
        """Add items in one transaction; a full file loses its oldest."""
        if self._database is None or not items:
            return
        with self._forgiving("written"):
            rows = []
            for item in items:
                sha256, entry = self._pack(item)
                image = bytes.fromhex(sha256)
                rows.append((self._key, image, entry, zlib.crc32(self._key + image + entry)))
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                [used] = self._database.execute(_USED_BYTES).fetchone()
                if used >= self._max_bytes:  # SQLite reuses the pages
                    oldest = "SELECT id FROM vectors ORDER BY id LIMIT ?"
                    self._database.execute(f"DELETE FROM vectors WHERE id IN ({oldest})", (2 * len(rows),))
                insert = "INSERT OR REPLACE INTO vectors (key, sha256, entry, crc) VALUES (?, ?, ?, ?)"
                self._database.executemany(insert, rows)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


class VectorCache(ContentCache[EmbeddedItem]):
    """The cached (D,) vectors of one model, by `describe_vectors`; found items have the id 0."""

    def __init__(self, folder: Path, *, description: Mapping[str, Any], width: int, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(folder, description=description, max_bytes=max_bytes)
        self._width = width

    def _pack(self, item: EmbeddedItem) -> tuple[str, bytes]:
        assert item.vector is not None
        assert item.sha256 is not None
        assert item.measures is not None
        head = _HEAD.pack(item.phash, *item.measures.to_numbers())
        facts = json.dumps(item.facts).encode() if item.facts else b""
        return item.sha256, head + item.vector.astype("<f4").tobytes() + facts

    def _unpack(self, sha256: str, entry: bytes) -> EmbeddedItem | None:
        end = _HEAD.size + 4 * self._width
        if len(entry) < end:
            return None
        vector = np.frombuffer(entry[:end], dtype="<f4", offset=_HEAD.size).astype(np.float32)
        facts = json.loads(entry[end:] or "{}")
        phash, *numbers = _HEAD.unpack_from(entry)
        return EmbeddedItem(0, vector, sha256, phash, Measures.from_numbers(numbers), facts)


def _is_damage(error: Exception) -> bool:
    """Whether an error means a damaged or foreign file, and not a lock or a full disk."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE
    return isinstance(error, ValueError)  # of a broken schema, in which SQLite quotes bytes that are not valid text


class CachedEngine:
    """A `ThreadedEngine` behind a cache, with identical vectors: cache hits, and images `embedded` in `seconds`."""

    def __init__(self, engine: ThreadedEngine, cache: VectorCache | None, *, workers: int = 0) -> None:
        self._engine, self._cache, self._workers = engine, cache, workers or usable_cores()
        self.found = self.embedded = 0
        self.seconds = 0.0

    def embed(self, items: Iterable[tuple[int, Place]]) -> Generator[list[EmbeddedItem], None, None]:
        """Outcomes in any order. A place with an expected SHA-256 is looked up without reading it."""
        if self._cache is None or not len(self._cache):  # avoids reading every file twice
            yield from self._embed(items)
            return
        missing: list[tuple[int, Place]] = []
        with hash_places(items, workers=self._workers) as hashed:
            while some := _take_some(hashed):
                known = self._cache.find(place.sha256 for _, place in some if place.sha256 is not None)
                outcomes = []
                for key, place in some:
                    if place.sha256 is None or place.sha256 not in known:
                        missing.append((key, place))
                    else:
                        outcomes.append(replace(known[place.sha256], id=key, fetched=place.fetched))
                self.found += len(outcomes)
                if outcomes:
                    yield outcomes
                if len(missing) >= _EMBEDDED_AT_ONCE or sum(map(_held_bytes, missing)) >= _HELD_BYTES:
                    yield from self._embed(missing)
                    missing = []
        if missing:
            yield from self._embed(missing)

    @property
    def has_cache(self) -> bool:
        """Whether there is a cache that can be used."""
        return self._cache is not None and self._cache.is_open

    def speed(self) -> float | None:
        """Images a second of the model in this run; None where all vectors came from the cache."""
        return self.embedded / self.seconds if self.seconds and self.embedded else None

    def _embed(self, items: Iterable[tuple[int, Place]]) -> Iterator[list[EmbeddedItem]]:
        """Embed, and add the vectors to the cache now and then, and at the end."""
        made: list[EmbeddedItem] = []
        spent, saved = 0.0, time.monotonic()

        def save() -> None:
            nonlocal spent, saved
            if self._cache is not None:
                self._cache.add(made)
            self.embedded += len(made)
            self.seconds += spent
            made.clear()
            spent, saved = 0.0, time.monotonic()

        with closing(self._engine.embed(items)) as batches:
            try:
                while True:
                    start = time.perf_counter()
                    batch = next(batches, None)
                    spent += time.perf_counter() - start
                    if batch is None:
                        return
                    made += [item for item in batch if item.vector is not None]
                    if len(made) >= _KEPT_AT_ONCE or time.monotonic() - saved >= _KEPT_EVERY_S:
                        save()
                    yield batch
            finally:
                save()


@contextmanager
def open_cached_engine(
    embedder: Embedder,
    *,
    cache: Path | None,
    workers: int = 0,
    batch_size: int = 0,
    max_pixels: int = MAX_PIXELS,
    cache_bytes: int = MAX_BYTES,
) -> Iterator[CachedEngine]:
    """A `CachedEngine`; arguments as of `ThreadedEngine`, and the folder of the cache, if any, with its limit."""
    engine = ThreadedEngine(embedder, workers=workers, batch_size=batch_size, max_pixels=max_pixels)
    described = describe_vectors(embedder, batch_size=batch_size or embedder.usual_batch, max_pixels=max_pixels)
    opened: AbstractContextManager[VectorCache | None] = nullcontext(None)
    if cache is not None:
        opened = VectorCache(cache, description=described, width=embedder.width, max_bytes=cache_bytes)
    with opened as vectors:
        yield CachedEngine(engine, vectors, workers=workers)


def _held_bytes(item: tuple[int, Place]) -> int:
    return len(item[1].data or b"")


def _take_some(hashed: Iterator[tuple[int, Place]]) -> list[tuple[int, Place]]:
    """A batch of items to look up; smaller where their bytes are held in memory."""
    some: list[tuple[int, Place]] = []
    size = 0
    for item in islice(hashed, _ASKED_AT_ONCE):
        some.append(item)
        size += _held_bytes(item)
        if size >= _HELD_BYTES:
            break
    return some


@contextmanager
def hash_places(items: Iterable[tuple[int, Place]], *, workers: int) -> Iterator[Iterator[tuple[int, Place]]]:
    """Items, given as (id, place), with the SHA-256 of their bytes, in order; without one where they cannot be read."""
    ahead = max(_HASHED_AHEAD, 2 * workers)
    with (
        closing(fetch_ahead(items, only_unknown=True)) as source,
        closing(map_ahead(_hash_item, source, workers=workers, ahead=ahead)) as hashed,
    ):
        yield hashed


def _hash_item(item: tuple[int, Place]) -> tuple[int, Place]:
    key, place = item
    if place.sha256 is None:
        with suppress(ImageError):
            return key, replace(place, sha256=hashlib.sha256(read_place(place)).hexdigest())
    return item
