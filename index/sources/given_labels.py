"""Where an image's label comes from: the first folder below the root, or a CSV or Parquet of `path,label`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from index.errors import InputError
from index.sources.table_columns import USUAL, TableColumns, split_address
from index.sources.table_rows import as_text, label_conflict, read_table_rows
from index.text import printable_path, valid_text


def folder_label(relative_path: str) -> str | None:
    """The first folder of a `/`-separated path below the root; None for a file in the root itself.

    >>> folder_label("cats/indoor/1.jpg"), folder_label("1.jpg")
    ('cats', None)
    """
    first, separator, _ = relative_path.partition("/")
    return valid_text(first) if separator else None


def find_table(text: str | Path, columns: TableColumns = USUAL) -> tuple[Path, TableColumns]:
    """The file and the columns of a table, of which its address may name some: these go before those given."""
    if os.path.isfile(text):
        return Path(text), columns
    table, said = split_address(str(text))
    if "url" in said:
        raise InputError(
            f"{printable_path(str(text))}: a list of addresses; files are wanted here, by a column path"
        )
    return Path(table), replace(columns, **said)


def read_label_file(path: Path, *, columns: TableColumns = USUAL) -> dict[Path, str]:
    """Absolute image path to label; else as `read_labels`."""
    return {Path(image): label for image, label in read_labels(path, columns=columns).items()}


def read_labels(path: Path, *, columns: TableColumns = USUAL) -> dict[str, str]:
    """Absolute normal image path to label, from a table's columns of path and label (others are ignored).

    The table is Parquet where the file's name ends in `.parquet`, else CSV. Paths are relative to the table's own
    folder, or absolute. An empty label, or a null, leaves the image unlabelled; numbers become text.

    Raises:
        InputError: the file is missing, damaged, lacks a column, or gives one path two labels.
        MissingDependencyError: Parquet without pyarrow.
    """
    path, columns = find_table(path, columns)
    if not path.is_file():
        raise InputError(f"{printable_path(str(path))}: no such label file")
    labels: dict[str, str] = {}
    root = str(path.resolve().parent)
    for row in read_table_rows(path, columns=columns, required=("path", "label"), metadata=False):
        if row.problem is not None:
            raise InputError(f"{printable_path(str(path))}: {row.problem}")
        image = os.path.normpath(os.path.join(root, row.path))
        label = row.label or ""
        if labels.setdefault(image, label) != label:
            raise label_conflict(path, row, above=labels[image])
    return {image: label for image, label in labels.items() if label}


def read_column(path: Path, name: str, *, columns: TableColumns = USUAL) -> dict[str, str]:
    """Absolute normal image path to the text in a column of a table; images without are left out.

    Raises:
        InputError: the file is missing or damaged, or gives one path two values.
        MissingDependencyError: Parquet without pyarrow.
    """
    path, columns = find_table(path, columns)
    root = str(path.resolve().parent)
    texts: dict[str, str] = {}
    for row in read_table_rows(path, columns=columns):
        value = row.metadata.get(name)
        text = "" if isinstance(value, dict | list) else as_text(value).strip()
        if texts.setdefault(os.path.normpath(os.path.join(root, row.path)), text) != text:
            raise InputError(
                f"{printable_path(str(path))}, {row.where}: {printable_path(row.path)} has another value of {name!r} "
                "above; keep one"
            )
    return {image: text for image, text in texts.items() if text}
