"""Export of a gallery for a viewer: a Parquet file for embedding-atlas."""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids, Vectors
from index.durable import replacing
from index.errors import ImageError, InputError
from index.gallery.export_vectors import ExportedVectors, check_out, naming_out, read_blocks
from index.gallery.gallery import Gallery
from index.outputs import SEMANTIC
from index.progress import Progress, no_progress
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text
from index.threads import map_ahead, usable_cores
from index.vectors.exact import search
from retrieval_app.insights.map_layout import MapLayout, lay_out
from retrieval_app.serving.photos import decode_in_turn, encode_small, read_original

_AT_ONCE = 256  # thumbnails that wait in memory
THUMBNAIL_SIDE = 96
_NEIGHBOURS = 15  # the default of embedding-atlas
_BETWEEN = 3  # members of the map whose mean is the place of one that was not laid out
TEXTS = ("label", "path", "source", "metadata")


def _draw_thumbnail(gallery: Gallery, image_id: int) -> bytes | None:
    """The JPEG file of an image, at most `THUMBNAIL_SIDE` pixels a side; None where it cannot be read."""
    try:
        name, data = read_original(gallery, image_id)
        image = decode_in_turn(data, name=name, target_side=THUMBNAIL_SIDE)
    except (InputError, ImageError):  # gone or changed: its vector is still worth showing
        return None
    return encode_small(image, side=THUMBNAIL_SIDE, format="JPEG", quality=80)


def write_atlas(
    path: Path,
    out: Path,
    *,
    by: str = SEMANTIC,
    thumbnails: bool = True,
    laying_out: Progress = no_progress,
    writing: Progress = no_progress,
) -> ExportedVectors:
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
    return ExportedVectors.of(gallery, [out], thumbnails=pictures)


def _write(gallery: Gallery, out: Path, *, layout: MapLayout, thumbnails: bool, progress: Progress) -> int:
    pyarrow = import_pyarrow("writing Parquet")
    number, text = pyarrow.float32(), pyarrow.string()
    near = pyarrow.struct([("ids", pyarrow.list_(pyarrow.int64())), ("distances", pyarrow.list_(number))])
    image_type = pyarrow.struct([("bytes", pyarrow.binary()), ("path", text)])  # as of Hugging Face
    types = {"x": number, "y": number, "in_map": pyarrow.bool_(), "id": pyarrow.int64(), **dict.fromkeys(TEXTS, text)}
    types |= {"vector": pyarrow.list_(number, gallery.width), "neighbors": near}
    types |= {"image": image_type} if thumbnails else {}
    schema, made = pyarrow.schema(list(types.items())), 0
    draw, ids_shown = partial(_draw_thumbnail, gallery), gallery.ids.tolist() if thumbnails else []
    pictures = map_ahead(draw, ids_shown, workers=usable_cores(), ahead=_AT_ONCE)
    with replacing(out) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        for rows, vectors in read_blocks(gallery, progress):
            ids = np.array([row.id for row in rows], dtype=np.int64)
            xy, in_map = _place(gallery, ids, vectors, layout)
            texts = ((row.label, valid_text(row.path), gallery.roots[row.source], row.metadata_json) for row in rows)
            columns: dict[str, Any] = {"x": xy[:, 0], "y": xy[:, 1], "in_map": in_map, "id": ids}
            columns |= dict(zip(TEXTS, zip(*texts, strict=True), strict=True))
            columns["neighbors"] = _find_neighbours(gallery, ids, vectors)
            if thumbnails:
                images = list(islice(pictures, len(rows)))
                made += sum(image is not None for image in images)
                columns["image"] = [
                    image and {"bytes": image, "path": valid_text(row.path)}
                    for image, row in zip(images, rows, strict=True)
                ]
            arrays = {name: pyarrow.array(values, types[name]) for name, values in columns.items()}
            arrays["vector"] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), gallery.width)
            writer.write_batch(pyarrow.record_batch([arrays[name] for name in types], schema=schema))
    return made


def _place(gallery: Gallery, ids: Ids, vectors: Vectors, layout: MapLayout) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(n, 2) places of members, of those beyond the map amid their nearest ones, and (n,) bool: whether in the map."""
    laid_out, places = np.array(layout.ids), np.stack([layout.x, layout.y], axis=1, dtype=np.float32)
    in_map = np.isin(ids, laid_out)
    xy = np.empty((len(ids), 2), dtype=np.float32)
    xy[in_map] = places[np.searchsorted(laid_out, ids[in_map])]
    if not in_map.all():
        near = search(vectors[~in_map], gallery.vectors(laid_out), k=min(_BETWEEN, len(laid_out)))
        xy[~in_map] = places[near.rows].mean(axis=1)
    return xy, in_map


def _find_neighbours(gallery: Gallery, ids: Ids, vectors: Vectors) -> list[dict[str, list[Any]]]:
    """The rows of each member's nearest others, and their distances: 1 - cosine."""
    k = min(_NEIGHBOURS, gallery.count - 1)
    if k < 1:
        return [{"ids": [], "distances": []} for _ in ids]
    neighbours = []
    for own, (scores, found) in zip(ids, gallery.rank_many(vectors, k=k + 1), strict=True):
        others = found != own
        rows, distances = np.searchsorted(gallery.ids, found[others][:k]), (1 - scores[others][:k]).clip(min=0)
        neighbours.append({"ids": rows.tolist(), "distances": distances.tolist()})
    return neighbours
