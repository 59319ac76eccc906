"""Cleaned label file of an audit, which `train` reads in place of the original labels."""

import csv
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.arrays import connect_rows
from index.durable import replacing
from index.errors import InputError
from index.labels.decisions import CHANGE, DROP, HEADER, can_be_named, encode_labels
from index.labels.kinds import compare_duplicates, has_rare_class
from index.paths import path_from
from index.text import printable_path
from training.audit.report import AuditedImage, AuditReport
from training.data.datasets import require_outside
from training.run.run_folder import RunFolder

logger = logging.getLogger(__name__)

_MORE_COLUMNS = ("given", "verdict")


@dataclass(frozen=True, slots=True)
class CleanedLabels:
    """How many images a cleaned label file has, how many of them with a new label, and how many it leaves out."""

    file: Path
    images: int
    relabelled: int
    left_out: int


def check_label_target(path: Path, *, run: RunFolder) -> None:
    """Refuse a place for cleaned labels where something else would be lost, before any long work."""
    shown, data = printable_path(str(path)), Path(run.read_json("config.json")["data"])
    if path.suffix.lower() != ".csv":
        raise InputError(f"--apply {shown}: labels are written as CSV; name a file that ends in .csv")
    if path.resolve() == data.resolve():
        raise InputError(f"--apply {shown}: the run was trained from this file; choose another name")
    require_outside(path, data=data, flag="--apply")
    if not path.parent.is_dir():
        raise InputError(f"--apply {shown}: no such folder: {printable_path(str(path.parent))}")
    if path.exists() and not _is_ours(path):
        raise InputError(f"--apply {shown}: exists already and no audit wrote it; choose another name")


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return file.readline() == ",".join((*HEADER, *_MORE_COLUMNS)) + csv.excel.lineterminator


def choose_labels(images: Sequence[AuditedImage], *, decided: frozenset[int]) -> list[str | None]:
    """What each image is to be labelled; None leaves it out.

    Args:
        decided: rows whose verdict is a person's.
    """
    pairs = [(row, image.duplicate_of) for row, image in enumerate(images) if image.duplicate_of is not None]
    groups = connect_rows(np.array(pairs, dtype=np.int64).reshape(-1, 2), count=len(images))
    is_decided = np.array([row in decided for row in range(len(images))], dtype=bool)
    chosen = [
        # what people decided about one near-duplicate may be another verdict on the others
        image.label
        if image.duplicate_of is not None and row not in decided
        else {CHANGE: image.new_label, DROP: None}.get(image.verdict, image.label)
        for row, image in enumerate(images)
    ]
    confidences = np.array([image.confidence for image in images], dtype=np.float32)
    _, labels = np.unique([image.label for image in images], return_inverse=True)
    rare = has_rare_class(labels, groups)
    _, loses = compare_duplicates(chosen, groups, confidences=confidences, decided=is_decided, rare=rare)
    return [None if loses[row] else label for row, label in enumerate(chosen)]


def write_cleaned_labels(report: AuditReport, path: Path, *, decided: frozenset[int]) -> CleanedLabels:
    """Write path,label (and the label as given, and the verdict) of every image that stays.

    Paths are relative to the file's folder, so that it can be moved together with the images.
    """
    folder = path.parent.resolve()
    labels = choose_labels(report.images, decided=decided)
    kept = [(image, label) for image, label in zip(report.images, labels, strict=True) if label is not None]
    writable = [(image, label) for image, label in kept if can_be_named(str(image.path))]
    if len(writable) < len(kept):
        first = next(image.path for image, _ in kept if not can_be_named(str(image.path)))
        logger.warning(
            "left out, because a label file is UTF-8 and their names are not: %d images, the first is %s; rename them",
            len(kept) - len(writable), printable_path(str(first)),
        )  # fmt: skip
    rows = ([path_from(str(folder), str(image.path)), label, image.label, image.verdict] for image, label in writable)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(encode_labels(rows, more_columns=_MORE_COLUMNS))
    _warn_of_small_classes(Counter(label for _, label in writable), before={i.label for i in report.images})
    relabelled = sum(label != image.label for image, label in writable)
    return CleanedLabels(path, len(writable), relabelled, len(report.images) - len(writable))


def _warn_of_small_classes(counts: Counter[str], *, before: set[str]) -> None:
    for label in sorted(before):
        if counts[label] < 2:
            logger.warning(
                "class %r keeps %s; training leaves classes with fewer than two out",
                label, f"{counts[label]} image" if counts[label] else "no image",
            )  # fmt: skip
