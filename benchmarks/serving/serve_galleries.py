"""The galleries that are served, made once: of the clothing photos, also in int8, and of vectors without pictures."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import find_photos, find_weights, run_retrieval, save_array, write_json
from benchmarks.indexing.index_catalog import publish, record_scan, settle
from benchmarks.indexing.index_collection import MOST_CHANGED_EACH, Collection
from benchmarks.indexing.index_images import list_images
from index.arrays import Vectors
from index.catalog.writer import write_catalog
from index.gallery.gallery import Gallery
from index.model.contract import ModelContract
from index.model.embedder import Embedder
from index.sources.folder import FolderSource
from index.vectors.kinds.registry import KINDS
from index.versions.manifest import CATALOG_NAME

WIDTH = 64  # of the model made here
QUERIES = 2000
_NOISE = 0.05  # of each number of a vector of length one, where there are no vectors but those of members


@dataclass(frozen=True, slots=True)
class ServedGallery:
    """A gallery, and what clients and peers need of it.

    Attributes:
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

    def find_recall(self) -> float:
        """Recall@1 in 0..1, each image asking all others, by the labels of their folders."""
        recall: float = run_retrieval("evaluate", self.path).document["recall"]["1"]
        return recall

    def describe(self) -> dict[str, Any]:
        """What it is, in figures."""
        opened = Gallery.open(self.path)
        dim, index = opened.manifest.embedding_dim, opened.manifest.index
        name = index.get("factory") or index["type"]
        return {"what": self.what, "images": opened.count, "width": dim, "index": name}


def make_model(options: argparse.Namespace) -> Path:
    """The model: MobileNetV2 to 64 numbers, PCA-whitened on the photos; or one's own."""
    if options.model is not None:
        own: Path = options.model.resolve()
        return own
    model: Path = options.out.resolve() / "model.onnx"
    if not model.exists():
        backbone = ("--backbone", "mobilenet_v2", "--weights", find_weights(options.weights))
        whitening = ("--whiten", find_photos(options.photos), "--embedding-dim", str(WIDTH))
        run_retrieval("export", *backbone, *whitening, "--out", model)
    return model


def open_photos(options: argparse.Namespace) -> ServedGallery:
    """The gallery of the photos, built by `retrieval index build`."""
    model, folder, photos = make_model(options), options.out.resolve() / "photos", find_photos(options.photos)
    gallery = folder / "gallery"
    if not (gallery / "CURRENT").exists():
        run_retrieval("index", "build", model, photos, "--out", gallery, "--no-cache")
    return describe_gallery(gallery, folder, model=model, photos=photos, what="clothing photos")


def open_quick(options: argparse.Namespace, served: ServedGallery) -> ServedGallery:
    """The same photos with the same model in int8, in the runtime that is fastest with it here."""
    photos, folder = find_photos(options.photos), options.out.resolve() / "photos-int8"
    model, gallery = folder / "model.onnx", folder / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        allowed = ("--max-recall-drop", str(options.max_recall_drop))
        run_retrieval("export", served.model, "--precision", "int8", "--images", photos, *allowed, "--out", model)
    if not (gallery / "CURRENT").exists():
        run_retrieval("index", "build", model, photos, "--out", gallery, "--no-cache", "--backend", "auto")
    return describe_gallery(gallery, folder, model=model, photos=photos, what=f"{served.what}, int8")


def open_vectors(options: argparse.Namespace) -> ServedGallery:
    """The gallery of vectors, whose items are made up: their pictures do not exist."""
    model = make_model(options)
    contract = Embedder(model).contract
    folder = options.out.resolve() / f"vectors-{options.count}-{contract.embedding_dim}-{options.seed}"
    gallery = folder / "gallery"
    if not (gallery / "CURRENT").exists():
        from benchmarks.ann.ann_vectors import load_vectors

        where, width = options.vectors or options.out, contract.embedding_dim
        base, queries = load_vectors(where, count=options.count, width=width, seed=options.seed)
        save_array(folder / "queries.npy", queries)
        publish_vectors(base, gallery, folder / "making", model=model, contract=contract)
    return describe_gallery(
        gallery, folder, model=model, photos=find_photos(options.photos), what="vectors of crops"
    )


def publish_vectors(vectors: Vectors, gallery: Path, work: Path, *, model: Path, contract: ModelContract) -> None:
    """A gallery of one version with these (N, D) float32 unit rows, its index chosen as for every gallery."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "gallery").mkdir(parents=True)
    with write_catalog(work / CATALOG_NAME) as catalog:
        catalog.prepare()
        numbers = catalog.add_sources([FolderSource("/photos")])
        # of so many made-up items one is skipped, and has no vector
        collection = Collection(len(vectors) + (len(vectors) - 1) // (MOST_CHANGED_EACH - 1))
        record_scan(catalog, collection, numbers, {}, name="scan")
        settle(catalog, {})
        publish(catalog, work / "gallery", work, vectors=vectors, model=model, contract=contract)
    (work / "gallery").replace(gallery)  # a stopped making leaves no gallery
    shutil.rmtree(work)


def describe_gallery(gallery: Path, folder: Path, *, model: Path, photos: Path, what: str) -> ServedGallery:
    """Write what clients and peers need of a gallery, once."""
    ids, vectors, paths, queries = (
        folder / name for name in ("ids.npy", "vectors.npy", "paths.json", "queries.npy")
    )
    if not paths.exists():
        opened = Gallery.open(gallery)
        members, _, numbers, _ = opened.labelled_vectors()
        if not queries.exists():
            save_array(queries, perturb(members, seed=0))
        save_array(ids, numbers)
        save_array(vectors, members)
        with opened.catalog() as catalog:
            write_json(paths, [row.path for row in catalog.rows(status="indexed")])
    listed = list(map(str, list_images(photos)))
    return ServedGallery(what, gallery, model, listed, ids, vectors, paths, queries)


def perturb(vectors: Vectors, *, seed: int) -> Vectors:
    """At most 2,000 unit rows near some of (N, D) unit rows."""
    random = np.random.default_rng(seed)
    chosen = vectors[random.permutation(len(vectors))[:QUERIES]]
    moved = chosen + random.normal(scale=_NOISE, size=chosen.shape)
    rows: Vectors = (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)
    return rows
