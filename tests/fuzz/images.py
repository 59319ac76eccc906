"""Damaged images of every format: each is RGB or a known reason, within bounds of processor time and memory."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from tests.fuzz.bounded import Subject, start_subject
from tests.fuzz.mutations import mutate
from tests.index.costly import (
    gif_of_a_comment,
    gif_of_empty_extensions,
    jpeg_of_scans,
    png_of_chunks,
    png_of_exif_tags,
    png_of_prefixes,
    tiff_of_many_strips,
    tiff_of_many_tags,
    tiff_of_one_tile,
)
from tests.index.hostile import PHOTO, SECOND, contents, encode

_SMALL = (40, 30)


def image_seeds() -> list[bytes]:
    """The hostile folder's files that are not large, and small images in many ways of every format."""
    small, second = PHOTO.resize(_SMALL), SECOND.resize(_SMALL)
    more = {"save_all": True, "append_images": [second]}
    made = [
        encode(small, "TIFF", compression=compression)
        for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
    ]
    made += [encode(small, kind, **more) for kind in ("GIF", "WEBP", "PNG", "TIFF", "MPO", "AVIF")]
    made += [encode(small, "JPEG", progressive=True), encode(small, "JPEG", restart_marker_blocks=1)]
    made += [encode(small, "WEBP", lossless=True), encode(small.convert("RGBA"), "WEBP")]
    made += [encode(small.convert(mode), "TIFF") for mode in ("1", "L", "P", "CMYK", "I", "F", "LAB", "YCbCr")]
    made += [encode(small.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA", "I;16")]
    made += [encode(small.convert("1"), "TIFF", compression=kind) for kind in ("group3", "group4")]
    made.append(encode(Image.new("RGB", (2000, 2000), "red"), "PNG"))
    made += [tiff_of_one_tile(26_000), tiff_of_one_tile(200), tiff_of_many_strips(3000), tiff_of_many_tags(50, 1000)]
    made += [jpeg_of_scans(500, 300), jpeg_of_scans(32, 20), gif_of_a_comment(20_000), gif_of_empty_extensions(2000)]
    made += [png_of_chunks(200, name=b"tEXt", body=b"a\0b"), png_of_prefixes(100), png_of_exif_tags(50, 500)]
    return [*made, *(content for content, _ in contents().values() if 0 < len(content) < 200_000)]


class ImageAttack:
    def __init__(self, subject: Subject) -> None:
        self._subject, self._seeds = subject, image_seeds()

    def attack(self, chance: random.Random) -> str:
        return self._subject.attack(mutate(self._seeds, chance), suffix=".image")

    def check(self) -> None:
        """All is said of each image."""


@contextmanager
def attack_images(folder: Path) -> Iterator[ImageAttack]:
    with start_subject("images", folder=folder) as subject:
        yield ImageAttack(subject)
