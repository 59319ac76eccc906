"""Search engine of a served gallery: embeds photos, answers searches, encodes thumbnails, on a few threads.

Photos and searches are answered in batches by one thread more than there are cores; each runs the model and the index
on one core, a lone photo on all cores. Everything else that is read, thumbnails included, goes through small pools. All
waiting is bounded.
"""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from index.arrays import Vectors
from index.errors import ImageError, InputError, RetrievalError
from index.gallery.any_query import normalise
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit
from index.images.preprocess import Pixels
from index.limits import MAX_PIXELS
from index.outputs import SEMANTIC
from index.text import printable_path
from index.threads import RecentlyUsed
from retrieval_app.serving.batching import BoundedPool, Lane, Workers
from retrieval_app.serving.errors import BusyError, NotReadyError, OutOfTurnError, TimedOutError, UnknownPhotoError
from retrieval_app.serving.live_gallery import LiveGallery, Snapshot
from retrieval_app.serving.photos import (
    PREVIEW_SIDE,
    Crop,
    Photo,
    encode_image,
    encode_kept,
    read_original,
    read_pixels,
)
from retrieval_app.serving.searching import (
    MemberQuery,
    Part,
    Search,
    SearchQuery,
    TextQuery,
    VectorQuery,
    answer_searches,
)
from retrieval_app.serving.serving_config import ServingConfig

logger = logging.getLogger(__name__)
LONGEST_S = 10.0  # that a search for one image may take on a machine that is busy with others
KEPT_S = 1.0  # an outcome is kept, at least
_REST = 20  # times what a search took pass before the next: asking often costs no more than a twentieth of a core
_end: ContextVar[float] = ContextVar("end", default=0.0)  # of the search under way, by time.monotonic()

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class SearchProbe:
    """Readiness check by a real search, one at a time, whose outcome concurrent requests share. For one event loop."""

    def __init__(self, *, longest_s: float = LONGEST_S) -> None:
        self._longest_s, self._digest, self._began, self._took_s = longest_s, "", 0.0, 0.0
        self._outcome = Future[Exception | None]()
        self._outcome.set_result(None)
        self._logged: str | None = None

    async def check(self, snapshot: Snapshot) -> None:
        """Raise NotReadyError where searches of this version fail, or take too long."""
        age_s = time.monotonic() - self._began
        is_stale = snapshot.gallery.digest != self._digest or age_s > max(KEPT_S, _REST * self._took_s)
        if self._outcome.done() and is_stale:
            self._outcome, self._digest, self._began = Future(), snapshot.gallery.digest, time.monotonic()
            self._outcome.add_done_callback(self._time)
            threading.Thread(target=_try_search, args=(snapshot, self._outcome), name="probe", daemon=True).start()
        outcome, left_s = self._outcome, self._began + self._longest_s - time.monotonic()
        await asyncio.wait([asyncio.wrap_future(outcome)], timeout=max(left_s, 0.0))
        problem = None
        if not outcome.done():
            problem = f"a search takes more than {self._longest_s:g} seconds"
        elif (error := outcome.result()) is not None:
            problem = f"a search fails: {error or type(error).__name__}"
        if problem not in (None, self._logged):
            logger.error("not ready: %s", problem)
        self._logged = problem
        if problem is not None:
            raise NotReadyError(problem)

    def _time(self, _: Future[Exception | None]) -> None:
        self._took_s = time.monotonic() - self._began


def _try_search(snapshot: Snapshot, outcome: Future[Exception | None]) -> None:
    """Search for one image of the gallery, and read its row."""
    error: Exception | None = None
    try:
        first = int(snapshot.gallery.store.ids[0])
        snapshot.gallery.search(snapshot.gallery.vector(first), k=1)
        with snapshot.gallery.without_decisions.catalog() as catalog:  # the file itself, since rows are remembered
            if not catalog.find([first]):
                error = NotReadyError(f"image {first} has no row")
    except Exception as caught:  # noqa: BLE001 - whatever it is, the searches of requests would fail by it too
        error = caught
    outcome.set_result(error)


@dataclass(frozen=True, slots=True)
class _Embedding:
    """An image to embed with the model of a snapshot."""

    snapshot: Snapshot
    read: Callable[[], Pixels]
    name: str


class Engine:
    """Search engine of one gallery; `name` is for people, and `live` always its newest sound version."""

    def __init__(self, gallery_path: Path, *, config: ServingConfig | None = None, name: str | None = None) -> None:
        """Open the gallery."""
        self.config = config = config or ServingConfig()
        self.name = name or gallery_path.name
        self.live = LiveGallery(gallery_path, filter_s=config.filter_s, shows_gps=config.show_gps)
        self.searches_lane: Lane[Search, list[Hit]] = Lane(
            answer_searches, lambda task: task.key, most=config.batch_searches, capacity=config.searches_waiting
        )
        self.photos_lane: Lane[_Embedding, Vectors] = Lane(
            self._embed_photos,
            lambda task: id(task.snapshot.gallery.embedder),
            most=config.batch_photos,
            capacity=config.photos_waiting,
        )
        self._workers = Workers([self.searches_lane, self.photos_lane], threads=config.workers)
        self._readers = BoundedPool(config.reader_threads, name="reader", capacity=config.reads_waiting)
        self._costly = BoundedPool(1, name="costly-images", capacity=config.reads_waiting)
        self._lookups = BoundedPool(config.filter_threads, name="conditions", capacity=config.filters_waiting)
        self._photos: RecentlyUsed[str, Photo] = RecentlyUsed(config.photos_bytes, size=lambda photo: photo.kept_bytes)
        self._crops: RecentlyUsed[tuple[object, ...], Vectors] = RecentlyUsed(config.crops_kept)
        self._thumbnails: RecentlyUsed[tuple[str, int, int], bytes] = RecentlyUsed(
            config.thumbnail_cache_bytes, size=len
        )
        self._pools = (self._readers, self._costly, self._lookups)
        self.probe = SearchProbe()

    def snapshot(self) -> Snapshot:
        """The current version, for a whole request, with the decisions that were read last."""
        return self.live.current

    def open_decided(self) -> Gallery:
        """The current version with the newest label decisions, for a thread that may wait."""
        self.live.follow_decisions()
        return self.snapshot().gallery

    async def follow_decisions(self) -> None:
        """Bring the newest label decisions into `snapshot`; a thread reads them where they have changed."""
        if not self.live.has_newest_decisions():
            with suppress(BusyError):  # a request that needs a thread is refused later
                await self.run(self.live.follow_decisions)

    def refuse_costly(self) -> None:
        """Begin no further costly decode: a server that ends does not wait for them."""
        self._costly.refuse()

    def close(self) -> None:
        self._workers.close()
        for pool in self._pools:
            pool.close()
        self.live.close()

    async def run(
        self, function: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """The value of a blocking function, called in a small pool of threads; BusyError where too many calls wait."""
        return await self._wait(self._readers.submit(partial(function, *args, **kwargs)))

    async def look_up(
        self, function: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """The value of a function that may take seconds, as filters do, in a pool for which no thumbnail waits."""
        return await self._wait(self._lookups.submit(partial(function, *args, **kwargs)))

    async def run_costly(self, function: Callable[[], Value]) -> Value:
        """The value of a decode that may cost much: one at a time, and nothing else waits for them."""
        return await self._wait(self._costly.submit(function))

    async def _wait(self, future: Future[Value]) -> Value:
        try:
            async with asyncio.timeout(self._left_s()):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            seconds = f"{self.config.request_s:g} seconds"
            if future.cancel():  # nothing of it was begun
                raise BusyError(f"this waited for {seconds} and was not begun; try again in a moment") from error
            raise TimedOutError(f"this takes more than {seconds}; the request has been given up") from error
        finally:
            del future  # which holds the error, whose traceback holds this frame

    def _left_s(self) -> float:
        """Seconds that a wait may take; all waits of a search end together."""
        return max(_end.get() - time.monotonic(), 0.0) if _end.get() else self.config.request_s

    async def embed(self, snapshot: Snapshot, data: bytes, *, name: str) -> Vectors:
        """The (D,) float32 unit vector of the bytes of a photo."""
        return await self._embed(snapshot, self._make_decode(snapshot, data, name), name=name)

    def _make_decode(self, snapshot: Snapshot, data: bytes, name: str) -> Callable[..., Pixels]:
        """The function that decodes a photo for the model of a snapshot; an InputError where it has too many bytes."""
        size, limit = len(data) / 1024**2, self.config.max_upload_bytes / 1024**2
        if size > limit:
            raise InputError(f"{name}: {size:.1f} MB, at most {limit:.0f} MB are taken; use a smaller copy")
        preprocess, most = snapshot.gallery.embedder.contract.preprocess, self.config.max_upload_pixels
        return partial(read_pixels, data, name=name, preprocess=preprocess, max_pixels=most)

    async def keep_photo(self, data: bytes, *, name: str) -> Photo:
        """Embed a photo and keep it for later queries."""
        snapshot, name = self.snapshot(), printable_path(name)
        read = self._make_decode(snapshot, data, name)
        encode = partial(encode_kept, data, name=name, max_pixels=self.config.max_upload_pixels)
        try:
            vector = await self._embed_read(snapshot, partial(read, cheap_only=True), name)
            kept = await self.run(encode, cheap_only=True)
        except OutOfTurnError:  # both in one turn, so that the second is not refused after the first
            pixels, kept = await self.run_costly(lambda: (read(), encode()))
            vector = await self._embed_read(snapshot, lambda: pixels, name)
        jpeg, size = kept
        model = snapshot.gallery.embedder.sha256
        photo = Photo(secrets.token_hex(16), name, *size, jpeg, vector, model)
        self._photos.put(photo.token, photo)
        return photo

    async def photo(self, token: str) -> Photo:
        if (photo := self._photos.get(token)) is None:
            raise UnknownPhotoError
        return photo

    async def search(self, snapshot: Snapshot, query: SearchQuery) -> Search:
        """Search for the members most similar to a query; the search with its hits."""
        snapshot = snapshot.view(query.by)
        search = Search(snapshot.gallery, query)
        outer = _end.set(time.monotonic() + self.config.request_s)
        try:
            if query.where is not None and not snapshot.gallery.remembers(query.where):
                await self.look_up(snapshot.gallery.select, query.where)  # holds up no other search
            if query.upload is not None:
                search.vectors = [await self.embed(snapshot, query.upload.data, name=query.upload.name)]
            elif query.text is not None:
                words = await self.look_up(snapshot.gallery.ask_words, query.text)
                search.query, search.vectors = replace(query, words=words), [words.vector]
            else:
                search.vectors = [await self._find_vector(snapshot, part) for part in query.parts]
            if query.collapse_duplicates:
                duplicates = snapshot.insights.duplicates
                if duplicates.state == "computing":  # without them where that takes longer than a moment
                    wait_s = self.config.duplicates_wait_s
                    duplicates = await self.run(partial(snapshot.insights.wait, "duplicates", timeout=wait_s))
                search.groups = None if duplicates.value is None else duplicates.value.members
            elif query.group_by is not None:
                search.groups = await self.look_up(snapshot.gallery.group_by, query.group_by)
            begun, left_s = query.has_run_model, self._left_s()
            hits = self._workers.submit(self.searches_lane, search, timeout_s=left_s, is_begun=begun)
            found = await self._wait(hits)
            search.hits, search.has_more = found[: query.k], len(found) > (query.k or 0)
        finally:
            _end.reset(outer)
        return search

    async def thumbnail(self, snapshot: Snapshot, image_id: int, *, side: int = PREVIEW_SIDE) -> bytes:
        """A WebP of one member, at most `side` pixels long, from re-encoded pixels."""
        key = (snapshot.gallery.digest, image_id, side)
        if (data := self._thumbnails.get(key)) is None:
            encode = partial(encode_image, snapshot.gallery, image_id, side=side)
            try:
                data = await self.run(encode, cheap_only=True)
            except OutOfTurnError:
                data = await self.run_costly(encode)
            self._thumbnails.put(key, data)
        return data

    async def _find_vector(self, snapshot: Snapshot, part: Part) -> Vectors | None:
        """The unit vector of a query part; None where the search reads it."""
        gallery = snapshot.gallery
        if isinstance(part, VectorQuery):
            if len(part.vector) != gallery.width:
                raise InputError(f"a query vector must be {gallery.width} numbers, got {len(part.vector)}")
            return normalise(np.array(part.vector, dtype=np.float32), name="query vector")
        if isinstance(part, TextQuery):
            words = await self.look_up(gallery.ask_words, part.text)
            if not words.is_known:
                advice = "search by it alone, or make it a condition"
                raise InputError(f"what {part.text!r} looks like is not known here: {advice}")
            return words.vector
        if isinstance(part, MemberQuery):
            return None if part.crop is None else await self._embed_part(snapshot, part.crop, of=part.image_id)
        photo = await self.photo(part.photo)
        is_known = gallery.output == SEMANTIC and photo.model_sha256 == gallery.embedder.sha256
        if part.crop is None and is_known:
            return photo.vector
        return await self._embed_part(snapshot, part.crop or Crop(x=0, y=0, width=1, height=1), of=photo)

    async def _embed_part(self, snapshot: Snapshot, crop: Crop, *, of: Photo | int) -> Vectors:
        """The unit vector of a crop; the last ones are cached, for the next pages of results."""
        gallery = snapshot.gallery
        whole = of.token if isinstance(of, Photo) else (gallery.digest, of)
        key = (gallery.embedder.sha256, gallery.output, crop, whole)
        vector = self._crops.get(key)
        if vector is None:
            if isinstance(of, Photo):
                name, data = of.name, of.jpeg
            else:
                name, data = await self.run(read_original, gallery, of)
            preprocess = gallery.embedder.contract.preprocess
            read = partial(read_pixels, data, name=name, preprocess=preprocess, max_pixels=MAX_PIXELS, crop=crop)
            vector = await self._embed(snapshot, read, name=name)
            self._crops.put(key, vector)
        return vector

    async def _embed(self, snapshot: Snapshot, read: Callable[..., Pixels], *, name: str) -> Vectors:
        """The vector of the pixels that `read` gives; a costly decode happens before the worker's turn."""
        try:
            return await self._embed_read(snapshot, partial(read, cheap_only=True), name)
        except OutOfTurnError:
            pixels = await self.run_costly(read)
        return await self._embed_read(snapshot, lambda: pixels, name)

    async def _embed_read(self, snapshot: Snapshot, read: Callable[[], Pixels], name: str) -> Vectors:
        embedding = _Embedding(snapshot, read, name)
        return await self._wait(self._workers.submit(self.photos_lane, embedding, timeout_s=self._left_s()))

    def _embed_photos(self, tasks: Sequence[_Embedding]) -> list[Vectors | Exception]:
        """The unit vector of each image, or its error."""
        answers: list[Vectors | Exception] = []
        pixels: dict[int, Pixels] = {}
        for number, task in enumerate(tasks):
            detail = "the model gave no finite unit vector"
            answers.append(ImageError(path=task.name, reason="bad-embedding", detail=detail))
            try:
                pixels[number] = task.read()
            except RetrievalError as error:
                answers[number] = error
        if not pixels:
            return answers
        snapshot = tasks[0].snapshot
        embedder = snapshot.gallery.embedder
        if len(pixels) == 1 and self._workers.is_alone:
            embedder = snapshot.wide_embedder.with_outputs(*embedder.outputs)
        vectors = embedder.embed_batch(np.stack(list(pixels.values())))
        for number, vector, usable in zip(pixels, vectors, embedder.are_usable(vectors), strict=True):
            if usable:
                answers[number] = vector
        return answers
