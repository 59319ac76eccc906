"""Which galleries `retrieval serve` is to serve: one, several with names, or those of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from index.commands.images_or_gallery import settle_gallery
from index.marks import BESIDE
from index.versions.gallery_identity import Standing, recognise
from retrieval_app.server.options import ServedGallery, check_names


def choose_galleries(given: Sequence[str]) -> tuple[ServedGallery, ...]:
    """The galleries that are meant by the arguments of the command; those of images are made.

    One argument is a gallery, or images, or a folder of nothing but galleries; NAME=GALLERY gives a name, and where
    there are several arguments those without one have that of their folder.

    Raises:
        InputError: two have one name, or a name cannot be one.
        GalleryError: as `settle_gallery`.
    """
    if len(given) == 1 and (listed := list_galleries(Path(given[0]))):
        return tuple(ServedGallery(path, _name(path)) for path in listed)
    named = [_split(text) for text in given]
    if len(named) > 1:
        named = [(name or _name(Path(path)), path) for name, path in named]
    check_names(tuple(ServedGallery(Path(path), name) for name, path in named))  # before any is made
    return tuple(ServedGallery(settle_gallery(Path(path)), name) for name, path in named)


def list_galleries(folder: Path) -> list[Path]:
    """The galleries that lie side by side in a folder which holds nothing else; none where it is another folder."""
    if not folder.is_dir() or recognise(folder) is not Standing.FOREIGN:
        return []
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    galleries = [
        path for path in inside if path.is_dir() and recognise(path) in (Standing.MARKED, Standing.PROVEN)
    ]
    return galleries if len(galleries) == len(inside) else []


def _name(path: Path) -> str:
    """`shop` of the folder `shop`, and of the gallery beside it."""
    return Path(os.path.abspath(path)).name.removesuffix(BESIDE)


def _split(text: str) -> tuple[str | None, str]:
    """The name and the path of an argument; a path may hold the sign too."""
    name, sign, path = text.partition("=")
    return (name, path) if sign and path and not Path(text).exists() else (None, text)
