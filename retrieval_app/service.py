"""One image to ranked results: what every page or API of the project asks, with no page in it.

A query is named by a short text, its `ref`: `member:12` is image 12 of the gallery, `upload:<token>` a photo
somebody brought. Uploads are decoded and embedded once; a small picture and the vector are kept, in memory only.
"""

from __future__ import annotations

import io
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from PIL import Image

from index.archive_members import read_place
from index.embedder import Vectors
from index.errors import ImageError, InputError, RetrievalError
from index.gallery import Gallery
from index.hits import GalleryImage, Hit
from index.images import REASONS, decode_image, printable_path

MAX_RESULTS = 1000
MAX_UPLOAD_BYTES = 20 * 1024 * 1024
MAX_UPLOAD_PIXELS = 60_000_000  # a small file can hold many; less than a folder's image may have
THUMBNAIL_SIDE = 256
THUMBNAILS_KEPT = 1024  # about 10 kB each
UPLOADS_KEPT = 256

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for. `image_id` and `label` are those of a gallery image, None for an upload."""

    ref: str
    title: str
    image_id: int | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits for one query, best first, and the milliseconds the search took."""

    query: Query
    hits: tuple[Hit, ...]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class _Upload:
    query: Query
    vector: Vectors
    thumbnail: bytes


class _RecentlyUsed(Generic[Value]):
    """The most recently used values of a bounded number, safe among threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: str, value: Value) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._capacity:
                self._values.popitem(last=False)


class SearchService:
    """Searches one opened gallery, by its own images and by photos from outside."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self._uploads: _RecentlyUsed[_Upload] = _RecentlyUsed(UPLOADS_KEPT)
        self._thumbnails: _RecentlyUsed[bytes] = _RecentlyUsed(THUMBNAILS_KEPT)

    def hold_upload(self, data: bytes, *, name: str) -> Query:
        """Decode and embed the bytes of a photo, and keep it among the recent ones for `search`.

        Raises:
            ImageError: it cannot be decoded or embedded, or has more than `MAX_UPLOAD_PIXELS`.
            InputError: more than `MAX_UPLOAD_BYTES`.
        """
        name = printable_path(name)
        if len(data) > MAX_UPLOAD_BYTES:
            limit = MAX_UPLOAD_BYTES // 1024**2
            raise InputError(
                f"{name}: {len(data) / 1024**2:.1f} MB, at most {limit} MB are taken; use a smaller copy"
            )
        embedder = self.gallery.embedder
        # Decoded as the gallery's images were: twice this side is kept, which is enough for the thumbnail too.
        side = max(embedder.contract.preprocess.resize, THUMBNAIL_SIDE // 2)
        image = decode_image(data, name=name, target_side=side, max_pixels=MAX_UPLOAD_PIXELS)
        vector = embedder.embed_image(image, name=name)
        thumbnail = _encode_thumbnail(image)
        token = secrets.token_hex(8)
        query = Query(ref=f"upload:{token}", title=name)
        self._uploads.put(token, _Upload(query, vector, thumbnail))
        return query

    def search_member(self, image_id: int, *, k: int) -> SearchResult:
        """The k images most like one of the gallery, which is not among its own results.

        Raises:
            InputError: no such image, or k out of range.
        """
        _check_count(k)
        started = time.perf_counter()
        image = self.gallery.image(image_id)
        hits = self.gallery.search(self.gallery.vector(image_id), k=k, exclude_id=image_id)
        query = Query(ref=f"member:{image_id}", title=image.path, image_id=image_id, label=image.label)
        return SearchResult(query, tuple(hits), _milliseconds_since(started))

    def search(self, ref: str, *, k: int) -> SearchResult:
        """Search for a query by its `ref`.

        Raises:
            InputError: no such query, an upload that is no longer kept, or k out of range.
        """
        kind, _, value = ref.partition(":")
        if kind == "member" and value.isascii() and value.isdigit() and len(value) < 19:
            return self.search_member(int(value), k=k)
        if kind != "upload":
            raise InputError(f"a query is 'member:<id>' or 'upload:<token>', got {printable_path(ref)!r}")
        _check_count(k)
        upload = self._upload(value)
        started = time.perf_counter()
        hits = self.gallery.search(upload.vector, k=k)
        return SearchResult(upload.query, tuple(hits), _milliseconds_since(started))

    def thumbnail(self, image_id: int) -> bytes:
        """A WebP of one gallery image, at most 256 pixels a side, from re-encoded pixels.

        Raises:
            InputError: no such image, or its file is gone.
            ImageError: its file is no longer a readable image.
        """
        key = str(image_id)
        data = self._thumbnails.get(key)
        if data is None:
            place = self.gallery.place(image_id)
            image = decode_image(read_place(place), name=place.name, target_side=THUMBNAIL_SIDE)
            data = _encode_thumbnail(image)
            self._thumbnails.put(key, data)
        return data

    def upload_thumbnail(self, token: str) -> bytes:
        """A WebP of a kept upload, at most 256 pixels a side.

        Raises:
            InputError: no such upload, or no longer kept.
        """
        return self._upload(token).thumbnail

    def sample(self, count: int, *, seed: int) -> list[GalleryImage]:
        """Some images of the gallery to start from; the same ones for the same seed."""
        return self.gallery.sample(count, seed=seed)

    def _upload(self, token: str) -> _Upload:
        upload = self._uploads.get(token)
        if upload is None:
            raise InputError("this photo is no longer kept by the server; upload it again")
        return upload


def explain(error: RetrievalError) -> str:
    """The error's message for somebody who looks at a page: reasons in words, no codes."""
    if not isinstance(error, ImageError):
        return str(error)
    if error.reason == "too-many-pixels":
        return f"{error.path}: {error.detail}; use a smaller copy"
    words = f"{error.path}: {REASONS.get(error.reason, error.reason)}"
    return words if error.reason == "not-an-image" else f"{words} ({error.detail})"


def _check_count(k: int) -> None:
    if not 1 <= k <= MAX_RESULTS:
        raise InputError(f"the number of results must be in 1..{MAX_RESULTS}, got {k}")


def _milliseconds_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def _encode_thumbnail(image: Image.Image) -> bytes:
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    file = io.BytesIO()
    image.save(file, format="WEBP", quality=80)
    return file.getvalue()
