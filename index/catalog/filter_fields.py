"""What conditions may ask of rows, as a store of vectors keeps it beside them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from index.arrays import Ids
from index.filters.condition import LABEL, PATH, Column
from index.filters.to_milvus import Value, make_fields

_ROWS = """
SELECT images.id, images.label, images.path, node.id, node.parent, node.key, node.type, node.value
FROM json_each(?) AS wanted JOIN images ON images.id = wanted.value
LEFT JOIN json_tree(CASE WHEN json_valid(images.metadata) THEN images.metadata END) AS node
ORDER BY images.id, node.id
"""
_CHANGED = """
SELECT images.id FROM images JOIN before.images AS other ON other.id = images.id
WHERE images.status = 'indexed' AND (images.label IS NOT other.label OR images.path IS NOT other.path
OR images.metadata IS NOT other.metadata) ORDER BY images.id
"""


def read_fields(connection: sqlite3.Connection, ids: Ids) -> dict[int, str | None]:
    """The JSON field of each of (n,) ids; None where Milvus cannot hold it, see `make_fields`."""
    listed = "[" + ",".join(map(str, ids.tolist())) + "]"
    found = connection.execute(_ROWS, (listed,))
    return {key: _make(list(nodes)) for key, nodes in groupby(found, key=itemgetter(0))}


def find_changed_rows(connection: sqlite3.Connection, catalog: Path) -> list[int]:
    """Ids of the indexed rows of which another catalogue says something else that conditions may ask."""
    connection.execute("ATTACH ? AS before", (f"{catalog.absolute().as_uri()}?mode=ro&immutable=1",))
    try:
        return [row[0] for row in connection.execute(_CHANGED)]
    finally:
        connection.execute("DETACH before")


def _make(nodes: list[tuple[Any, ...]]) -> str | None:
    _, label, path, *_ = nodes[0]
    try:
        place = bytes(path).decode()
    except UnicodeDecodeError:
        return None
    own: list[tuple[Column, Value]] = [(PATH, place), (LABEL, label if isinstance(label, str) else None)]
    return make_fields([*own, *_read_metadata(nodes)])


def _read_metadata(nodes: list[tuple[Any, ...]]) -> Iterator[tuple[Column, Value]]:
    """The values of a row's metadata by their names; what lies in a list has none."""
    names: dict[int, tuple[str, ...]] = {}
    for *_, number, parent, key, kind, value in nodes:
        if number is None:
            continue
        if parent is None:
            names[number] = ()
        elif parent in names:
            inner = (*names[parent], str(key))
            if kind == "object":
                names[number] = inner
            yield Column(inner), value
