"""The demo's catalogue: sixty named kinds of object, as many pictures of each as wanted, all drawn here."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from index.errors import InputError
from index.progress import Progress, no_progress
from retrieval_app.demo.drawing import animals, belongings, household, plants, radial, vehicles, vessels
from retrieval_app.demo.drawing.scene import render_scene
from retrieval_app.demo.drawing.sketch import Part, Pen

_FAMILIES = (vessels, radial, vehicles, animals, plants, household, belongings)
_DRAWERS: dict[str, Callable[[Pen], None]] = {
    name.removeprefix("draw_").replace("_", "-"): drawer
    for family in _FAMILIES
    for name, drawer in vars(family).items()
    if name.startswith("draw_")
}

KINDS: tuple[str, ...] = tuple(_DRAWERS)
"""The names, family by family with look-alikes side by side, so that `KINDS[0::2]` and `KINDS[1::2]` split
every family between them."""

_JPEG_END = b"\xff\xd9"


def draw_picture(kind: str, *, rng: np.random.Generator, size: int = 96) -> Image.Image:
    """Draw one RGB picture of a kind, `size` by `size` pixels, its look decided by `rng`.

    Raises:
        InputError: the kind is not one of `KINDS`.
    """
    return render_scene(sketch_kind(kind, rng), rng=rng, size=size)


def sketch_kind(kind: str, rng: np.random.Generator) -> list[Part]:
    """Sketch one object of a kind, its proportions decided by `rng`.

    Raises:
        InputError: the kind is not one of `KINDS`.
    """
    if kind not in _DRAWERS:
        raise InputError(f"cannot draw {kind!r}: expected one of the {len(KINDS)} kinds {', '.join(KINDS)}")
    pen = Pen(rng)
    _DRAWERS[kind](pen)
    return pen.parts


def draw_catalogue(
    folder: Path,
    *,
    kinds: Sequence[str],
    pictures_per_kind: int,
    seed: int,
    size: int = 96,
    progress: Progress = no_progress,
) -> None:
    """Write `folder/<kind>/<kind>-000.jpg` and so on, keeping complete pictures that are already there.

    A picture depends on the seed, its kind and its number alone. `progress` is told (done, total).

    Raises:
        InputError: a kind is unknown, or the folder cannot be written.
    """
    total = len(kinds) * pictures_per_kind
    done = 0
    for kind in kinds:
        for number in range(pictures_per_kind):
            path = folder / kind / f"{kind}-{number:03d}.jpg"
            rng = np.random.default_rng([seed, number, *kind.encode()])
            try:
                if not _is_complete(path):
                    _write_picture(draw_picture(kind, rng=rng, size=size), path)
            except OSError as error:
                raise InputError(
                    f"cannot write the picture {path}: {error.strerror or error}; choose another folder"
                ) from error
            done += 1
            progress(done, total)


def _is_complete(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-len(_JPEG_END), os.SEEK_END)
            return file.read() == _JPEG_END
    except OSError:
        # Missing, or too short to hold the end marker: to be drawn. A folder at fault shows when it is written to.
        return False


def _write_picture(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    picture.save(partial, format="JPEG", quality=85)
    os.replace(partial, path)
