"""The two galleries that are served, made once: of the clothing photos, and of many vectors without pictures."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import run_retrieval, shared_folder, write_atomically
from benchmarks.indexing.index_catalog import record_scan, settle
from benchmarks.indexing.index_collection import MOST_CHANGED_EACH, Collection
from benchmarks.indexing.index_images import list_images
from index.arrays import Vectors
from index.catalog.writer import write_catalog
from index.gallery.gallery import Gallery
from index.model.contract import ModelContract
from index.model.embedder import Embedder
from index.sources.folder import FolderSource
from index.vectors.kinds.registry import KINDS
from index.vectors.shards import VectorRows, find_checkpoint, write_checkpoint
from index.vectors.store import Publication
from index.versions.gallery_parts import make_mark
from index.versions.manifest import CATALOG_NAME
from index.versions.versions import publish_version
from index.writing.publishing import write_version

WIDTH = 64  # of the model made here
QUERIES = 2000
_NOISE = 0.05  # of each number of a vector of length one, where there are no vectors but those of members


@dataclass(frozen=True, slots=True)
class ServedGallery:
    """A gallery, and what clients and peers need of it.

    Attributes:
        what: in a few words.
        path: of the gallery.
        model: that it was built with.
        photos: that are sent to it.
        ids, vectors, paths: files: (N,) int64 of the members, their (N, D) float32, a JSON list of their paths.
        queries: file: (Q, D) float32 that are no members.
    """

    what: str
    path: Path
    model: Path
    photos: Sequence[str]
    ids: Path
    vectors: Path
    paths: Path
    queries: Path

    @property
    def contract(self) -> ModelContract:
        """Of the model."""
        return Embedder(self.model).contract

    @property
    def is_exact(self) -> bool:
        """Whether every search finds the very nearest."""
        return KINDS[Gallery.open(self.path).manifest.index["type"]].is_exact

    def describe(self) -> dict[str, Any]:
        """What it is, in figures."""
        opened = Gallery.open(self.path)
        dim, index = opened.manifest.embedding_dim, opened.manifest.index
        return {
            "what": self.what,
            "images": opened.count,
            "width": dim,
            "index": index.get("factory") or index["type"],
        }


def find_photos(options: argparse.Namespace) -> Path:
    """The folder of photos."""
    folder: Path = options.photos or shared_folder() / "data" / "clothing"
    return folder.resolve()


def make_model(options: argparse.Namespace) -> Path:
    """The model: MobileNetV2 to 64 numbers, PCA-whitened on the photos; or one's own."""
    if options.model is not None:
        own: Path = options.model.resolve()
        return own
    model: Path = options.out.resolve() / "model.onnx"
    if not model.exists():
        weights = options.weights or shared_folder() / "weights" / "mobilenet_v2_imagenet.safetensors"
        run_retrieval(
            "export", "--backbone", "mobilenet_v2", "--weights", weights, "--whiten", find_photos(options),
            "--embedding-dim", str(WIDTH), "--out", model,
        )  # fmt: skip
    return model


def open_photos(options: argparse.Namespace) -> ServedGallery:
    """The gallery of the photos, built by `retrieval index build`."""
    model, folder, photos = make_model(options), options.out.resolve() / "photos", find_photos(options)
    gallery = folder / "gallery"
    if not (gallery / "CURRENT").exists():
        run_retrieval("index", "build", model, photos, "--out", gallery)
    return describe_gallery(gallery, folder, model=model, photos=photos, what="clothing photos")


def open_vectors(options: argparse.Namespace) -> ServedGallery:
    """The gallery of vectors, whose items are made up: their pictures do not exist."""
    model = make_model(options)
    contract = Embedder(model).contract
    folder = options.out.resolve() / f"vectors-{options.count}-{contract.embedding_dim}-{options.seed}"
    gallery = folder / "gallery"
    if not (gallery / "CURRENT").exists():
        from benchmarks.ann.ann_vectors import load_vectors

        made = load_vectors(
            options.vectors or options.out, count=options.count, width=contract.embedding_dim, seed=options.seed
        )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "queries.npy", partial(np.save, arr=made.queries))
        publish_vectors(made.base, gallery, folder / "making", model=model, contract=contract)
    return describe_gallery(gallery, folder, model=model, photos=find_photos(options), what="vectors of crops")


def publish_vectors(vectors: Vectors, gallery: Path, work: Path, *, model: Path, contract: ModelContract) -> None:
    """A gallery of one version with these (N, D) float32 unit rows, its index chosen as for every gallery."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "gallery").mkdir(parents=True)
    make_mark(work / "gallery")
    seconds: dict[str, float] = {}
    with write_catalog(work / CATALOG_NAME) as catalog:
        catalog.prepare()
        numbers = catalog.add_sources([FolderSource("/photos")])
        # of so many made-up items one is skipped, and has no vector
        collection = Collection(len(vectors) + (len(vectors) - 1) // (MOST_CHANGED_EACH - 1))
        record_scan(catalog, collection, numbers, seconds, name="scan")
        settle(catalog, seconds)
        ids = np.array(catalog.indexed_ids(), dtype=np.int64)
        sha256 = write_checkpoint(work / "vectors.npy", VectorRows(ids, vectors))
        (work / "version").mkdir()
        write_version(
            work / "version", catalog, base=None,
            checkpoints=[find_checkpoint(work / "vectors.npy", sha256=sha256)], model=model, contract=contract,
            how=Publication(),
        )  # fmt: skip
        publish_version(work / "gallery", work / "version", name="000001")
    (work / "gallery").replace(gallery)  # a stopped making leaves no gallery
    shutil.rmtree(work)


def describe_gallery(gallery: Path, folder: Path, *, model: Path, photos: Path, what: str) -> ServedGallery:
    """Write what clients and peers need of a gallery, once."""
    files = {name: folder / name for name in ("ids.npy", "vectors.npy", "paths.json", "queries.npy")}
    if not files["paths.json"].exists():
        opened = Gallery.open(gallery)
        vectors, _, ids, _ = opened.labelled_vectors()
        with opened.catalog() as catalog:
            paths = [row.path for row in catalog.rows(status="indexed")]
        if not files["queries.npy"].exists():
            write_atomically(files["queries.npy"], partial(np.save, arr=perturb(vectors, seed=0)))
        write_atomically(files["ids.npy"], partial(np.save, arr=ids))
        write_atomically(files["vectors.npy"], partial(np.save, arr=vectors))
        write_atomically(files["paths.json"], lambda file: file.write(json.dumps(paths).encode()))
    listed = list(map(str, list_images(photos)))
    return ServedGallery(
        what, gallery, model, listed, files["ids.npy"], files["vectors.npy"], files["paths.json"],
        files["queries.npy"],
    )  # fmt: skip


def perturb(vectors: Vectors, *, seed: int) -> Vectors:
    """At most 2,000 unit rows near some of (N, D) unit rows."""
    random = np.random.default_rng(seed)
    chosen = vectors[random.permutation(len(vectors))[:QUERIES]]
    moved = chosen + random.normal(scale=_NOISE, size=chosen.shape)
    rows: Vectors = (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)
    return rows
