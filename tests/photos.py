"""Small real photos for tests: those of the demo, by kind and number."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image, ImageEnhance

import retrieval_app.demo

PHOTOS = Path(retrieval_app.demo.__path__[0], "photos.tar")
KINDS = ("shoes", "lime", "dress", "satsumas", "outwear", "pineapple", "polo", "cabbage", "vine-tomato", "skirt")
"""Some that are easy to tell apart, and some of clothes, that are not."""
_OF_SEED = 30  # photos of a kind that another seed begins with


def read_photo(kind: str, number: int, *, size: int = 96) -> Image.Image:
    """A photo of a kind, stretched to `size` by `size` pixels; after the last one they come mirrored, then darker."""
    names = _list_names()[kind]
    again, number = divmod(number, len(names))
    with tarfile.open(PHOTOS) as archive:
        file = archive.extractfile(names[number])
        assert file is not None
        photo = Image.open(file).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    if again % 2:
        photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return ImageEnhance.Brightness(photo).enhance(0.85 ** (again // 2))


def write_photos(folder: Path, *, kinds: Sequence[str], pictures_per_kind: int, seed: int, size: int = 96) -> None:
    """Write `folder/<kind>/<kind>-000.jpg` and so on."""
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(pictures_per_kind):
            photo = read_photo(kind, _OF_SEED * seed + number, size=size)
            photo.save(folder / kind / f"{kind}-{number:03d}.jpg", quality=85)


@cache
def _list_names() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    with tarfile.open(PHOTOS) as archive:
        for name in sorted(archive.getnames()):
            names.setdefault(Path(name).parent.name, []).append(name)
    return names
