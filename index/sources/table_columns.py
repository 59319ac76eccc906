"""Which columns of a table hold the path and the label, as an address of the table may say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from index.errors import InputError
from index.text import printable_path

TABLE_SUFFIXES = (".csv", ".parquet", ".tsv", ".jsonl")
_ADDRESS = re.compile(r"(?P<table>.+\.(?:csv|parquet|tsv|jsonl))#(?P<columns>[^#]*)", re.IGNORECASE | re.DOTALL)
_EXAMPLE = "photos.csv#path=image,label=category"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of a table's columns.

    Attributes:
        path: of where an image is.
        label: of what it shows.
        role: what the first one holds, `path` or `url`.
    """

    path: str = "path"
    label: str = "label"
    role: str = "path"

    def __post_init__(self) -> None:
        if not self.path or not self.label or self.path == self.label:
            raise InputError(
                f"{self.role} and label are two columns of a table, got {self.path!r} and {self.label!r}"
            )

    def missing(self, found: list[str], *, required: tuple[str, ...]) -> list[str]:
        """Columns that are not there, of those that a reader wants or that are not called as usual."""
        wanted = [name for role, name in (("path", self.path), ("label", self.label))
                  if role in required or name != role]  # fmt: skip
        return [name for name in wanted if name not in found]


USUAL = TableColumns()


def split_address(text: str) -> tuple[str, dict[str, str]]:
    """A table's file, and the columns that are named by role, of `photos.csv#path=image,label=category`.

    >>> split_address("photos.csv#label=category"), split_address("photos.csv")
    (('photos.csv', {'label': 'category'}), ('photos.csv', {}))
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return text, {}
    pairs = [part.partition("=") for part in match["columns"].split(",")]
    names = {role: unquote(name) for role, _, name in pairs}
    known = {"label", "url" if "url" in names else "path"}
    if len(names) < len(pairs) or not names.keys() <= known or not all(names.values()):
        raise InputError(
            f"{printable_path(text)}: after # the columns of path (or url) and label are expected, as in {_EXAMPLE}"
        )
    return match["table"], names


def make_address(table: str, columns: TableColumns) -> str:
    """The text that `split_address` reads; the file's name alone where its columns are the usual ones."""
    names = ((columns.role, columns.path), ("label", columns.label))
    said = ",".join(f"{role}={quote(name, safe=' ')}" for role, name in names if name != role)
    return f"{table}#{said}" if said else table


def say_columns(text: str, **columns: str) -> str:
    """A table, or its address, as one that names these columns by role, unless it does; anything else as it is."""
    table, said = split_address(text)
    if not table.lower().endswith(TABLE_SUFFIXES):
        return text
    return f"{table}#" + ",".join(f"{role}={quote(name, safe=' ')}" for role, name in {**columns, **said}.items())
