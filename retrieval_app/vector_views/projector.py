"""A gallery for the Embedding Projector: a folder that `tensorboard --logdir` shows."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from index.durable import write_durably
from index.errors import InputError
from index.gallery.export_vectors import check_out, read_blocks
from index.gallery.gallery import Gallery
from index.outputs import KIND
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text
from retrieval_app.vector_views.thumbnails import read_thumbnails
from retrieval_app.vector_views.view_report import ViewReport

VECTORS, METADATA, SPRITE, CONFIG = "vectors.tsv", "metadata.tsv", "sprite.png", "projector_config.pbtxt"
COLUMNS = ("label", "path", "source", "id")
_SPRITE_SIDE = 8192  # of which browsers make a texture everywhere
_THUMBNAIL_SIDE, _SMALLEST_SIDE = 64, 8
_NO_PICTURE = (200, 200, 200)


def write_projector(
    path: Path, out: Path, *, by: str = KIND, thumbnails: bool = True, progress: Progress = no_progress
) -> ViewReport:
    """Write the vectors of a gallery's members, what they are, and small pictures of them.

    Args:
        out: the folder to make: vectors.tsv, metadata.tsv, sprite.png and projector_config.pbtxt.
        by: whose vectors, `kind` or `picture`.
        thumbnails: whether images are read; of more than a million no picture would be left of them.

    Raises:
        InputError: the gallery has no such vectors; `out` exists, lies in the gallery, or cannot be written.
        GalleryError: the gallery is missing, unfinished or damaged.
    """
    check_out([out], gallery=path)
    gallery = Gallery.open(path).by(by)
    side = _choose_side(gallery.count) if thumbnails else None
    with _new_folder(out):
        _write_rows(gallery, out, progress=no_progress if side else progress)
        pictures = 0 if side is None else _write_sprite(gallery, out, side=side, progress=progress)
        write_durably(out / CONFIG, _describe(side).encode())  # last: without it nothing is shown
    names = [VECTORS, METADATA, *([SPRITE] if side else []), CONFIG]
    return ViewReport(
        gallery=valid_text(str(gallery.path)), version=gallery.version, images=gallery.count,
        embedding_dim=gallery.width, pictures=pictures, files=[valid_text(str(out / name)) for name in names],
    )  # fmt: skip


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    shown = printable_path(str(out))
    try:
        out.mkdir()
    except OSError as error:  # which may be there by now, and is somebody else's
        raise InputError(f"{shown}: the folder cannot be made: {error.strerror or error}") from error
    try:
        yield
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)
        if isinstance(error, OSError):
            problem = f"cannot be written: {error.strerror or error}; nothing is left of it"
            raise InputError(f"{shown}: {problem}") from error
        raise


def _choose_side(count: int) -> int | None:
    """The pixels of a thumbnail's side, so many that all of them fit; None where there is no room for any."""
    side = min(_THUMBNAIL_SIDE, _SPRITE_SIDE // _across(count))
    return side if side >= _SMALLEST_SIDE else None


def _across(count: int) -> int:
    return math.isqrt(max(count, 1) - 1) + 1  # of a square that holds as many


def _write_rows(gallery: Gallery, out: Path, *, progress: Progress) -> None:
    with (
        (out / VECTORS).open("w", encoding="ascii", newline="\n") as vectors_file,
        (out / METADATA).open("w", encoding="utf-8", newline="\n") as metadata_file,
    ):
        metadata_file.write("\t".join(COLUMNS) + "\n")
        for rows, vectors in read_blocks(gallery, progress):
            for row, vector in zip(rows, vectors.tolist(), strict=True):
                vectors_file.write("\t".join(f"{value:.7g}" for value in vector) + "\n")
                texts = (row.label or "", row.path, gallery.roots[row.source], str(row.id))
                metadata_file.write("\t".join(_in_one_field(text) for text in texts) + "\n")


def _in_one_field(text: str) -> str:
    return " ".join(valid_text(text).split())  # of the format nothing can be quoted


def _write_sprite(gallery: Gallery, out: Path, *, side: int, progress: Progress) -> int:
    """The members' thumbnails, row by row in a square; how many could be read."""
    across, made = _across(gallery.count), 0
    sprite = Image.new("RGB", (across * side, across * side), _NO_PICTURE)
    for number, thumbnail in enumerate(read_thumbnails(gallery, side=side, progress=progress)):
        if thumbnail is not None:
            made += 1
            left, top = number % across * side, number // across * side
            sprite.paste(thumbnail, (left + (side - thumbnail.width) // 2, top + (side - thumbnail.height) // 2))
    file = io.BytesIO()
    sprite.save(file, format="PNG")
    write_durably(out / SPRITE, file.getvalue())
    return made


def _describe(side: int | None) -> str:
    lines = [f'  tensor_name: "gallery"\n  tensor_path: "{VECTORS}"\n  metadata_path: "{METADATA}"']
    if side is not None:
        lines.append(
            f'  sprite {{\n    image_path: "{SPRITE}"\n'
            f"    single_image_dim: {side}\n    single_image_dim: {side}\n  }}"
        )
    return "embeddings {\n" + "\n".join(lines) + "\n}\n"
