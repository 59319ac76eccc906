"""Search engine of a served gallery: photos to vectors, queries to rankings, ids to pictures, on a few threads.

Photos and searches are answered in batches by one thread more than there are cores, each running the model and the
index on one core, and a lone photo on all of them. Whatever else has to be read, pictures of the gallery among it, goes
through a small pool beside them. All waiting is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from index.arrays import Vectors
from index.errors import ImageError, RetrievalError
from index.gallery.gallery import Gallery
from index.images.preprocess import Pixels
from index.limits import MAX_PIXELS
from index.outputs import KIND
from index.recent import RecentlyUsed
from index.text import printable_path
from retrieval_app.reports.duplicates_report import DuplicateReport
from retrieval_app.serving.batching import Lane, Workers
from retrieval_app.serving.bounded_pool import BoundedPool
from retrieval_app.serving.errors import BusyError, NotReadyError, OutOfTurnError, TimedOutError, UnknownPhotoError
from retrieval_app.serving.live_gallery import LiveGallery, Snapshot
from retrieval_app.serving.photos import (
    Crop,
    KeptPhotos,
    Photo,
    Upload,
    check_upload,
    encode_kept,
    read_pixels,
)
from retrieval_app.serving.pictures import PICTURE_SIDE, encode_picture, read_original
from retrieval_app.serving.search_times import SearchTimes, watching
from retrieval_app.serving.searching import (
    QueryPart,
    Ranking,
    SearchQuery,
    SearchTask,
    answer_searches,
    normalise,
)
from retrieval_app.serving.serving_config import ServingConfig

logger = logging.getLogger(__name__)
LONGEST_S = 10.0  # that a search for one image may take on a machine that is busy with others
KEPT_S = 1.0
_end: ContextVar[float] = ContextVar("end", default=0.0)  # of the search under way, by time.monotonic()
_REST = 20  # times what a search took pass before the next: asking often costs no more than a twentieth of a core

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


@dataclass(eq=False, slots=True)
class _Trial:
    """A search that is tried; it holds no version open longer than the requests for it."""

    digest: str
    began: float = field(default_factory=time.monotonic)
    fresh_until: float = math.inf  # one that hangs is not joined by others
    outcome: Future[Exception | None] = field(default_factory=Future)

    def run(self, snapshot: Snapshot) -> None:
        """Search for one image of the gallery, and read its row."""
        error: Exception | None = None
        try:
            first = int(snapshot.gallery.store.ids[0])
            vector = snapshot.gallery.vector(first)
            query = SearchQuery((QueryPart(vector=vector),), k=1)
            (answer,) = answer_searches([SearchTask(snapshot, query, (vector,))])
            error = answer if isinstance(answer, Exception) else None
            with snapshot.gallery.as_given.catalog() as catalog:  # the file itself, since rows are remembered
                if not catalog.find([first]):
                    error = NotReadyError(f"image {first} has no row")
        except Exception as caught:  # noqa: BLE001 - whatever it is, the searches of requests would fail by it too
            error = caught
        ended = time.monotonic()
        self.fresh_until = ended + max(KEPT_S, _REST * (ended - self.began))
        self.outcome.set_result(error)


class SearchProbe:
    """Readiness check by a real search, one at a time and for all who ask meanwhile. For one event loop."""

    def __init__(self, *, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._trial: _Trial | None = None
        self._logged: str | None = None

    async def check(self, snapshot: Snapshot) -> None:
        """Return where a search of this version can be answered; raise NotReadyError where none can."""
        trial, digest = self._trial, snapshot.gallery.digest
        if trial is None or (
            trial.outcome.done() and (trial.digest != digest or time.monotonic() > trial.fresh_until)
        ):
            trial = self._trial = _Trial(digest)
            threading.Thread(target=trial.run, args=(snapshot,), name="probe", daemon=True).start()
        left_s = trial.began + self._longest_s - time.monotonic()
        await asyncio.wait([asyncio.wrap_future(trial.outcome)], timeout=max(left_s, 0.0))
        problem = None
        if not trial.outcome.done():
            problem = f"a search takes more than {self._longest_s:g} seconds"
        elif (error := trial.outcome.result()) is not None:
            problem = f"a search fails: {error or type(error).__name__}"
        if problem not in (None, self._logged):
            logger.error("not ready: %s", problem)
        self._logged = problem
        if problem is not None:
            raise NotReadyError(problem)


@dataclass(frozen=True, slots=True)
class _Embedding:
    """A picture to embed with the model of a snapshot."""

    snapshot: Snapshot
    read: Callable[[], Pixels]
    name: str


class Engine:
    """Answers what a page or an API asks of one gallery.

    Attributes:
        name: that the gallery is shown by.
        config: its limits.
        live: the gallery, always its newest sound version.
        probe: finds out whether searches can be answered.
        photos_lane: photos that wait, for metrics.
        searches_lane: likewise.
    """

    def __init__(
        self,
        gallery_path: Path,
        *,
        config: ServingConfig | None = None,
        audit: Path | None = None,
        name: str | None = None,
        shared: Path | None = None,
    ) -> None:
        """Open the gallery; the label issues of an `audit` folder replace its own, a name replaces that of its folder.

        A `shared` folder has what several processes of a server have together.
        """
        self.config = config = config or ServingConfig()
        self.name = name or gallery_path.name
        self.live = LiveGallery(gallery_path, audit=audit, filter_s=config.filter_s)
        self.searches_lane: Lane[SearchTask, Ranking] = Lane(
            "searches", answer_searches, lambda task: task.key,
            most=config.batch_searches, capacity=config.searches_waiting,
        )  # fmt: skip
        self.photos_lane: Lane[_Embedding, Vectors] = Lane(
            "photos", self._embed_pictures, lambda task: id(task.snapshot.gallery.embedder),
            most=config.batch_photos, capacity=config.photos_waiting,
        )  # fmt: skip
        self._workers = Workers([self.searches_lane, self.photos_lane], threads=config.workers)
        self._readers = BoundedPool(config.reader_threads, name="reader", capacity=config.reads_waiting)
        self._costly = BoundedPool(1, name="costly-pictures", capacity=config.reads_waiting)
        self._lookups = BoundedPool(config.filter_threads, name="conditions", capacity=config.filters_waiting)
        self._photos = KeptPhotos(config.photos_bytes, path=None if shared is None else shared / "photos.sqlite")
        self._crops: RecentlyUsed[tuple[object, ...], Vectors] = RecentlyUsed(config.crops_kept)
        self._pictures: RecentlyUsed[tuple[str, int, int], bytes] = RecentlyUsed(
            config.picture_cache_bytes, size=len
        )
        self._pools = (self._readers, self._costly, self._lookups)
        self.probe = SearchProbe()

    @property
    def photos_kept(self) -> int:
        """Photos that can be asked with."""
        return len(self._photos)

    @property
    def reading(self) -> int:
        """Reads that are waiting or under way."""
        return sum(pool.count for pool in self._pools)

    def snapshot(self) -> Snapshot:
        """The version to answer a request from, to its end, with the decisions that were followed last."""
        return self.live.current

    def open_decided(self) -> Gallery:
        """The gallery of `snapshot` with the label decisions of now, for a thread that may wait."""
        self.live.follow_decisions()
        return self.snapshot().gallery

    async def follow_decisions(self) -> None:
        """Let the label decisions of now show in `snapshot`, read in a thread where there are others."""
        if not self.live.has_newest_decisions():
            with suppress(BusyError):  # a request that needs a thread itself is refused then
                await self.run(self.live.follow_decisions)

    def refuse_costly(self) -> None:
        """Begin no picture more that may cost much: the server ends, and is not to wait for them."""
        self._costly.refuse()

    def close(self) -> None:
        """Let go of all threads; what waits is refused."""
        self._workers.close()
        for pool in self._pools:
            pool.close()
        self.live.close()

    async def run(
        self, function: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """The value of a blocking function, called in a small pool of threads.

        Raises:
            BusyError: too many calls wait, or it took too long.
        """
        return await self._wait(self._readers.submit(partial(function, *args, **kwargs)))

    async def look_up(
        self, function: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """As `run`, of what looks a condition up: that may take seconds, and no picture is to wait for it."""
        return await self._wait(self._lookups.submit(partial(function, *args, **kwargs)))

    async def run_costly(self, function: Callable[[], Value]) -> Value:
        """As `run`, of what decodes a picture that may cost much: one at a time, and nothing else waits for it."""
        return await self._wait(self._costly.submit(function))

    async def _wait(self, future: Future[Value]) -> Value:
        try:
            async with asyncio.timeout(self._left_s()):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            seconds = f"{self.config.request_s:g} seconds"
            if future.cancel():  # nothing of it was begun
                raise BusyError(f"this waited for {seconds} and was not begun; try again in a moment") from error
            raise TimedOutError(f"this takes more than {seconds}; nobody waits for it any more") from error
        finally:
            del future  # which holds the error, whose traceback holds this frame

    def _left_s(self) -> float:
        """Seconds that a wait may take; all those of a search have one end."""
        return max(_end.get() - time.monotonic(), 0.0) if _end.get() else self.config.request_s

    async def embed(self, snapshot: Snapshot, data: bytes, *, name: str) -> Vectors:
        """The (D,) float32 unit vector of the bytes of a photo."""
        check_upload(data, name=name, config=self.config)
        preprocess, most = snapshot.gallery.embedder.contract.preprocess, self.config.max_upload_pixels
        read = partial(read_pixels, data, name=name, preprocess=preprocess, max_pixels=most)
        return await self._embed(snapshot, read, name=name)

    async def keep_photo(self, data: bytes, *, name: str) -> Photo:
        """Embed a photo and keep it for later queries.

        Raises:
            ImageError, InputError, BusyError: as `embed`.
        """
        snapshot, name = self.snapshot(), printable_path(name)
        check_upload(data, name=name, config=self.config)
        embedder, most = snapshot.gallery.embedder, self.config.max_upload_pixels
        read = partial(read_pixels, data, name=name, preprocess=embedder.contract.preprocess, max_pixels=most)
        encode = partial(encode_kept, data, name=name, max_pixels=most)
        try:
            vector = await self._embed_read(snapshot, partial(read, cheap_only=True), name)
            kept = await self.run(encode, cheap_only=True)
        except OutOfTurnError:  # both in one turn: who waited for the first is not refused the second
            pixels, kept = await self.run_costly(lambda: (read(), encode()))
            vector = await self._embed_read(snapshot, lambda: pixels, name)
        picture, size = kept
        photo = Photo(secrets.token_hex(16), name, *size, picture, vector, embedder.sha256)
        await self.run(self._photos.put, photo)
        return photo

    async def photo(self, token: str) -> Photo:
        """A photo that is kept; a thread looks for it, as another process may be writing."""
        photo = await self.run(self._photos.get, token)
        if photo is None:
            raise UnknownPhotoError
        return photo

    async def search(self, snapshot: Snapshot, query: SearchQuery, *, upload: Upload | None = None) -> Ranking:
        """The members most like what the query asks for.

        Args:
            upload: the photo beside the query, which then has one `QueryPart()`.

        Raises:
            InputError: a query that no answer is given to, an image or photo that is unknown, or too many bytes.
            ImageError: the photo, or a picture of which a part is asked for, cannot be read.
            BusyError: too much waits, or it took too long.
        """
        snapshot = snapshot.by(query.by)
        gallery, watch = snapshot.gallery, watching.get()
        times = SearchTimes(query, gallery)
        if watch is not None:
            watch.searches.append(times)
        outer = _end.set(time.monotonic() + self.config.request_s)
        try:
            if query.where is not None:
                if not gallery.remembers(query.where):
                    await self.look_up(gallery.keep, query.where)  # is to hold up no other search
                times.mark("condition")
            if upload is None:
                vectors = tuple([await self._find_vector(snapshot, part) for part in query.parts])
                times.mark("vectors")
            else:
                vectors = (await self.embed(snapshot, upload.data, name=upload.name),)
                embed_s = times.mark("vectors")
                if watch is not None:
                    watch.embed_s += embed_s
            duplicates = await self._find_duplicates(snapshot) if query.group_copies else None
            times.mark("duplicates")
            task = SearchTask(snapshot, query, vectors, duplicates, times)
            is_begun = upload is not None or any(
                part.crop is not None for part in query.parts
            )  # the model has run
            submitted = self._workers.submit(self.searches_lane, task, timeout_s=self._left_s(), is_begun=is_begun)
            ranking = await self._wait(submitted)
        finally:
            _end.reset(outer)
            times.end()
        return replace(ranking, grouped=duplicates is not None) if query.group_copies else ranking

    async def _find_duplicates(self, snapshot: Snapshot) -> DuplicateReport | None:
        """The groups of near-duplicates; None where finding them takes longer than a moment."""
        duplicates = snapshot.insights.duplicates
        if duplicates.state == "computing":
            wait_s = self.config.duplicates_wait_s
            duplicates = await self.run(partial(snapshot.insights.wait, "duplicates", timeout=wait_s))
        return duplicates.value

    async def picture(self, snapshot: Snapshot, image_id: int, *, side: int = PICTURE_SIDE) -> bytes:
        """A WebP of one member, at most `side` pixels long, from re-encoded pixels."""
        key = (snapshot.gallery.digest, image_id, side)
        if (picture := self._pictures.get(key)) is None:
            encode = partial(encode_picture, snapshot.gallery, image_id, side=side)
            try:
                picture = await self.run(encode, cheap_only=True)
            except OutOfTurnError:
                picture = await self.run_costly(encode)
            self._pictures.put(key, picture)
        return picture

    async def _find_vector(self, snapshot: Snapshot, part: QueryPart) -> Vectors | None:
        """The unit vector of a part of a query; None where it is read with the search."""
        gallery = snapshot.gallery
        if part.vector is not None:
            return normalise(part.vector, width=gallery.width)
        if part.photo is not None:
            photo = await self.photo(part.photo)
            is_known = gallery.output == KIND and photo.model_sha256 == gallery.embedder.sha256
            if part.crop is None and is_known:
                return photo.vector
            return await self._embed_part(snapshot, part.crop or Crop(0, 0, 1, 1), of=photo)
        return None if part.crop is None else await self._embed_part(snapshot, part.crop, of=part.image_id or 0)

    async def _embed_part(self, snapshot: Snapshot, crop: Crop, *, of: Photo | int) -> Vectors:
        """The unit vector of a part of a photo or member; the last ones are kept, for the next pages of results."""
        gallery = snapshot.gallery
        whole = of.token if isinstance(of, Photo) else (gallery.digest, of)
        key = (gallery.embedder.sha256, gallery.output, crop, whole)
        vector = self._crops.get(key)
        if vector is None:
            if isinstance(of, Photo):
                name, data = of.name, of.picture
            else:
                name, data = await self.run(read_original, gallery, of)
            preprocess = gallery.embedder.contract.preprocess
            read = partial(read_pixels, data, name=name, preprocess=preprocess, max_pixels=MAX_PIXELS, crop=crop)
            vector = await self._embed(snapshot, read, name=name)
            self._crops.put(key, vector)
        return vector

    async def _embed(self, snapshot: Snapshot, read: Callable[..., Pixels], *, name: str) -> Vectors:
        """The vector of the pixels that `read` gives; what may cost much is decoded before a worker's turn."""
        try:
            return await self._embed_read(snapshot, partial(read, cheap_only=True), name)
        except OutOfTurnError:
            pixels = await self.run_costly(read)
        return await self._embed_read(snapshot, lambda: pixels, name)

    async def _embed_read(self, snapshot: Snapshot, read: Callable[[], Pixels], name: str) -> Vectors:
        embedding = _Embedding(snapshot, read, name)
        return await self._wait(self._workers.submit(self.photos_lane, embedding, timeout_s=self._left_s()))

    def _embed_pictures(self, tasks: Sequence[_Embedding]) -> list[Vectors | Exception]:
        """The unit vector of each picture, or why there is none."""
        answers: list[Vectors | Exception] = []
        pixels: dict[int, Pixels] = {}
        for number, task in enumerate(tasks):
            refusal = ImageError(
                path=task.name, reason="bad-embedding", detail="the model gave no finite unit vector"
            )
            answers.append(refusal)
            try:
                pixels[number] = task.read()
            except RetrievalError as error:
                answers[number] = error
        if not pixels:
            return answers
        snapshot = tasks[0].snapshot
        embedder = snapshot.gallery.embedder
        if len(pixels) == 1 and self._workers.is_alone:
            embedder = snapshot.wide_embedder.giving(*embedder.outputs)
        vectors = embedder.embed_batch(np.stack(list(pixels.values())))
        for number, vector, usable in zip(pixels, vectors, embedder.are_usable(vectors), strict=True):
            if usable:
                answers[number] = vector
        return answers
