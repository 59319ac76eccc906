"""Rows of a catalogue in memory, and whether one fulfils a condition, with the same truth as its SQL."""

import json
import operator
import os
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from index.catalog.reader import Catalog, create_tables
from index.filters import condition as tree
from index.filters.condition import (
    LABEL,
    OWN_COLUMNS,
    Among,
    And,
    Column,
    Compare,
    Condition,
    Constant,
    HasWord,
    IsNull,
    Like,
    Not,
    Or,
)
from index.filters.to_sql import NUMBER
from index.text import valid_text

Row: TypeAlias = Mapping[str, Any]
"""An item's `id`, `label`, `tags`, `path`, `source` (its location) and `metadata` (JSON values); what lacks is null."""
Value: TypeAlias = str | bytes | int | float | None

_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SPACE = " \t\n\v\f\r"  # around a stored text that is a number all the same


def fulfils(condition: Condition, row: Row) -> bool | None:
    """Whether the row fulfils the condition; None where nobody can know, for what it asks of is missing.

    Texts and paths are taken for valid Unicode, but for undecodable bytes in paths.
    """
    match condition:
        case IsNull(tree.TAG):
            return not row["tags"]
        case Compare(tree.TAG, "!=", constant):
            return not fulfils(Compare(tree.TAG, "=", constant), row)
        case Compare(tree.TAG) | Among(tree.TAG) | Like(tree.TAG):
            of_label = replace(condition, column=LABEL)
            return any(fulfils(of_label, {**row, "label": tag}) for tag in row["tags"])
        case Not(part):
            return _negate(fulfils(part, row))
        case And(parts):
            return _negate(_any(_negate(fulfils(part, row)) for part in parts))
        case Or(parts):
            return _any(fulfils(part, row) for part in parts)
        case Compare(column, sign, constant):
            return _compare(_read(column, row), sign, constant)
        case Among(column, constants):
            value = _read(column, row)
            return _any(_compare(value, "=", constant) for constant in constants)
        case Like(column, pattern):
            return _matches(_read(column, row), pattern)
        case IsNull(column):
            return _read(column, row) is None
        case HasWord(word):
            return _has_word(word, row)


def _any(said: Iterable[bool | None]) -> bool | None:
    seen = set(said)
    return True if True in seen else None if None in seen else False


def _negate(said: bool | None) -> bool | None:
    return None if said is None else not said


def _read(column: Column, row: Row) -> Value:
    """The value as SQLite has it: a truth is 1 or 0, lists and objects are their JSON text."""
    value: Any = row if column.is_own else row.get("metadata")
    for name in column.names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, list | Mapping):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    if isinstance(value, str) and column.holds == "bytes":
        return os.fsencode(value)
    return int(value) if isinstance(value, bool) else value


def _compare(value: Value, sign: str, constant: Constant) -> bool | None:
    compare, is_order = _SIGNS[sign], sign not in ("=", "!=")
    if value is None:
        return None
    if isinstance(value, bytes):
        return compare(value, os.fsencode(constant.text))
    if constant.kind == "truth" and isinstance(value, str) and value.lower() in ("true", "false"):
        value = int(value.lower() == "true")
    if constant.kind == "text" and isinstance(value, str):
        return compare(value, valid_text(constant.text))
    known, given = _as_number(value), _as_number(constant.text, space="")
    if known is None or given is None:
        return None if is_order else sign == "!="
    return compare(known, given)


def _as_number(value: Value, *, space: str = _SPACE) -> int | float | None:
    if isinstance(value, str):
        text = value.strip(space)
        if not NUMBER.fullmatch(text):
            return None
        value = int(text) if text.lstrip("+-").isdecimal() else float(text)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return float(value)
    return None if isinstance(value, bytes) else value


def _matches(value: Value, pattern: str, *, wild: str = "%_") -> bool | None:
    if value is None:
        return None
    places = {"%": ".*", "_": "."} if wild else {}
    written = "".join(
        places.get(one) or f"[{''.join(re.escape(case) for case in _cases(one))}]"
        for one in (pattern if isinstance(value, bytes) else valid_text(pattern))
    )
    text = _write(value).partition("\0")[0]  # where a text ends for SQLite
    return re.fullmatch(written if wild else f".*{written}.*", text, re.DOTALL) is not None


def _cases(one: str) -> list[str]:
    return [case for case in {one, one.lower(), one.upper()} if len(case) == 1]


def _write(value: str | bytes | int | float) -> str:
    """The value as a text, numbers as SQLite writes them."""
    if isinstance(value, bytes):
        return os.fsdecode(value)
    if not isinstance(value, float):
        return str(value)
    mantissa, mark, exponent = f"{value:.15g}".partition("e")
    return mantissa + ("" if "." in mantissa else ".0") + mark + exponent


def _has_word(word: str, row: Row) -> bool | None:
    own = [_read(OWN_COLUMNS[name], row) for name in ("path", "label", "source")]
    leaves = [text for text in _list_leaves(row.get("metadata")) if text is not None]
    forms = dict.fromkeys((word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))))
    return _any(_matches(value, form, wild="") for form in forms for value in (*own, *leaves))


def _list_leaves(value: Any) -> Iterator[Value]:
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _list_leaves(inner)
    elif not isinstance(value, bool):
        yield value


def fill_catalog(connection: sqlite3.Connection, rows: Sequence[Row]) -> Catalog:
    """Indexed rows in place of all that there are; their ids are 1, 2, …"""
    create_tables(connection)
    for table in ("images", "sources", "sqlite_sequence"):
        connection.execute(f"DELETE FROM {table}")
    sources = list(dict.fromkeys(row["source"] for row in rows))
    connection.executemany(
        "INSERT INTO sources (id, kind, location) VALUES (?, 'folder', ?)",
        [(number, os.fsencode(source)) for number, source in enumerate(sources)],
    )
    connection.executemany(
        "INSERT INTO images (source, path, size_bytes, mtime_ns, status, label, metadata) "
        "VALUES (?, ?, 1, 1, 'indexed', ?, ?)",
        [
            (
                sources.index(row["source"]),
                os.fsencode(row["path"]),
                row["label"],
                json.dumps(row["metadata"], sort_keys=True) if row["metadata"] else None,
            )
            for row in rows
        ],
    )
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS tags (id, tag TEXT)")
    connection.execute("DELETE FROM tags")
    connection.executemany("INSERT INTO tags VALUES (?, ?)", [(row["id"], tag) for row in rows for tag in row["tags"]])
    return Catalog(connection)
