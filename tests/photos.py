"""Small real photos for tests: those of the demo, by kind and number."""

import io
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
    photos = _find_photos()[kind]
    again, number = divmod(number, len(photos))
    with PHOTOS.open("rb") as file:
        file.seek(photos[number].offset_data)
        data = io.BytesIO(file.read(photos[number].size))
    photo = Image.open(data).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
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
def _find_photos() -> dict[str, list[tarfile.TarInfo]]:
    """By kind, in the order of their names; read once, as an archive is searched from its beginning."""
    photos: dict[str, list[tarfile.TarInfo]] = {}
    with tarfile.open(PHOTOS) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            photos.setdefault(Path(member.name).parent.name, []).append(member)
    return photos
