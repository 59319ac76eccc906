"""A gallery, or images that are to be searched at once: theirs is beside them, and is made where there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from index.commands.build_text import describe_build, indexing_bars
from index.public import build


def settle_gallery(path: Path) -> Path:
    """`path`, if it is a gallery or nothing at all; else the gallery beside the images that it holds, made if need be.

    What is made, and where, is said on stderr. A making that was stopped goes on.

    Raises:
        InputError: none of the images is usable, or the gallery cannot be made there.
        GalleryError: what is beside the images is no gallery, is one of other images, or is damaged.
        ModelFileError: the model that comes with the package is missing or damaged.
    """
    from index.errors import InputError
    from index.model.in_the_box import find_model
    from index.sources.beside import gallery_beside
    from index.text import printable_path

    if not _holds_images(path):
        return path
    gallery = gallery_beside(path)
    near = gallery.relative_to(Path.cwd()) if gallery.is_relative_to(Path.cwd()) else gallery
    shown, images, is_new = printable_path(str(near)), printable_path(str(path)), not gallery.exists()
    if _is_finished(gallery, of=path):
        click.echo(f"{images} has the gallery {shown}; after changes: retrieval index update {shown}", err=True)
        return gallery
    model = find_model(None)
    click.echo(
        f"{images} has no gallery yet: {shown} is made, with the model that comes with the package", err=True
    )
    try:
        with indexing_bars() as (progress, begin_step):
            report = build(model, path, gallery, progress=progress, begin_step=begin_step)
    except InputError:  # no image is usable: what was named was rather something else
        if is_new:
            shutil.rmtree(gallery, ignore_errors=True)
        raise
    click.echo(describe_build(report, out=near), err=True)
    return gallery


def _holds_images(path: Path) -> bool:
    """Whether it is a folder, an archive, a table or a list, and no gallery; one image alone is rather a query."""
    from index.sources.one_file import FileSource
    from index.sources.registry import find_source
    from index.versions.gallery_identity import Standing, recognise

    if path.is_dir():
        return recognise(path) is Standing.FOREIGN
    return path.is_file() and not isinstance(find_source(str(path)), FileSource)


def _is_finished(gallery: Path, *, of: Path) -> bool:
    """Whether there is a version of a gallery of these images.

    Raises:
        GalleryError: it is of other images, or cannot be opened.
    """
    from index.errors import GalleryError
    from index.public import open_gallery
    from index.text import printable_path
    from index.versions.versions import read_current

    if not gallery.is_dir() or read_current(gallery) is None:
        return False
    known = {source.location for source in open_gallery(gallery).sources.values()}
    if os.path.abspath(of) not in known:
        raise GalleryError(
            printable_path(str(gallery)),
            f"a gallery, but not of {printable_path(str(of))}; name it to search it, or make the other with "
            "`retrieval index build` and --out",
        )
    return True
