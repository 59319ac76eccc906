"""Export of a gallery's vectors to .npy, and of its catalogue rows to CSV."""

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.catalog.rows import CatalogRow
from index.durable import replacing
from index.errors import GalleryDamagedError, InputError
from index.gallery.gallery import Gallery
from index.outputs import SEMANTIC
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text

CSV_COLUMNS = ("row", "id", "path", "source", "label", "given_label", "metadata")


@dataclass(frozen=True, slots=True)
class ExportedVectors:
    """Written files: `images` rows of `embedding_dim` numbers."""

    gallery: str
    version: str
    images: int
    embedding_dim: int
    files: list[str]


def export_vectors(path: Path, out: Path, *, by: str = SEMANTIC, progress: Progress = no_progress) -> ExportedVectors:
    """Write the members' vectors, in id order, to NAME.npy, and NAME.csv about the rows."""
    if out.suffix.lower() != ".npy":
        raise InputError("expected a name that ends in .npy", at=out)
    files = [out, out.with_suffix(".csv")]
    for file in files:
        if file.resolve().is_relative_to(path.resolve()):
            raise InputError("a gallery holds nothing but its own files; give an --out outside it", at=file)
        if not file.parent.is_dir():
            raise InputError(f"there is no folder {printable_path(file.parent)}; make it first", at=file)
        if os.path.lexists(file):
            raise InputError("exists already; remove it, or give another --out", at=file)
    gallery = Gallery.open(path).view(by)
    try:
        _write(gallery, files, progress)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}; nothing is left of it", at=out) from error
    names = [valid_text(str(file)) for file in files]
    return ExportedVectors(valid_text(str(gallery.path)), gallery.version, gallery.count, gallery.width, names)


def read_blocks(gallery: Gallery, progress: Progress) -> Iterator[tuple[list[CatalogRow], Vectors]]:
    """The members in id order, in blocks of n catalogue rows and their (n, D) float32 vectors."""
    done = 0
    with gallery.catalog() as catalog:
        rows = catalog.rows(status="indexed")
        for ids, vectors in gallery.store.scan():
            is_shown = np.isin(ids, gallery.decided.left_out, assume_unique=True, invert=True)
            ids, vectors = ids[is_shown], vectors[is_shown]
            block = list(islice(rows, len(ids)))
            if [row.id for row in block] != ids.tolist():
                shown = printable_path(gallery.path)
                raise GalleryDamagedError(shown, "damaged: the catalogue's images are not those that have vectors")
            yield block, vectors
            done += len(block)
            progress(done, gallery.count)


def _describe(gallery: Gallery, row: CatalogRow) -> tuple[Any, ...]:
    """Path, source, label, given label where it is another, and metadata of a member."""
    return (valid_text(row.path), gallery.roots[row.source], row.label, row.former_label, row.metadata_json)


def _write(gallery: Gallery, files: list[Path], progress: Progress) -> None:
    # Not mapped: a mapped file kills the process on a full disk, a write raises.
    header = {"descr": "<f4", "fortran_order": False, "shape": (gallery.count, gallery.width)}
    with (
        replacing(files[0]) as array_path,
        replacing(files[1]) as table_path,
        array_path.open("wb") as array,
        table_path.open("w", newline="", encoding="utf-8") as table,
    ):
        np.lib.format.write_array_header_1_0(array, header)
        writer, numbers = csv.writer(table), count()
        writer.writerow(CSV_COLUMNS)
        for rows, vectors in read_blocks(gallery, progress):
            array.write(vectors.astype("<f4", copy=False).data)
            writer.writerows((next(numbers), row.id, *_describe(gallery, row)) for row in rows)
