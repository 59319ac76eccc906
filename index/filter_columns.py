"""Whether the metadata that a filter names is there: a misspelt name is to be told, not to select nothing."""

from __future__ import annotations

import sqlite3
from difflib import SequenceMatcher

from index.errors import InputError
from index.filter_sql import OWN_COLUMNS, expand, reach
from index.filters import Filter, write_column
from index.images import printable_path

_MOST_SHOWN = 12
_MOST_COMPARED = 1000
_ALIKE = 0.6  # of 1, from where on a name is taken for the one that was meant
_MOST_CHARACTERS = 100  # of two names that are compared, which takes the product


def check_columns(where: Filter, connection: sqlite3.Connection) -> None:
    """See that every column is in the metadata of some row, of whatever status.

    Raises:
        InputError: one is in none; it is named with those that there are, the most similar first.
    """
    for names in where.columns:
        if not _exists(names, connection):
            depth = next(depth for depth in range(1, len(names) + 1) if not _exists(names[:depth], connection))
            raise InputError(_explain(names[:depth], connection))


def _exists(names: tuple[str, ...], connection: sqlite3.Connection) -> bool:
    kind = reach(names, what="type")
    query = f"SELECT 1 FROM images WHERE {kind.text} IS NOT NULL LIMIT 1"
    return connection.execute(query, kind.values).fetchone() is not None


def _explain(names: tuple[str, ...], connection: sqlite3.Connection) -> str:
    missing = f"no item of the gallery has the metadata {printable_path(write_column(names))}"
    inside = names[:-1]
    columns = _list_columns(inside, connection)
    if not columns and inside:
        return f"{missing}; there is none within {printable_path(write_column(inside))}"
    own = [] if inside else list(OWN_COLUMNS)
    known = sorted([*own, *map(write_column, columns)], key=lambda name: (-_likeness(name, names), name))
    listed = ", ".join(map(printable_path, known[:_MOST_SHOWN]))
    more = f" and {len(known) - _MOST_SHOWN:,} more" if len(known) > _MOST_SHOWN else ""
    alike = f"; did you mean {printable_path(known[0])}?" if _likeness(known[0], names) >= _ALIKE else ""
    return f"{missing}; there are {listed}{more}{alike}"


def _list_columns(inside: tuple[str, ...], connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """What metadata there is within that of these names."""
    wanted = "".join(f"k{number}.key = ? AND " for number in range(len(inside)))
    kind = "'object'" if not inside else f"k{len(inside) - 1}.type"
    query = (
        f"SELECT DISTINCT k{len(inside)}.key FROM images, {expand(len(inside) + 1)} "
        f"WHERE {wanted} {kind} = 'object' LIMIT ?"
    )
    rows = connection.execute(query, (*inside, _MOST_COMPARED)).fetchall()
    return [(*inside, str(name)) for (name,) in rows]


def _likeness(name: str, names: tuple[str, ...]) -> float:
    wanted = write_column(names)
    return SequenceMatcher(None, name[:_MOST_CHARACTERS].lower(), wanted[:_MOST_CHARACTERS].lower()).ratio()
