"""Datasets as frozen backbone features: computed once, written to a folder, read by every training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.common.graph_features import GraphExtractor
from benchmarks.common.record import save_array, write_json
from benchmarks.noise.splits import list_split
from index.errors import InputError
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import Extractor, extract_features, open_store
from training.options.backbone_libraries import preprocess_for
from training.options.config import InputConfig
from training.options.machine import resolve_device


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """Frozen features of a dataset.

    Attributes:
        train, test: (N, F) and (M, F) float32.
        train_labels, test_labels: int64; the training labels are numbered 0..C-1 in the order of `classes`.
        is_gallery: (M,) bool for query/gallery protocols, None for leave-one-out.
    """

    train: np.ndarray
    test: np.ndarray
    train_labels: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    is_gallery: np.ndarray | None
    ks: tuple[int, ...]


def open_extractor(backbone: str, weights: str, sizes: InputConfig) -> Extractor:
    """Extractor of a frozen backbone; `sizes` say how images reach it, with view and pooling."""
    preprocess = preprocess_for(backbone, resize=sizes.resize, crop=sizes.crop, view=sizes.view)
    network = load_backbone(backbone, weights, side=sizes.crop)
    seeing = with_features(network, view=sizes.view, pooling=sizes.pooling, side=sizes.crop)
    return Extractor(seeing, preprocess, device=resolve_device("auto"))


def prepare_features(
    name: str,
    folder: Path,
    *,
    cache: Path,
    backbone: str,
    weights: str,
    sizes: InputConfig,
    workers: int,
    backend: str = "torch",
) -> None:
    """Extract and write a dataset's features, unless they exist.

    Args:
        backend: runtime that computes the features.

    Raises:
        InputError: those that exist come from another backbone, other weights or preprocessing.
    """
    extractor = open_extractor(backbone, weights, sizes)
    if backend != "torch":
        extractor = GraphExtractor(extractor, backend, cache=cache)
    description = extractor.describe()
    if (folder / "set.json").exists():
        stored = json.loads((folder / "set.json").read_text())["features"]
        if changed := [key for key in sorted(description | stored) if stored.get(key) != description.get(key)]:
            raise InputError(
                f"{folder}: the features of {name} were made with another {', '.join(changed)}; choose another --out"
            )
        return
    train, test = list_split(name, work=cache)
    store = open_store(cache, extractor)
    rows = {}
    for part, dataset in (("train", train), ("test", test)):
        paths = [record.path for record in dataset.records]
        extracted = extract_features(paths, store=store, extractor=extractor, workers=workers)
        save_array(folder / f"{part}.npy", store.load(extracted.hashes)[:, 0])
        rows[part] = list(extracted.rows)
    document = {
        "features": description,
        "ks": list(test.ks),
        "train_labels": [train.records[row].label for row in rows["train"]],
        "test_labels": [test.records[row].label for row in rows["test"]],
        "is_gallery": None if test.is_gallery is None else [test.is_gallery[row] for row in rows["test"]],
    }
    write_json(folder / "set.json", document)


@lru_cache(maxsize=4)
def load_features(folder: Path) -> FeatureSet:
    """The features that `prepare_features` wrote, kept in memory between the trainings of a worker."""
    document = json.loads((folder / "set.json").read_text())
    classes, train_labels = np.unique(document["train_labels"], return_inverse=True)
    is_gallery = document["is_gallery"]
    return FeatureSet(
        train=np.load(folder / "train.npy"),
        test=np.load(folder / "test.npy"),
        train_labels=train_labels.astype(np.int64),
        test_labels=np.unique(document["test_labels"], return_inverse=True)[1].astype(np.int64),
        classes=tuple(map(str, classes)),
        ks=tuple(document["ks"]),
        is_gallery=None if is_gallery is None else np.array(is_gallery),
    )


def list_query_classes(features: FeatureSet) -> np.ndarray:
    """(Q,) test labels of the queries that have another image to find, in the order of a record's hits."""
    labels, gallery = features.test_labels, features.is_gallery
    if gallery is None:
        return labels[np.bincount(labels)[labels] > 1]
    found = np.bincount(labels[gallery], minlength=labels.max() + 1)
    return labels[~gallery & (found[labels] > 0)]
