"""Labelled images from a folder of class folders, from a CSV or Parquet file, or from a gallery."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.errors import ImageError, InputError
from index.evaluation.groups import COLUMN
from index.evaluation.metrics import DEFAULT_KS
from index.images.image_files import read_image
from index.labels.decided_labels import read_current_catalog, read_label_probabilities
from index.labels.decision_files import read_trust
from index.sources.folder_walk import walk_folder
from index.sources.local_source import find_folder_around
from index.sources.registry import refuse_models
from index.sources.source import ImageSource
from index.sources.table_rows import (
    USUAL,
    TableColumns,
    as_text,
    find_table,
    folder_label,
    read_column,
    read_column_names,
    read_labels,
)
from index.text import printable_path
from index.versions.gallery_identity import FolderState, recognise

logger = logging.getLogger(__name__)
_NAMED_PARTS = 6
_DECIDED = "new_label"  # of lists of decisions; no label file has it
_TRAINING, _VALIDATION, _TEST = ("train", "training"), ("val", "valid", "validation", "dev"), "test"


@dataclass(frozen=True, slots=True)
class Record:
    """Labelled image.

    Attributes:
        group: of photos that belong together, if a table names one.
        p_right: probability (0..1) that the label is right, as its setter stated; None without a decision.
        before: the label before a machine changed it; None where none did.
    """

    path: Path
    label: str
    group: str | None = None
    p_right: float | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Records of a data source in a fixed order, to train on or to validate with.

    Attributes:
        skipped: images skipped while listing.
        is_gallery: for each record of a validation set; queries search the gallery only. None: each image searches all
            others.
        ks: K of Recall@K.
    """

    records: tuple[Record, ...]
    skipped: tuple[tuple[Path, ImageError], ...] = ()
    is_gallery: tuple[bool, ...] | None = None
    ks: tuple[int, ...] = DEFAULT_KS


def list_dataset(data: Path, *, columns: TableColumns = USUAL) -> Dataset:
    """List a dataset without decoding.

    Args:
        data: a folder (an image's label is the first folder below it), a CSV or Parquet file, or its address, or a
            gallery (labels as decided, without dropped images). A column `group` is optional.
        columns: names of the path and label columns of a table.
    """
    refuse_models(str(data))
    table, columns = find_table(data, columns)
    if not table.exists():
        raise InputError("no such folder, CSV or Parquet file, or gallery", at=data)
    if _is_gallery(data):
        dataset = _list_gallery(data)[0]
    else:
        dataset = _list_folder(data) if data.is_dir() else _list_table(table, columns)
    if not dataset.records:
        expected = "expected class folders with images in them, a CSV or Parquet file of paths and labels, or a gallery"
        if _is_gallery(data):
            expected = "give its images labels in its Labels view or by `retrieval labels set`"
        raise InputError(f"no labelled image; {expected}", at=data)
    return dataset


def list_splits(data: Path, *, columns: TableColumns, split_column: str) -> tuple[Dataset, Dataset | None]:
    """Training and validation images of a table or a gallery, by a column.

    `train` trains; `val` (or `valid`, `validation`, `dev`) validates, else `test`. Others are left out with a warning.
    """
    refuse_models(str(data))
    table, columns = find_table(data, columns)
    shown = printable_path(data)
    if _is_gallery(data):
        dataset, splits = _list_gallery(data, split_column=split_column)
    elif table.is_file():
        dataset, splits = _list_table(table, columns), read_column(table, split_column, columns=columns)
    else:
        problem = "--split-column goes with a CSV or Parquet file, or a gallery, whose column it names"
        raise InputError(problem, at=data)
    if not splits:
        raise InputError(f"no image has a value in a column {split_column!r}", at=data)
    parts: dict[str, list[Record]] = {}
    for record in dataset.records:
        parts.setdefault(splits.get(str(record.path), "").lower(), []).append(record)
    seen = _count_parts(parts)
    training = [record for name in _TRAINING for record in parts.pop(name, ())]
    if not training:
        problem = f"its column {split_column!r} calls no labelled image 'train'; seen: {seen or 'no labelled image'}"
        raise InputError(problem, at=data)
    held_out = [record for name in _VALIDATION for record in parts.pop(name, ())] or parts.pop(_TEST, [])
    if parts:
        logger.warning("%s: left out, because neither train nor validation: %s", shown, _count_parts(parts))
    return Dataset(tuple(training)), Dataset(tuple(held_out)) if held_out else None


def _count_parts(parts: Mapping[str, Sequence[Record]]) -> str:
    named = [f"{name or 'nothing'!r} ({len(records)})" for name, records in sorted(parts.items())]
    more = f" and {len(named) - _NAMED_PARTS:,} others" if len(named) > _NAMED_PARTS else ""
    return ", ".join(named[:_NAMED_PARTS]) + more


def _is_gallery(data: Path) -> bool:
    """Whether a folder is a gallery, damaged or not, and not one of class folders."""
    return data.is_dir() and recognise(data) in (FolderState.MARKED, FolderState.DAMAGED)


def _list_gallery(gallery: Path, *, split_column: str | None = None) -> tuple[Dataset, dict[str, str]]:
    """Members with labels as decided, without dropped ones, and the values of a metadata column by path.

    Images in archives and remote stores, which training does not read, are left out with a warning.
    """
    shown = printable_path(gallery)
    records, splits, unreadable = [], dict[str, str](), 0
    trust = read_label_probabilities(gallery)
    with read_current_catalog(gallery, decided=True) as catalog:
        sources = catalog.sources()
        for row in catalog.rows(status="indexed"):
            if not (label := (row.label or "").strip()):
                continue
            place = sources[row.source].locate(row)
            if row.archive is not None or place.store is not None:
                unreadable += 1
                continue
            group = as_text(row.metadata.get(COLUMN)) or None
            records.append(Record(place.file, label, group, *trust.of(row)))
            if split_column is not None and (split := as_text(row.metadata.get(split_column)).strip()):
                splits[str(place.file)] = split
    if unreadable:
        advice = f"`retrieval dataset export {shown} --out FOLDER --where 'label IS NOT NULL'` writes them as files"
        where = "in archives or remote stores, which training does not read"
        if not records:
            raise InputError(f"{shown}: its {unreadable:,} labelled images are {where}: {advice}; train on that FOLDER")
        logger.warning("%s: left out, because %s: %d; %s", shown, where, unreadable, advice)
    return Dataset(tuple(sorted(records, key=lambda record: record.path))), splits


def _list_folder(folder: Path) -> Dataset:
    records, skipped, unlabelled = [], [], []
    table, trust = folder / "metadata.parquet", dict[str, tuple[float | None, str | None]]()
    if table.is_file() and "file_name" in read_column_names(table):  # beside an exported image folder
        columns = TableColumns(path="file_name")
        trust = read_trust(table, columns, labels=read_column(table, columns.label, columns=columns))
    for found in walk_folder(folder):
        path = folder.resolve() / found.path
        label = folder_label(found.path)
        if found.problem is not None:
            skipped.append((path, ImageError(path, found.problem.reason, found.problem.detail)))
        elif label is None:
            unlabelled.append(found.path)
        else:
            records.append(Record(path, label, None, *trust.get(str(path), (None, None))))
    if unlabelled and records:
        named = ", ".join(map(printable_path, unlabelled[:3])) + (", …" if len(unlabelled) > 3 else "")
        logger.warning("left out, because not in a class folder of %s: %d (%s)", folder, len(unlabelled), named)
    return Dataset(tuple(records), tuple(skipped))


def _list_table(path: Path, columns: TableColumns) -> Dataset:
    if _DECIDED in read_column_names(path):
        raise InputError(
            f"{printable_path(path)}: a list of decisions, whose labels are those given before them. Train on the "
            "gallery itself, on what `retrieval audit RUN --apply FILE` writes or on the label file of the page; or "
            f"leave out the column {_DECIDED!r}"
        )
    labels, groups = read_labels(path, columns=columns), read_column(path, COLUMN, columns=columns)
    trust = read_trust(path, columns, labels=labels)
    records = [
        Record(Path(image), label, groups.get(image), *trust.get(image, (None, None)))
        for image, label in labels.items()
    ]
    return Dataset(tuple(sorted(records, key=lambda record: record.path)))


def require_outside(path: Path, *, data: Path, flag: str) -> None:
    """Refuse to write below the images, of a gallery too: a folder there would be a class the next time."""
    sources: Iterable[ImageSource] = ()
    if _is_gallery(data):
        with read_current_catalog(data) as catalog:
            sources = catalog.sources().values()
    folder = find_folder_around(path, data, sources) if data.is_dir() else None
    if folder is not None:
        raise InputError(
            f"{flag} {printable_path(path)} lies inside the images in {printable_path(folder)}, where it "
            "would count as a class; choose a place beside them"
        )


def check_trainable(records: Sequence[Record], *, data: Path) -> None:
    """Refuse data with one class only, or without a readable image."""
    require_two_classes([record.label for record in records], data=data)
    first: ImageError | None = None
    for record in records:
        try:
            read_image(record.path, target_side=1)
        except ImageError as error:
            first = first or error
            continue
        return
    where = "" if data.is_dir() else "; a table's paths are relative to its own folder, or absolute"
    if _is_gallery(data):
        shown = printable_path(data)
        where = f"; if the images were moved, say where they are now: retrieval index update {shown} --root FOLDER"
    raise InputError(f"none of the {len(records)} files is a readable image; the first: {first}{where}", at=data)


def require_two_classes(labels: Sequence[str], *, data: Path) -> None:
    """Refuse labels with fewer than two classes of at least two images."""
    counts = Counter(labels)
    usable = [label for label, count in counts.items() if count >= 2]
    if len(usable) < 2:
        seen = ", ".join(f"{label!r} ({count})" for label, count in counts.most_common(5)) or "none"
        problem = f"metric learning needs at least two classes of at least two usable images; classes seen: {seen}"
        raise InputError(problem, at=data)


def cap_classes(records: Sequence[Record], *, max_per_class: int | None, seed: int) -> list[Record]:
    """At most `max_per_class` records of every class, drawn by the seed, in the same order."""
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
    """(N,) bool, which labels belong to classes with at least two images, and the other classes."""
    counts = Counter(labels)
    keep = np.array([counts[label] >= 2 for label in labels], dtype=bool)
    return keep, sorted(label for label, count in counts.items() if count < 2)
