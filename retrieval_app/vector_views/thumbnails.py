"""Small pictures of a gallery's members, many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from PIL import Image

from index.errors import ImageError, InputError
from index.gallery.gallery import Gallery
from index.progress import Progress, no_progress
from index.threads import usable_cores
from retrieval_app.serving.pictures import decode_in_turn, read_original

_AT_ONCE = 256  # that wait in memory to be taken


def read_thumbnails(
    gallery: Gallery, *, side: int, progress: Progress = no_progress
) -> Iterator[Image.Image | None]:
    """One for every member in id order, RGB, at most `side` pixels a side; None where the image cannot be read."""
    ids, done = iter(gallery.ids.tolist()), 0
    with ThreadPoolExecutor(usable_cores()) as threads:
        while block := list(islice(ids, _AT_ONCE)):
            for thumbnail in threads.map(partial(_read, gallery, side), block):
                yield thumbnail
                progress(done := done + 1, gallery.count)


def _read(gallery: Gallery, side: int, image_id: int) -> Image.Image | None:
    try:
        name, data = read_original(gallery, image_id)
        image = decode_in_turn(data, name=name, target_side=side)
    except (InputError, ImageError):  # gone, or another by now: its vector is still worth showing
        return None
    image.thumbnail((side, side))
    return image.convert("RGB")
