"""How many indexed rows have each label, folder, source and value of metadata: what their facets are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from index.catalog.reader import Catalog
from index.filters.condition import Condition

Kind: TypeAlias = Literal["text", "truth", "number"]
_KIND = "CASE j.type WHEN 'text' THEN 'text' WHEN 'true' THEN 'truth' WHEN 'false' THEN 'truth' ELSE 'number' END"
_IS_PLAIN = "j.type IN ('text', 'integer', 'real', 'true', 'false')"
_INDEXED = "status = 'indexed'"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows there are in all, and with each value; folders are the bytes of those that directly hold them.

    `metadata` has, by name, the kind and value of what a row has under it; truths are 1 and 0.
    """

    total: int
    labels: Mapping[str | None, int]
    folders: Mapping[bytes, int]
    sources: Mapping[int, int]
    metadata: Mapping[str, Mapping[tuple[Kind, Any], int]]


def count_values(catalog: Catalog, where: Condition | None, *, columns: Sequence[str]) -> Counts:
    """Count the rows that a condition keeps, all without one, by what they have; metadata of these names only.

    Raises:
        InputError: the condition names metadata, or a label, that no row has.
    """
    execute, kept = catalog.connection.execute, _INDEXED
    if where is not None:
        found = catalog.find_matching(where)
        execute(f"CREATE TEMP TABLE kept AS {found.text}", found.values)
        kept = "images.id IN kept"
    rows = f"FROM images NOT INDEXED WHERE {kept}"
    metadata: dict[str, dict[tuple[Kind, Any], int]] = {name: {} for name in columns}
    if columns:
        query = (
            f"SELECT j.key, {_KIND} AS kind, j.value, count(*) FROM images NOT INDEXED, "
            f"json_each(images.metadata) AS j WHERE {kept} AND {_IS_PLAIN} "
            f"AND j.key IN ({', '.join('?' for _ in columns)}) GROUP BY j.key, kind, j.value"
        )
        for name, kind, value, count in execute(query, columns):
            metadata[name][kind, value] = count
    return Counts(
        total=int(execute(f"SELECT count(*) {rows}").fetchone()[0]),
        labels=dict(execute(f"SELECT label, count(*) {rows} GROUP BY label").fetchall()),
        folders=Counter(path.rpartition(b"/")[0] for (path,) in execute(f"SELECT path {rows}")),
        sources=dict(execute(f"SELECT source, count(*) {rows} GROUP BY source").fetchall()),
        metadata=metadata,
    )


def list_columns(catalog: Catalog, *, limit: int) -> list[str]:
    """The names of the rows' metadata, what most have first."""
    query = (
        f"SELECT j.key FROM images NOT INDEXED, json_each(images.metadata) AS j WHERE {_INDEXED} "
        "GROUP BY j.key ORDER BY count(*) DESC, j.key LIMIT ?"
    )
    return [name for (name,) in catalog.connection.execute(query, (limit,))]


def list_plain_columns(catalog: Catalog, *, most_values: int, limit: int) -> list[str]:
    """The names of the metadata that has at most so many plain values, what most rows have first."""
    query = (
        "SELECT j.key, count(*) AS members, count(DISTINCT j.value) AS found FROM images, json_each(metadata) AS j "
        f"WHERE {_INDEXED} AND {_IS_PLAIN} GROUP BY j.key HAVING found <= ? ORDER BY members DESC, j.key LIMIT ?"
    )
    return [name for name, _, _ in catalog.connection.execute(query, (most_values, limit))]
