"""Where an image's label comes from: the first folder below the root, or a CSV or Parquet of `path,label`."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path

from index.errors import InputError
from index.images import printable_path, valid_text
from index.parquet import read_parquet_rows


def folder_label(relative_path: str) -> str | None:
    """The first folder of a `/`-separated path below the root; None for a file in the root itself.

    >>> folder_label("cats/indoor/1.jpg"), folder_label("1.jpg")
    ('cats', None)
    """
    first, separator, _ = relative_path.partition("/")
    return valid_text(first) if separator else None


def read_label_file(path: Path) -> dict[Path, str]:
    """Absolute image path to label; else as `read_labels`."""
    return {Path(image): label for image, label in read_labels(path).items()}


def read_labels(path: Path) -> dict[str, str]:
    """Absolute normal image path to label, from a table with the columns `path` and `label` (others are ignored).

    The table is Parquet where the file's name ends in `.parquet`, else CSV. Paths are relative to the table's own
    folder, or absolute. An empty label, or a null, leaves the image unlabelled; numbers become text.

    Raises:
        InputError: the file is missing, damaged, lacks a column, or gives one path two labels.
        MissingDependencyError: Parquet without pyarrow.
    """
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such label file")
    labels: dict[str, str] = {}
    root = str(path.resolve().parent)
    rows = read_parquet_rows(path) if path.suffix.lower() == ".parquet" else _read_csv_rows(path)
    for where, name, text in rows:
        if not name or "\0" in name:
            raise InputError(f"{shown}, {where}: the path {'is empty' if not name else 'has a NUL in it'}")
        image = os.path.normpath(os.path.join(root, name))
        label = text.strip()
        if labels.setdefault(image, label) != label:
            raise InputError(
                f"{shown}, {where}: {printable_path(name)} is labelled "
                f"{label!r} here and {labels[image]!r} above; keep one"
            )
    return {image: label for image, label in labels.items() if label}


def _read_csv_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """(where it stands, path, label) of every row."""
    shown = printable_path(str(path))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            if not {"path", "label"} <= set(columns):
                raise InputError(f"{shown}: expected a header with the columns path,label; found {columns}")
            for row in rows:
                yield f"line {rows.line_num}", row["path"] or "", row["label"] or ""
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{shown}: not a readable UTF-8 CSV file: {error}") from error
