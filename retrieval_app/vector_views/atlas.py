"""A gallery for embedding-atlas: one Parquet file with the map that the page shows, neighbours and thumbnails."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from index.arrays import Floats, Ids, Vectors
from index.durable import replacing
from index.errors import InputError
from index.gallery.export_vectors import check_out, read_blocks
from index.gallery.gallery import Gallery
from index.outputs import KIND
from index.progress import Progress, no_progress
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text
from index.threads import usable_cores
from index.vectors.exact import search
from retrieval_app.insights.map_layout import MapLayout, lay_out
from retrieval_app.vector_views.thumbnails import read_thumbnails
from retrieval_app.vector_views.view_report import ViewReport

THUMBNAIL_SIDE = 96
_NEIGHBOURS = 15  # as many as embedding-atlas finds by itself
_BETWEEN = 3  # members of the map, whose middle is where one lies that was not laid out
TEXTS = ("label", "path", "source", "metadata")


def write_atlas(
    path: Path,
    out: Path,
    *,
    by: str = KIND,
    thumbnails: bool = True,
    laying_out: Progress = no_progress,
    writing: Progress = no_progress,
) -> ViewReport:
    """Write where a gallery's members lie on its map, their nearest others, what they are, and their vectors.

    Args:
        out: `NAME.parquet` with the columns x, y, in_map, id, label, path, source, metadata, vector, neighbors
            ({"ids", "distances"}: rows of the file, nearest first) and, with `thumbnails`, image ({"bytes", "path"}).
            `in_map` is false for members that the map left out, of more than 10,000: they lie amid their nearest.
        by: whose vectors, `kind` or `picture`.
        laying_out: told of the map's steps.
        writing: told of the members that are written.

    Raises:
        InputError: the gallery has no such vectors; `out` has another ending, exists, lies in the gallery, or cannot be
            written.
        MissingDependencyError: openTSNE or pyarrow is not installed.
        GalleryError: the gallery is missing, unfinished or damaged.
    """
    shown = printable_path(str(out))
    if out.suffix.lower() != ".parquet":
        raise InputError(f"{shown}: expected a name that ends in .parquet")
    import_pyarrow("writing Parquet")
    check_out([out], gallery=path)
    gallery = Gallery.open(path, threads=usable_cores()).by(by)
    layout = lay_out(gallery, laying_out)
    try:
        pictures = _write(gallery, out, layout=layout, thumbnails=thumbnails, progress=writing)
    except OSError as error:
        raise InputError(
            f"{shown}: cannot be written: {error.strerror or error}; nothing is left of it"
        ) from error
    return ViewReport(
        gallery=valid_text(str(gallery.path)), version=gallery.version, images=gallery.count,
        embedding_dim=gallery.width, pictures=pictures, files=[valid_text(str(out))],
    )  # fmt: skip


def _write(gallery: Gallery, out: Path, *, layout: MapLayout, thumbnails: bool, progress: Progress) -> int:
    pyarrow = import_pyarrow("writing Parquet")
    schema = _make_schema(gallery.width, thumbnails=thumbnails)
    pictures = read_thumbnails(gallery, side=THUMBNAIL_SIDE) if thumbnails else iter(())
    laid_out, places = gallery.vectors(layout.ids), np.stack([layout.x, layout.y], axis=1)
    made = 0
    with replacing(out) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        for rows, vectors in read_blocks(gallery, progress):
            ids = np.array([row.id for row in rows], dtype=np.int64)
            in_map = np.isin(ids, layout.ids)
            xy = np.empty((len(ids), 2), dtype=np.float32)
            xy[in_map] = places[np.searchsorted(layout.ids, ids[in_map])]
            if not in_map.all():
                xy[~in_map] = _lie_between(vectors[~in_map], laid_out, places)
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


def _lie_between(vectors: Vectors, laid_out: Vectors, places: Floats) -> Floats:
    """(n, 2) the middle of the places of each one's nearest among those that were laid out."""
    found = search(vectors, laid_out, k=min(_BETWEEN, len(laid_out)))
    middle: Floats = places[found.rows].mean(axis=1)
    return middle


def _find_neighbours(gallery: Gallery, ids: Ids, vectors: Vectors) -> list[dict[str, list[Any]]]:
    """Of each member the rows of its nearest others, and how far they are: 1 - cosine."""
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
