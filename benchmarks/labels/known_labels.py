"""Images whose right labels are known, with their labels as people gave them or with mistakes of a known kind.

The images that chose the constants of the detection (`choose`) are not those that are reported (`report`). The images
of CIFAR-N are halved by their place, the groceries by their official parts, the cars by their classes, and the classes
of Tiny-ImageNet are those of its two archives (of the larger one a hundred images each).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import find_weights, unpack_labels, unpack_shared, unpack_tiny_imagenet, write_with_record
from benchmarks.noise.features import open_extractor
from benchmarks.noise.splits import list_clothing
from training.backbone.extract import extract_features, open_store
from training.data.datasets import list_dataset
from training.options.resolve import resolve_input

DATASETS = ("groceries", "cars", "cifar-n", "tiny-imagenet")
PARTS = ("choose", "report")
PEOPLE = ("aggre", "random1", "worse")  # columns of CIFAR-N: the most frequent of three labels, the first, the worst
NEAREST = 5  # classes that `alike` mistakes a class for
LONG_TAIL, LEAST_OF_TAIL = 50, 4
_PER_CLASS = 100  # of Tiny-ImageNet's larger archive


@dataclass(frozen=True, slots=True)
class KnownLabels:
    """Features of images, and what they are.

    Attributes:
        features: (N, F) float32 of the frozen backbone.
        right: (N,) int64 in 0..C-1.
        by_people: what people called them, by the name of the column, likewise.
        paths: of the images.
    """

    features: np.ndarray
    right: np.ndarray
    by_people: dict[str, np.ndarray]
    classes: tuple[str, ...]
    paths: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser, datasets: Sequence[str], kinds: Sequence[str]) -> None:
    """Options of all commands about labels."""
    parser.add_argument("--out", type=Path, required=True, help="folder for features, records and tables")
    parser.add_argument("--dataset", nargs="+", default=list(datasets), help=f"default: {' '.join(datasets)}")
    parser.add_argument("--part", choices=PARTS, default="report", help="of the data set (default: report)")
    parser.add_argument("--kind", nargs="+", default=list(kinds), help=f"default: {' '.join(kinds)}")
    parser.add_argument("--workers", type=int, default=2, help="default: 2")


def load_known_labels(name: str, part: str, folder: Path, *, workers: int) -> KnownLabels:
    """Images of a dataset with features, which are computed once and kept in the folder."""
    file = folder / f"{name}-{part}.npz"
    if not file.exists():
        paths, columns = list_images(name, part, folder / "images")
        features, rows = _extract(paths, folder / "cache", workers=workers)
        kept: dict[str, Any] = {key: np.array(values)[rows] for key, values in columns.items()}
        described = {"images": len(rows), "dataset": name, "part": part}
        names = np.array([str(paths[row]) for row in rows])
        save = partial(np.savez, features=features, paths=names, **kept)
        write_with_record(file.with_suffix(".json"), described, save, suffix=".npz")
    with np.load(file) as stored:
        classes, right = np.unique(stored["right"], return_inverse=True)
        by_people = {key: np.searchsorted(classes, stored[key]) for key in PEOPLE if key in stored}
        names, paths = (tuple(one.tolist()) for one in (classes, stored["paths"]))
        return KnownLabels(stored["features"], right.astype(np.int64), by_people, names, paths)


def list_images(name: str, part: str, images: Path) -> tuple[list[Path], dict[str, list[str]]]:
    reported = part == "report"
    if name == "clothing":
        records = list_clothing()
    elif name == "cars":
        records = list(list_dataset(unpack_shared("cars.tar", images) / "cars" / ("train", "test")[reported]).records)
    elif name == "tiny-imagenet":
        records = list(list_dataset(unpack_tiny_imagenet(images)[0 if reported else 1]).records)
        seen: dict[str, int] = {}
        for one in records:
            seen[one.label] = seen.get(one.label, 0) + 1
        if reported:
            step = max(seen.values()) // _PER_CLASS
            records = records[::step]
    else:
        folder, rows = unpack_labels(name, images)
        if name == "groceries":
            rows = [row for row in rows if (row["split"] == "train") == reported]
            return [folder / row["path"] for row in rows], {"right": [row["label"] for row in rows]}
        rows = rows[int(reported) :: 2]
        columns = {"right": "clean"} | {column: column for column in PEOPLE}
        return [folder / row["path"] for row in rows], {k: [row[v] for row in rows] for k, v in columns.items()}
    return [one.path for one in records], {"right": [one.label for one in records]}


def _extract(paths: Sequence[Path], cache: Path, *, workers: int) -> tuple[np.ndarray, list[int]]:
    extractor = open_extractor("mobilenet_v2", str(find_weights()), resolve_input("mobilenet_v2"))
    store = open_store(cache, extractor)
    extracted = extract_features(paths, store=store, extractor=extractor, workers=workers)
    return store.load(extracted.hashes)[:, 0], list(extracted.rows)


def mistake(known: KnownLabels, kind: str, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and labels of these, with mistakes.

    Args:
        kind: `right`; a column of people's labels; `any:SHARE`, labels replaced by any other class's; `alike:SHARE`,
            by one of the five classes whose mean features are nearest; `none:SHARE`, images of whole classes get any
            other label, so that no label fits them; with `tail ` before it of a long tail, in which the most frequent
            class has fifty times the images of the rarest.
        seed: of what is drawn.

    Returns:
        (n,) int64 row numbers and (n,) int64 labels.
    """
    random = np.random.default_rng(seed)
    tail, _, what = kind.rpartition(" ")
    rows = _long_tail(known.right, random) if tail else np.arange(len(known.right))
    right = known.right[rows]
    if what == "right":
        return rows, right.copy()
    if what in known.by_people:
        return rows, known.by_people[what][rows]
    how, _, share = what.partition(":")
    labels, count = right.copy(), len(known.classes)
    wrong = np.flatnonzero(random.random(len(rows)) < float(share))
    if how == "none":
        order = random.permutation(count)
        images = np.bincount(right, minlength=count)[order].cumsum()
        dropped = order[: int(np.searchsorted(images, float(share) * len(rows))) + 1]
        wrong = np.flatnonzero(np.isin(right, dropped))
        labels[wrong] = random.choice(np.setdiff1d(np.arange(count), dropped), len(wrong))
    elif how == "any":
        labels[wrong] = (right[wrong] + random.integers(1, count, len(wrong))) % count
    else:
        nearest = find_nearest_classes(known.features, known.right)
        labels[wrong] = nearest[right[wrong], random.integers(0, nearest.shape[1], len(wrong))]
    return rows, labels


def find_nearest_classes(features: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(C, 5) classes by the cosine of the mean features of (N,) right labels, which are centred."""
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    means = np.stack([units[right == label].mean(axis=0) for label in range(int(right.max()) + 1)])
    means -= means.mean(axis=0)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosines = means @ means.T
    np.fill_diagonal(cosines, -2)
    return np.argsort(-cosines, axis=1)[:, : min(NEAREST, len(means) - 1)]


def _long_tail(right: np.ndarray, random: np.random.Generator) -> np.ndarray:
    images = np.bincount(right)
    kept = []
    for place, label in enumerate(random.permutation(len(images)).tolist()):
        share = LONG_TAIL ** (-place / (len(images) - 1))
        rows = random.permutation(np.flatnonzero(right == label))
        kept.append(rows[: max(LEAST_OF_TAIL, int(len(rows) * share))])
    return np.sort(np.concatenate(kept))
