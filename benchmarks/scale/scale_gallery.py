"""A gallery of as many rows as wanted, made by the code of `retrieval index build`; only its vectors are drawn."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.indexing.index_collection import Collection, settle_row
from benchmarks.indexing.index_images import take_batches
from benchmarks.scale.stopwatch import Stopwatch
from index.arrays import Vectors
from index.catalog.writer import CatalogWriter, Checkpoint, write_catalog
from index.model.embedder import Embedder
from index.model.in_the_box import find_box
from index.sources.folder import FolderSource
from index.vectors.ann_config import INDEX_SETTING, AnnConfig
from index.vectors.shards import VectorFile, VectorRows, find_checkpoint, write_checkpoint
from index.vectors.store import Publication
from index.versions.gallery_parts import make_mark
from index.versions.manifest import CATALOG_NAME
from index.versions.versions import publish_version
from index.writing.build_config import BuildConfig
from index.writing.publishing import write_version

PHOTOS = "photos"  # beside the gallery, an empty folder: the source of its rows
_CENTRES, _SPREAD = 500, 0.7


def draw_vectors(count: int, *, widths: list[int], seed: int) -> Vectors:
    """(count, sum of widths) float32: for each width unit vectors around 500 centres, the same of every seed."""
    parts = []
    for width in widths:
        centres = np.random.default_rng(width).normal(size=(_CENTRES, width)).astype(np.float32)
        random = np.random.default_rng([seed, width])
        noise = random.standard_normal((count, width), dtype=np.float32)
        rows = centres[random.integers(0, _CENTRES, size=count)] + np.float32(_SPREAD) * noise
        parts.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return np.concatenate(parts, axis=1)


def make_gallery(folder: Path, *, rows: int, seed: int, watch: Stopwatch) -> dict[str, int]:
    """Make `folder/gallery` with a flat index; bytes of disk while it was made and after."""
    gallery, work, photos = folder / "gallery", folder / "work", folder / PHOTOS
    for part in (gallery, work / "version", photos):
        part.mkdir(parents=True)
    model = find_box()
    contract = Embedder(model, threads=1).contract
    with write_catalog(work / CATALOG_NAME) as catalog:
        catalog.prepare()
        catalog.set({INDEX_SETTING: AnnConfig(index_type="flat").to_text()})
        numbers = catalog.add_sources([FolderSource(str(photos))])
        with watch.timing("scan"):
            found = ((numbers[0], item) for item in Collection(rows).items())
            catalog.record_scan(found, scanned=numbers, restore=False)
        with watch.timing("settle"):
            made = settle(catalog, work, widths=list(contract.widths.values()), seed=seed)
        with watch.timing("publish"):
            make_mark(gallery)
            write_version(
                work / "version", catalog, gallery=gallery, base=None, made=_split(made, contract.widths),
                model=model, contract=contract, runtime=None, how=Publication(),
            )  # fmt: skip
            most = count_bytes(work)
            publish_version(gallery, work / "version", name="000001")
    shutil.rmtree(work)
    return {"making": most, **describe_disk(gallery)}


def settle(catalog: CatalogWriter, work: Path, *, widths: list[int], seed: int) -> list[VectorFile]:
    """Settle what is pending in checkpoints with drawn vectors, as a build does with embedded ones."""
    made: list[VectorFile] = []
    size = BuildConfig().checkpoint_images
    for number, rows in enumerate(take_batches(catalog.rows(status="pending"), size)):
        outcomes = list(map(settle_row, rows))
        ids = np.array([outcome.id for outcome in outcomes if outcome.reason is None], dtype=np.int64)
        vectors = draw_vectors(len(ids), widths=widths, seed=seed * 1_000_003 + number)
        path = work / f"{number:09d}.npy"
        sha256 = write_checkpoint(path, VectorRows(ids, vectors))
        catalog.record_outcomes(outcomes, checkpoint=Checkpoint(path.name, sha256))
        made.append(find_checkpoint(path, sha256=sha256))
    return made


def _split(made: list[VectorFile], widths: dict[str, int]) -> dict[str, list[VectorFile]]:
    """The vectors of each output, which lie side by side."""
    start, parts = 0, {}
    for output, width in widths.items():
        columns = slice(start, start + width)
        parts[output] = [VectorFile(file.ids, file.path, columns) for file in made]
        start += width
    return parts


def describe_disk(gallery: Path) -> dict[str, int]:
    """Bytes of the files of the current version: catalogue, vectors with their ids, ANN indexes, all."""
    version = max((gallery / "versions").iterdir())
    sizes = {path.relative_to(version).as_posix(): path.stat().st_size for path in _files(version)}

    def add(chosen: Callable[[str], bool]) -> int:
        return sum(size for name, size in sizes.items() if chosen(name))

    return {
        "catalogue": sizes[CATALOG_NAME],
        "vectors": add(lambda name: name.endswith(".npy") and "held" not in name),
        "index": add(lambda name: name.endswith(".faiss")),
        "version": sum(sizes.values()),
    }


def count_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; one with several names counts once."""
    found = {(status.st_dev, status.st_ino): status.st_size for status in map(Path.stat, _files(folder))}
    return sum(found.values())


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
