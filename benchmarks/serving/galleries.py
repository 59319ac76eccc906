"""Galleries of the clothing photos that are served, in float32 and in int8, built once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.record import find_photos, find_weights, run_retrieval, save_array, write_json
from benchmarks.indexing.images import list_images
from index.gallery.gallery import Gallery
from index.model.contract import ModelContract
from index.model.embedder import Embedder

WIDTH = 64  # of the model made here
DROP = ("--max-recall-drop", "0.02")  # of the int8 export


@dataclass(frozen=True, slots=True)
class ServedGallery:
    """A gallery, and the files that clients and peers need of it.

    Attributes:
        photos: that are sent to it.
        ids, vectors, paths: files: (N,) int64 of the members, their (N, D) float32, a JSON list of their paths.
    """

    what: str
    path: Path
    model: Path
    photos: Sequence[str]
    ids: Path
    vectors: Path
    paths: Path

    @property
    def contract(self) -> ModelContract:
        """Of the model."""
        return Embedder(self.model).contract

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
        run_retrieval("export", served.model, "--precision", "int8", "--images", photos, *DROP, "--out", model)
    if not (gallery / "CURRENT").exists():
        run_retrieval("index", "build", model, photos, "--out", gallery, "--no-cache", "--backend", "auto")
    return describe_gallery(gallery, folder, model=model, photos=photos, what=f"{served.what}, int8")


def describe_gallery(gallery: Path, folder: Path, *, model: Path, photos: Path, what: str) -> ServedGallery:
    """Write the files that clients and peers need of a gallery, once."""
    ids, vectors, paths = (folder / name for name in ("ids.npy", "vectors.npy", "paths.json"))
    if not paths.exists():
        opened = Gallery.open(gallery)
        members, _, numbers, _ = opened.labelled_vectors()
        save_array(ids, numbers)
        save_array(vectors, members)
        with opened.catalog() as catalog:
            write_json(paths, [row.path for row in catalog.rows(status="indexed")])
    listed = list(map(str, list_images(photos)))
    return ServedGallery(what, gallery, model, listed, ids, vectors, paths)
