"""Files to embeddings: threads decode ahead while the model runs; order is kept and memory is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from index.ahead import map_ahead
from index.embedder import Embedder, Vectors, unit_rows
from index.errors import ImageError
from index.images import MAX_PIXELS, printable_path
from index.preprocess import Pixels

BATCHES_AHEAD = 3


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """One file's outcome: a (D,) float32 unit `vector` and the file's SHA-256, or the `problem` that it has."""

    id: int
    vector: Vectors | None = None
    sha256: str | None = None
    problem: ImageError | None = None


@dataclass(frozen=True, slots=True)
class _DecodedFile:
    id: int
    path: Path
    pixels: Pixels | None = None
    sha256: str | None = None
    problem: ImageError | None = None


def embed_files(
    files: Iterable[tuple[int, Path]],
    embedder: Embedder,
    *,
    batch_size: int,
    workers: int,
    max_pixels: int = MAX_PIXELS,
) -> Iterator[list[EmbeddedFile]]:
    """Embed files given as (id, path): their outcomes in the order given, `batch_size` files at a time.

    At most `BATCHES_AHEAD` batches of decoded images are held. A batch holds the usable ones of `batch_size`
    consecutive files, so that the same files give the same bits wherever a stopped run continues.

    Raises:
        ModelFileError: the model fails on a batch.
    """

    def decode(file: tuple[int, Path]) -> _DecodedFile:
        key, path = file
        try:
            pixels, sha256 = embedder.read_pixels(path, max_pixels=max_pixels)
        except ImageError as error:
            return _DecodedFile(key, path, problem=error)
        return _DecodedFile(key, path, pixels, sha256)

    with closing(map_ahead(decode, files, workers=workers, ahead=BATCHES_AHEAD * batch_size)) as decoded:
        while batch := list(islice(decoded, batch_size)):
            yield _embed(batch, embedder)


def _embed(batch: list[_DecodedFile], embedder: Embedder) -> list[EmbeddedFile]:
    pixels = [file.pixels for file in batch if file.pixels is not None]
    if not pixels:
        return [EmbeddedFile(file.id, problem=file.problem) for file in batch]
    vectors = embedder.embed_batch(np.stack(pixels))
    rows = iter(zip(vectors, unit_rows(vectors), strict=True))
    return [_outcome(file, rows) for file in batch]


def _outcome(file: _DecodedFile, rows: Iterator[tuple[Vectors, np.bool_]]) -> EmbeddedFile:
    if file.pixels is None:
        return EmbeddedFile(file.id, problem=file.problem)
    vector, usable = next(rows)
    if usable:
        return EmbeddedFile(file.id, vector, file.sha256)
    shown = printable_path(str(file.path))
    problem = ImageError(path=shown, reason="bad-embedding", detail="the model gave no finite unit vector")
    return EmbeddedFile(file.id, sha256=file.sha256, problem=problem)
