"""Labelled images from a folder of class folders, or from a CSV or Parquet file of `path,label`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.errors import ImageError, InputError
from index.evaluation.scenes import COLUMN
from index.images.image_files import read_image
from index.sources.folder_walk import walk_folder
from index.sources.given_labels import folder_label, read_column, read_label_file
from index.text import printable_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled image: where it is, the label it was given, and what a table says which scene it shows."""

    path: Path
    label: str
    group: str | None = None


@dataclass(frozen=True, slots=True)
class SkippedImage:
    """One image that could not be used, with a reason of `index.images.image_files.REASONS`."""

    path: Path
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """The records of a data source in a fixed order, and what was skipped while listing them."""

    records: tuple[Record, ...]
    skipped: tuple[SkippedImage, ...]


def list_dataset(data: Path) -> Dataset:
    """List a dataset without decoding anything.

    Args:
        data: a folder (an image's label is the first folder below it), or a CSV or Parquet file of
            `path,label`, whose column `group`, if there is one, is the same for images of one scene.

    Raises:
        InputError: it does not exist, or nothing in it is labelled.
    """
    if not data.exists():
        raise InputError(f"{printable_path(str(data))}: no such folder, CSV or Parquet file")
    dataset = _list_folder(data) if data.is_dir() else _list_table(data)
    if not dataset.records:
        raise InputError(
            f"{printable_path(str(data))}: no labelled image; expected class folders with images in them, "
            "or a CSV or Parquet file with the columns path,label"
        )
    return dataset


def _list_folder(folder: Path) -> Dataset:
    records, skipped, unlabelled = [], [], []
    for found in walk_folder(folder):
        path = folder.resolve() / found.path
        label = folder_label(found.path)
        if found.problem is not None:
            skipped.append(SkippedImage(path, found.problem.reason, found.problem.detail))
        elif label is None:
            unlabelled.append(found.path)
        else:
            records.append(Record(path, label))
    if unlabelled and records:
        named = ", ".join(map(printable_path, unlabelled[:3])) + (", …" if len(unlabelled) > 3 else "")
        logger.warning("left out, because not in a class folder of %s: %d (%s)", folder, len(unlabelled), named)
    return Dataset(tuple(records), tuple(skipped))


def _list_table(path: Path) -> Dataset:
    labels, groups = read_label_file(path), read_column(path, COLUMN)
    records = (Record(image, label, groups.get(str(image))) for image, label in sorted(labels.items()))
    return Dataset(tuple(records), ())


def require_outside(path: Path, *, data: Path, flag: str) -> None:
    """Refuse to write into the data: whatever lies below a folder of class folders is a class the next time.

    Raises:
        InputError: `path` is `data` or lies in it.
    """
    if data.is_dir() and path.resolve().is_relative_to(data.resolve()):
        raise InputError(
            f"{flag} {printable_path(str(path))} lies inside the images in {printable_path(str(data))}, where it would "
            "count as a class; choose a place beside them"
        )


def check_trainable(records: Sequence[Record], *, data: Path) -> None:
    """Refuse data that cannot be trained on, before any long work: one class only, or no readable image.

    Raises:
        InputError: fewer than two classes with two images each, or every file fails to decode.
    """
    require_two_classes([record.label for record in records], data=data)
    for record in records:
        try:
            read_image(record.path, target_side=1)
        except ImageError:
            continue
        return
    raise InputError(f"{printable_path(str(data))}: none of the {len(records)} files is a readable image")


def require_two_classes(labels: Sequence[str], *, data: Path) -> None:
    """Refuse labels with fewer than two classes of at least two images.

    Raises:
        InputError: with the classes seen.
    """
    counts = Counter(labels)
    usable = [label for label, count in counts.items() if count >= 2]
    if len(usable) < 2:
        seen = ", ".join(f"{label!r} ({count})" for label, count in counts.most_common(5)) or "none"
        raise InputError(
            f"{printable_path(str(data))}: metric learning needs at least two classes of at least two usable images; "
            f"classes seen: {seen}"
        )


def cap_classes(records: Sequence[Record], *, max_per_class: int | None, seed: int) -> list[Record]:
    """At most `max_per_class` records of every class, drawn by the seed; the order is kept."""
    if max_per_class is None:
        return list(records)
    order = np.random.default_rng(seed).permutation(len(records))
    taken: Counter[str] = Counter()
    kept = []
    for index in order:
        label = records[index].label
        if taken[label] < max_per_class:
            taken[label] += 1
            kept.append(index)
    return [records[index] for index in sorted(kept)]


def keep_usable_classes(labels: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Which of (N,) labels belong to classes with at least two images: (N,) bool, and the classes dropped."""
    counts = Counter(labels)
    keep = np.array([counts[label] >= 2 for label in labels], dtype=bool)
    return keep, sorted(label for label, count in counts.items() if count < 2)
