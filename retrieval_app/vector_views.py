"""Exports of a gallery for viewers: a Parquet file for embedding-atlas, a folder for the Embedding Projector."""

import io
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from index.arrays import Ids, Vectors
from index.durable import replacing, write_durably
from index.errors import ImageError, InputError
from index.gallery.export_vectors import ExportReport, check_out, naming_out, read_blocks
from index.gallery.gallery import Gallery
from index.outputs import SEMANTIC
from index.progress import Progress, no_progress
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text
from index.threads import map_ahead, usable_cores
from index.vectors.exact import search
from retrieval_app.insights.map_layout import MapLayout, lay_out
from retrieval_app.serving.thumbnails import decode_in_turn, read_original

_AT_ONCE = 256  # thumbnails that wait in memory
VECTORS, METADATA, SPRITE, CONFIG = "vectors.tsv", "metadata.tsv", "sprite.png", "projector_config.pbtxt"
COLUMNS = ("label", "path", "source", "id")
_SPRITE_SIDE = 8192  # the largest texture of all browsers
_THUMBNAIL_SIDE, _SMALLEST_SIDE = 64, 8
_NO_IMAGE = (200, 200, 200)
THUMBNAIL_SIDE = 96
_NEIGHBOURS = 15  # the default of embedding-atlas
_BETWEEN = 3  # members of the map whose mean is the place of one that was not laid out
TEXTS = ("label", "path", "source", "metadata")


def read_thumbnails(gallery: Gallery, *, side: int, progress: Progress = no_progress) -> Iterator[Image.Image | None]:
    """RGB thumbnails of all members in id order, at most `side` pixels a side; None where an image cannot be read."""
    read = partial(_read, gallery, side)
    thumbnails = map_ahead(read, gallery.ids.tolist(), workers=usable_cores(), ahead=_AT_ONCE)
    for done, thumbnail in enumerate(thumbnails, start=1):
        yield thumbnail
        progress(done, gallery.count)


def _read(gallery: Gallery, side: int, image_id: int) -> Image.Image | None:
    try:
        name, data = read_original(gallery, image_id)
        image = decode_in_turn(data, name=name, target_side=side)
    except (InputError, ImageError):  # gone or changed: its vector is still worth showing
        return None
    image.thumbnail((side, side))
    return image.convert("RGB")


def write_projector(
    path: Path, out: Path, *, by: str = SEMANTIC, thumbnails: bool = True, progress: Progress = no_progress
) -> ExportReport:
    """Write the vectors, rows and thumbnails of a gallery's members for the Embedding Projector.

    `out` is a new folder for vectors.tsv, metadata.tsv, sprite.png and projector_config.pbtxt. More than a million
    images get no thumbnails, as too few pixels would be left of each.
    """
    check_out([out], gallery=path)
    gallery = Gallery.open(path).by(by)
    room = min(_THUMBNAIL_SIDE, _SPRITE_SIDE // _across(gallery.count))
    side = room if thumbnails and room >= _SMALLEST_SIDE else None
    with _new_folder(out):
        _write_rows(gallery, out, progress=no_progress if side else progress)
        pictures = 0 if side is None else _write_sprite(gallery, out, side=side, progress=progress)
        write_durably(out / CONFIG, _describe(side).encode())  # last: without it nothing is shown
    names = [VECTORS, METADATA, *([SPRITE] if side else []), CONFIG]
    return ExportReport.of(gallery, [out / name for name in names], thumbnails=pictures)


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    try:
        out.mkdir()  # it may be there by now, and is somebody else's
    except OSError as error:
        raise InputError(f"{printable_path(str(out))}: cannot be made: {error.strerror or error}") from error
    with naming_out(out):
        try:
            yield
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise


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
                # Of the format nothing can be quoted.
                metadata_file.write("\t".join(" ".join(valid_text(text).split()) for text in texts) + "\n")


def _write_sprite(gallery: Gallery, out: Path, *, side: int, progress: Progress) -> int:
    """Write the thumbnails row by row into a square; the number that could be read."""
    across, made = _across(gallery.count), 0
    sprite = Image.new("RGB", (across * side, across * side), _NO_IMAGE)
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
            f'  sprite {{\n    image_path: "{SPRITE}"\n    single_image_dim: {side}\n    single_image_dim: {side}\n  }}'
        )
    return "embeddings {\n" + "\n".join(lines) + "\n}\n"


def write_atlas(
    path: Path,
    out: Path,
    *,
    by: str = SEMANTIC,
    thumbnails: bool = True,
    laying_out: Progress = no_progress,
    writing: Progress = no_progress,
) -> ExportReport:
    """Write the map, neighbours, rows and vectors of a gallery's members for embedding-atlas.

    Args:
        out: `NAME.parquet` with the columns x, y, in_map, id, label, path, source, metadata, vector, neighbors
            ({"ids", "distances"}: rows of the file, nearest first) and, with `thumbnails`, image ({"bytes", "path"}).
            `in_map` is false for members beyond the 10,000 of the map: they lie amid their nearest ones.
        by: the output whose vectors are written, `semantic` or `copy`.
    """
    if out.suffix.lower() != ".parquet":
        raise InputError(f"{printable_path(str(out))}: expected a name that ends in .parquet")
    import_pyarrow("writing Parquet")
    check_out([out], gallery=path)
    gallery = Gallery.open(path, threads=usable_cores()).by(by)
    layout = lay_out(gallery, laying_out)
    with naming_out(out):
        pictures = _write(gallery, out, layout=layout, thumbnails=thumbnails, progress=writing)
    return ExportReport.of(gallery, [out], thumbnails=pictures)


def _write(gallery: Gallery, out: Path, *, layout: MapLayout, thumbnails: bool, progress: Progress) -> int:
    pyarrow = import_pyarrow("writing Parquet")
    schema = _make_schema(gallery.width, thumbnails=thumbnails)
    pictures = read_thumbnails(gallery, side=THUMBNAIL_SIDE) if thumbnails else iter(())
    shown_ids = np.array(layout.ids, dtype=np.int64)
    laid_out, places = gallery.vectors(shown_ids), np.stack([layout.x, layout.y], axis=1, dtype=np.float32)
    made = 0
    with replacing(out) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        for rows, vectors in read_blocks(gallery, progress):
            ids = np.array([row.id for row in rows], dtype=np.int64)
            in_map = np.isin(ids, shown_ids)
            xy = np.empty((len(ids), 2), dtype=np.float32)
            xy[in_map] = places[np.searchsorted(shown_ids, ids[in_map])]
            if not in_map.all():
                near = search(vectors[~in_map], laid_out, k=min(_BETWEEN, len(laid_out)))
                xy[~in_map] = places[near.rows].mean(axis=1)
            texts = zip(
                *((row.label, valid_text(row.path), gallery.roots[row.source], row.metadata_json) for row in rows),
                strict=True,
            )
            columns: list[Any] = [
                pyarrow.array(xy[:, 0]), pyarrow.array(xy[:, 1]), pyarrow.array(in_map), pyarrow.array(ids),
                *(pyarrow.array(values, pyarrow.string()) for values in texts),
                pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), gallery.width),
                pyarrow.array(_find_neighbours(gallery, ids, vectors), schema.field("neighbors").type),
            ]  # fmt: skip
            if thumbnails:
                images = [None if one is None else _encode(one) for one in islice(pictures, len(rows))]
                made += sum(image is not None for image in images)
                values = [
                    image and {"bytes": image, "path": valid_text(row.path)}
                    for image, row in zip(images, rows, strict=True)
                ]
                columns.append(pyarrow.array(values, schema.field("image").type))
            writer.write_batch(pyarrow.record_batch(columns, schema=schema))
    return made


def _make_schema(width: int, *, thumbnails: bool) -> Any:
    pyarrow = import_pyarrow("writing Parquet")
    number, text = pyarrow.float32(), pyarrow.string()
    neighbours = [("ids", pyarrow.list_(pyarrow.int64())), ("distances", pyarrow.list_(number))]
    image = [("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", text)]))]  # as of Hugging Face
    return pyarrow.schema([
        ("x", number), ("y", number), ("in_map", pyarrow.bool_()), ("id", pyarrow.int64()),
        *((name, text) for name in TEXTS),
        ("vector", pyarrow.list_(number, width)),
        ("neighbors", pyarrow.struct(neighbours)),
        *(image if thumbnails else []),
    ])  # fmt: skip


def _find_neighbours(gallery: Gallery, ids: Ids, vectors: Vectors) -> list[dict[str, list[Any]]]:
    """The rows of each member's nearest others, and their distances: 1 - cosine."""
    k = min(_NEIGHBOURS, gallery.count - 1)
    if k < 1:
        return [{"ids": [], "distances": []} for _ in ids]
    return [
        {"ids": np.searchsorted(gallery.ids, found).tolist(), "distances": (1 - scores).clip(min=0).tolist()}
        for scores, found in gallery.rank_many(vectors, k=k, exclude_ids=ids)
    ]


def _encode(thumbnail: Image.Image) -> bytes:
    file = io.BytesIO()
    thumbnail.save(file, format="JPEG", quality=80)
    return file.getvalue()
