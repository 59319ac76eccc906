"""Where the gallery of images is, when nobody says where: beside them."""

from __future__ import annotations

import os
from pathlib import Path

from index.errors import InputError
from index.marks import BESIDE
from index.network.stores import is_address
from index.sources.table_columns import split_address
from index.text import printable_path


def gallery_beside(source: str | Path) -> Path:
    """`photos-gallery` of the folder `photos`, of `photos.tar`, and of `photos.csv`.

    Raises:
        InputError: the source is not there, or has no name of its own: a pattern, or the root of a disk.
    """
    if is_address(str(source)):
        raise InputError(f"{printable_path(str(source))}: say where the gallery of it shall be: --out GALLERY")
    path = Path(os.path.abspath(split_address(str(source))[0]))
    name = path.name if path.is_dir() else path.stem
    if not path.exists() and not any(sign in str(source) for sign in "*?["):
        raise InputError(f"{printable_path(str(source))}: no such file or folder")
    if not name or not path.exists():
        raise InputError(
            f"{printable_path(str(source))}: say where the gallery of it shall be; a folder or a file has one beside it"
        )
    return path.with_name(name + BESIDE)
