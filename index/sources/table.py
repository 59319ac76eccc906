"""A CSV or Parquet file as a source: each row names one image, with its label and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

from index.errors import ImageError
from index.sources.folder_walk import find_file
from index.sources.given_labels import find_table
from index.sources.items import FoundItem
from index.sources.known import NOTHING_KNOWN, Known
from index.sources.local_files import absolute_below, below, label_below
from index.sources.local_source import LocalSource
from index.sources.source import Reach
from index.sources.table_columns import TableColumns, make_address
from index.sources.table_rows import TableRow, label_conflict, read_table_rows
from index.text import printable_path


class TableSource(LocalSource):
    """The files that the rows of a table name, relative to the table's own folder or absolute."""

    kind: ClassVar[str] = "table"
    reach: ClassVar[Reach] = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".parquet")

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A table, or the address of one that says what its columns are called."""
        table, columns = find_table(text)
        found = super().find(str(table))
        return None if found is None else cls(make_address(found.location, columns))

    def is_there(self) -> bool:
        """Whether there is a file of this name."""
        return find_table(self.location)[0].exists()

    def naming(self, columns: TableColumns) -> Self:
        """The same table, of whose columns these hold path and label."""
        table, combined = find_table(self.location, columns)
        return replace(self, location=make_address(str(table), combined))

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        """In the table's order. A row is one file, never an archive's members; the first row of a file counts."""
        (table, columns), root = find_table(self.location), self.root
        labels: dict[str, str | None] = {}
        same: dict[str | None, str | None] = {}  # one object for each label
        for row in read_table_rows(table, columns=columns):
            path = absolute_below(root, row.path)
            if path not in labels:
                labels[path] = same.setdefault(row.label, row.label)
                yield _row_item(find_file(path, relative=below(root, path)), row)
            elif labels[path] != row.label:
                raise label_conflict(table, row, above=labels[path])


def _row_item(found: FoundItem, row: TableRow) -> FoundItem:
    problem = found.problem
    if row.problem is not None:
        problem = ImageError(path=printable_path(found.path), reason="oversized-row", detail=row.problem)
    label = label_below(found.path) if row.label is None else row.label or None
    return replace(found, label=label, metadata=row.metadata or None, problem=problem)
