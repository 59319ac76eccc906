"""Where an image's label comes from: the first folder below the root, or a CSV of `path,label`."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from index.errors import InputError
from index.images import printable_path, valid_text


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
    """Absolute normal image path to label, from a CSV with the columns `path` and `label` (others are ignored).

    Paths are relative to the CSV's own folder, or absolute. An empty label leaves the image unlabelled.

    Raises:
        InputError: the file is missing, not UTF-8, lacks a column, or gives one path two labels.
    """
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such label file")
    labels: dict[str, str] = {}
    root = str(path.resolve().parent)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            if not {"path", "label"} <= set(columns):
                raise InputError(f"{shown}: expected a header with the columns path,label; found {columns}")
            for row in rows:
                if not row["path"]:
                    raise InputError(f"{shown}, line {rows.line_num}: the path is empty")
                image = os.path.normpath(os.path.join(root, row["path"]))
                label = (row["label"] or "").strip()
                if labels.setdefault(image, label) != label:
                    raise InputError(
                        f"{shown}, line {rows.line_num}: {printable_path(row['path'])} is labelled "
                        f"{label!r} here and {labels[image]!r} above; keep one"
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{shown}: not a readable UTF-8 CSV file: {error}") from error
    return {image: label for image, label in labels.items() if label}
