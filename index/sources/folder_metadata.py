"""Metadata tables in folders, as Hugging Face's ImageFolder has them: `metadata.csv`, `.jsonl` or `.parquet`.

A table has a column `file_name` with paths below its own folder, perhaps `label`, and other columns.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from index.errors import InputError
from index.items import FoundItem
from index.sources.folder_walk import find_file
from index.sources.table_rows import TableColumns, first_rows, read_column_names, read_table_rows
from index.text import printable_path

_TABLES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_COLUMNS = TableColumns(path="file_name")
_MAX_LINE = 1 << 20


class FolderMetadata:
    """The rows of all metadata tables below a folder, each table read when its folder is first met."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._nearest: dict[str, tuple[str, dict[str, FoundItem]] | None] = {}  # folder of the table, and its open rows
        self._read: set[str] = set()

    def describe(self, found: FoundItem) -> FoundItem | None:
        """The item with the label and metadata of the nearest table at or above it; None for a table itself."""
        if found.is_archive:
            return found
        nearest = self._find(found.path.rpartition("/")[0])
        if found.path in self._read:
            return None
        row = None if nearest is None else nearest[1].pop(found.path.removeprefix(nearest[0]), None)
        return found if row is None else describe_item(found, row)

    def missing(self) -> Iterator[FoundItem]:
        """The rows whose file was not met, as items with a problem."""
        for folder, rows in {id(one[1]): one for one in self._nearest.values() if one is not None}.values():
            for name, row in rows.items():
                found = find_file(os.path.join(self._root, folder, name), relative=folder + name)
                if found.problem is not None:
                    yield describe_item(found, row)

    def _find(self, folder: str) -> tuple[str, dict[str, FoundItem]] | None:
        if folder not in self._nearest:
            tables = [table for name in _TABLES if _is_table(table := os.path.join(self._root, folder, name))]
            if tables:
                start = f"{folder}/" if folder else ""
                self._read.update(start + os.path.basename(table) for table in tables)
                self._nearest[folder] = start, _read_rows(Path(tables[0]))
            else:
                self._nearest[folder] = self._find(folder.rpartition("/")[0]) if folder else None
        return self._nearest[folder]


def describe_item(found: FoundItem, row: FoundItem) -> FoundItem:
    """The item with the label and metadata of its row; an item keeps its label where the table has no label."""
    label = found.label if row.label is None else row.label or None
    found = replace(found, label=label, metadata=row.metadata or None)
    return found if row.problem is None else found.with_problem(row.problem.reason, row.problem.detail)


def _is_table(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    if not path.endswith(".jsonl"):
        return _COLUMNS.path in read_column_names(Path(path))
    with suppress(OSError, ValueError, RecursionError), open(path, encoding="utf-8-sig") as file:
        return _COLUMNS.path in json.loads(file.readline(_MAX_LINE))
    return False


def _read_rows(table: Path) -> dict[str, FoundItem]:
    def find_name(path: str) -> str:
        name = os.path.normpath(path)
        if name.startswith(("/", "../")):
            raise InputError(f"expected a file_name below the table's folder, found {printable_path(path)}", at=table)
        return name

    return {name: row for name, _, row in first_rows(table, read_table_rows(table, columns=_COLUMNS), find_name)}
