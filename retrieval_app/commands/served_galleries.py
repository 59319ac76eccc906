"""Galleries that `retrieval serve` serves: one, several with names, or those of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from mimetypes import guess_type
from pathlib import Path

from index.commands.images_or_gallery import settle_gallery
from index.errors import InputError
from index.marks import BESIDE
from index.text import printable_path
from index.versions.gallery_identity import Standing, recognise
from retrieval_app.server.options import ServedGallery, check_names

_GALLERIES = (Standing.MARKED, Standing.DAMAGED)  # of which the last is told when it is opened


def choose_galleries(given: Sequence[str]) -> tuple[ServedGallery, ...]:
    """The galleries that are meant by the arguments of the command; those of images are made.

    One argument is a gallery, or images, or a folder of galleries; NAME=GALLERY gives a name, and where
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
    """The galleries that lie side by side in a folder which holds no images; none where it is another folder.

    Raises:
        InputError: there are images beside galleries.
    """
    if not folder.is_dir() or recognise(folder) is not Standing.FOREIGN:
        return []
    galleries, images = list[Path](), list[Path]()
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if not path.is_dir():
            images += [path] if (guess_type(path.name)[0] or "").startswith("image/") else []
        elif recognise(path) in _GALLERIES:
            galleries.append(path)
        else:
            return []
    if galleries and images:
        raise InputError(
            f"{printable_path(str(folder))}: galleries lie beside {printable_path(images[0].name)}, so it is neither a "
            "folder of galleries nor one of images: move it away, or name the galleries one by one"
        )
    return galleries


def _name(path: Path) -> str:
    """`shop` of the folder `shop`, and of the gallery beside it."""
    return Path(os.path.abspath(path)).name.removesuffix(BESIDE)


def _split(text: str) -> tuple[str | None, str]:
    """The name and the path of an argument; a path may hold the sign too."""
    name, sign, path = text.partition("=")
    is_named = sign and path and "/" not in name and not Path(text).exists()
    return (name, path) if is_named else (None, text)
