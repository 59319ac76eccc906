"""Datasets as the grid reads them: backbone features and labels of training and test images, written once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.common.record import find_weights, save_array, write_json
from benchmarks.noise.cells import GridFolder
from benchmarks.noise.splits import list_split, take_share
from index.errors import InputError
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import Extractor, extract_features, open_store
from training.options.backbone_libraries import preprocess_for
from training.options.config import InputConfig
from training.options.machine import resolve_device
from training.options.resolve import resolve_input

MANY_CLASSES, FEW_CLASSES_FOLDS = 25, 3


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """Frozen features of a dataset.

    Attributes:
        train, test: (N, F) and (M, F) float32.
        train_labels, test_labels: int64; the training labels are numbered 0..C-1 in the order of `classes`.
        test_names: labels of the test images as text.
        is_gallery: (M,) bool for query/gallery protocols, None for leave-one-out.
    """

    name: str
    train: np.ndarray
    test: np.ndarray
    train_labels: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    test_names: tuple[str, ...]
    test_paths: tuple[str, ...]
    is_gallery: np.ndarray | None
    ks: tuple[int, ...]


def prepare_features(
    name: str,
    folder: Path,
    *,
    cache: Path,
    backbone: str,
    weights: str,
    sizes: InputConfig,
    workers: int,
) -> None:
    """Extract and write a dataset's features, unless they stand already.

    Args:
        sizes: how images reach the backbone, with view and pooling.

    Raises:
        InputError: those that stand come from another backbone or other weights or preprocessing.
    """
    preprocess = preprocess_for(backbone, resize=sizes.resize, crop=sizes.crop, view=sizes.view)
    network = load_backbone(backbone, weights, side=sizes.crop)
    seeing = with_features(network, view=sizes.view, pooling=sizes.pooling, side=sizes.crop)
    extractor = Extractor(seeing, preprocess, device=resolve_device("auto"))
    description = extractor.describe(views=1)
    if (folder / "set.json").exists():
        stored = json.loads((folder / "set.json").read_text())["features"]
        changed = [
            key for key in sorted(description.keys() | stored.keys()) if stored.get(key) != description.get(key)
        ]
        if changed:
            raise InputError(
                f"{folder}: the features of {name} were made with another {', '.join(changed)}, and so was all that "
                "is trained on them; choose another --out"
            )
        return
    split = list_split(name, work=cache)
    store = open_store(cache, extractor, views=1)
    rows = {}
    for part, records in (("train", split.train), ("test", split.test)):
        paths = [record.path for record in records]
        extracted = extract_features(paths, store=store, extractor=extractor, views=1, workers=workers)
        save_array(folder / f"{part}.npy", store.load(extracted.hashes)[:, 0])
        rows[part] = list(extracted.rows)
    document = {
        "name": name, "features": description, "ks": list(split.ks),
        "train_labels": [split.train[row].label for row in rows["train"]],
        "test_labels": [split.test[row].label for row in rows["test"]],
        "test_paths": [str(split.test[row].path) for row in rows["test"]],
        "is_gallery": None if split.is_gallery is None else [split.is_gallery[row] for row in rows["test"]],
    }  # fmt: skip
    write_json(folder / "set.json", document)


def prepare_usual_features(folder: GridFolder, datasets: Sequence[str], *, workers: int) -> None:
    """Features of the frozen MobileNetV2, as the grid makes them unless told otherwise; those that stand are taken."""
    for name in datasets:
        features = folder.features(name)
        if not (features / "set.json").exists():
            usual = {"backbone": "mobilenet_v2", "weights": str(find_weights()), "cache": folder.path / "cache"}
            prepare_features(name, features, **usual, sizes=resolve_input("mobilenet_v2"), workers=workers)


@lru_cache(maxsize=4)
def load_features(folder: Path) -> FeatureSet:
    """What `prepare_features` wrote; kept, as a worker asks for the same set again and again."""
    document = json.loads((folder / "set.json").read_text())
    classes, train_labels = np.unique(document["train_labels"], return_inverse=True)
    is_gallery = document["is_gallery"]
    return FeatureSet(
        name=document["name"], train=np.load(folder / "train.npy"), test=np.load(folder / "test.npy"),
        train_labels=train_labels.astype(np.int64),
        test_labels=np.unique(document["test_labels"], return_inverse=True)[1].astype(np.int64),
        classes=tuple(map(str, classes)), test_names=tuple(document["test_labels"]),
        test_paths=tuple(document["test_paths"]), ks=tuple(document["ks"]),
        is_gallery=None if is_gallery is None else np.array(is_gallery),
    )  # fmt: skip


def list_query_classes(features: FeatureSet) -> np.ndarray:
    """(Q,) test labels of the queries that have another image to find, in the order of a record's hits."""
    labels, gallery = features.test_labels, features.is_gallery
    if gallery is None:
        return labels[np.bincount(labels)[labels] > 1]
    found = np.bincount(labels[gallery], minlength=labels.max() + 1)
    return labels[~gallery & (found[labels] > 0)]


def count_folds(features: FeatureSet) -> int:
    """In how many ways the training data is parted for tuning: few classes must all judge, or chance does."""
    return 1 if is_seen(features) or len(features.classes) >= MANY_CLASSES else FEW_CLASSES_FOLDS


def hold_out_for_tuning(features: FeatureSet, *, fold: int, folds: int) -> FeatureSet:
    """The training part alone, parted again: what tunes never sees a test image.

    Where the test classes are other classes, training classes become the test part: every fifth one, or with several
    folds one class in `folds`, another one in every fold. Where they are the training classes, 30 % of every class's
    images do.
    """
    if is_seen(features):
        held = ~take_share(features.train_labels, seed=1)
    elif folds == 1:
        chosen = np.linspace(0, len(features.classes) - 1, num=len(features.classes) // 5).round().astype(np.int64)
        held = np.isin(features.train_labels, chosen)
    else:
        held = features.train_labels % folds == fold
    kept, numbers = np.unique(features.train_labels[~held], return_inverse=True)
    names = np.array(features.classes)
    return FeatureSet(
        name=f"{features.name}, tuning", train=features.train[~held], test=features.train[held],
        train_labels=numbers.astype(np.int64), test_labels=features.train_labels[held],
        classes=tuple(names[kept].tolist()), test_names=tuple(names[features.train_labels[held]].tolist()),
        test_paths=(), is_gallery=None, ks=(1,),
    )  # fmt: skip


def is_seen(features: FeatureSet) -> bool:
    """Whether images of the training classes are searched."""
    return set(features.test_names) <= set(features.classes)
