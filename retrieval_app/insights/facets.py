"""How many members have each label, folder, source and value of metadata, and the filter that selects them."""

from __future__ import annotations

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from index.filter_columns import check_columns
from index.filters import Filter, write_column
from index.gallery import Gallery
from index.images import valid_text

MOST_SHOWN = 50  # values of a facet
MOST_VALUES = 200  # of metadata that is a facet
_MOST_COLUMNS = 20
_MOST_CHARACTERS = 300  # of a value, which a filter must be able to name
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
_KIND = "CASE j.type WHEN 'text' THEN 'text' WHEN 'true' THEN 'truth' WHEN 'false' THEN 'truth' ELSE 'number' END"
_IS_PLAIN = "j.type IN ('text', 'integer', 'real', 'true', 'false')"

FacetKey: TypeAlias = str | int | float | bool | None
_columns_of: WeakKeyDictionary[Gallery, list[str]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class FacetValue:
    """A value that `count` members have, those that `where` selects; None stands for those that have none."""

    value: FacetKey
    count: int
    where: str


@dataclass(frozen=True, slots=True)
class Facet:
    """What members can be told apart by.

    Attributes:
        name: "label", "folder", "source", or metadata as a filter names it.
        values: the most frequent first; a folder holds those within it too.
        more: values that are left out.
    """

    name: str
    values: tuple[FacetValue, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Facets:
    """The facets of `total` members."""

    total: int
    facets: tuple[Facet, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of the API without the version."""
        return asdict(self)


def count_facets(gallery: Gallery, where: Filter | None, *, folders: bool = True) -> Facets:
    """Count the members that a filter keeps, all without one, by what they have.

    Metadata is a facet where it has at most `MOST_VALUES` plain values in the whole gallery, which is looked up once
    for an opened gallery. Among 200,000 members whose metadata has four columns, two of them facets, that takes 0.6 s
    and every count 0.7 s, and without metadata a count takes 0.2 s (one core of a small machine). Sources and
    absolute folders are told only with the folders of the machine.

    Raises:
        InputError: the filter names metadata that no image has, or it takes too long.
        GalleryError: the catalogue is damaged.
    """
    with gallery.catalog(limited=True) as catalog:
        connection = catalog.connection
        if gallery not in _columns_of:
            _columns_of[gallery] = _find_columns(connection)
        columns, kept = _columns_of[gallery], "status = 'indexed'"
        if where is not None:
            check_columns(where, connection)
            query = f"CREATE TEMP TABLE kept AS SELECT id FROM images WHERE +{kept} AND {where.sql}"
            connection.execute(query, where.values)
            kept = "images.id IN kept"
        total = int(connection.execute(f"SELECT count(*) FROM images NOT INDEXED WHERE {kept}").fetchone()[0])
        facets = [
            _count_labels(connection, kept),
            _count_folders(connection, kept, absolute=folders),
            *([_count_sources(gallery, connection, kept)] if folders and len(gallery.sources) > 1 else []),
            *_count_columns(connection, kept, columns=columns),
        ]
    return Facets(total, tuple(facet for facet in facets if facet.values))


def _count_labels(connection: sqlite3.Connection, kept: str) -> Facet:
    rows = connection.execute(f"SELECT label, count(*) FROM images NOT INDEXED WHERE {kept} GROUP BY label")
    counts = dict(rows.fetchall())
    if set(counts) <= {None}:
        return Facet("label", (), 0)
    return _facet(
        "label", counts, {name: "label IS NULL" if name is None else f"label = {_quote(name)}" for name in counts}
    )


def _count_folders(connection: sqlite3.Connection, kept: str, *, absolute: bool) -> Facet:
    paths = connection.execute(f"SELECT path FROM images NOT INDEXED WHERE {kept}")
    direct = Counter(path.rpartition(b"/")[0] for (path,) in paths)
    counts: Counter[str] = Counter()
    for folder, count in direct.items():
        if folder.startswith(b"/") and not absolute:
            continue
        for name in _with_parents(os.fsdecode(folder)):
            if valid_text(name) == name:  # no filter within a JSON document can name another one
                counts[name] += count
    if set(counts) <= {""}:
        return Facet("folder", (), 0)
    return _facet("folder", counts, {name: _below(name) for name in counts})


def _with_parents(folder: str) -> Iterator[str]:
    yield folder
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        yield folder


def _below(folder: str) -> str:
    """All that lies in a folder or further down; LIKE would take some characters of its name for any."""
    if not folder:
        return "path NOT LIKE '%/%'"
    return f"path > {_quote(folder + '/')} AND path < {_quote(folder + '0')}"  # 0 follows / in every encoding


def _count_sources(gallery: Gallery, connection: sqlite3.Connection, kept: str) -> Facet:
    query = f"SELECT source, count(*) FROM images NOT INDEXED WHERE {kept} GROUP BY source"
    places = {number: str(source.location) for number, source in gallery.sources.items()}
    counts = {places[number]: count for number, count in connection.execute(query)}
    named = {name: count for name, count in counts.items() if valid_text(name) == name}
    return _facet("source", named, {name: f"source = {_quote(name)}" for name in named})


def _find_columns(connection: sqlite3.Connection) -> list[str]:
    """The names of the metadata of few values, those that most members have first."""
    query = (
        f"SELECT j.key, count(*) AS members, count(DISTINCT j.value) AS found FROM images, json_each(metadata) AS j "
        f"WHERE status = 'indexed' AND {_IS_PLAIN} GROUP BY j.key "
        f"HAVING found <= {MOST_VALUES} ORDER BY members DESC, j.key LIMIT {_MOST_COLUMNS}"
    )
    return [name for name, _, _ in connection.execute(query) if len(name) <= _MOST_CHARACTERS and "\0" not in name]


def _count_columns(connection: sqlite3.Connection, kept: str, *, columns: list[str]) -> Iterator[Facet]:
    if not columns:
        return
    listed = ", ".join("?" for _ in columns)
    query = (
        f"SELECT j.key, {_KIND} AS kind, j.value, count(*) FROM images NOT INDEXED, json_each(images.metadata) AS j "
        f"WHERE {kept} AND {_IS_PLAIN} AND j.key IN ({listed}) GROUP BY j.key, kind, j.value"
    )
    found: dict[str, dict[tuple[str, Any], int]] = {name: {} for name in columns}
    for key, kind, value, count in connection.execute(query, columns):
        found[key][kind, value] = count
    for name in columns:
        counts = _merge_equal(found[name])
        if counts is not None:
            column = write_column((name,))
            yield _facet(column, counts, {value: f"{column} = {_write_value(value)}" for value in counts})


def _merge_equal(found: Mapping[tuple[str, Any], int]) -> Counter[FacetKey] | None:
    """How often each value is there, as a filter tells values apart; None where it cannot tell them apart at all."""
    kinds = {kind for kind, _ in found}
    if "truth" in kinds and len(kinds) > 1:  # true is 1 to a filter
        return None
    counts: Counter[FacetKey] = Counter()
    for (kind, value), count in found.items():
        if kind == "truth":
            value = bool(value)
        elif kind == "text" and "number" in kinds and _NUMBER.fullmatch(value):
            value = float(value)
        if not isinstance(value, str) or (len(value) <= _MOST_CHARACTERS and "\0" not in value):
            counts[value] += count
    return counts


def _write_value(value: FacetKey) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return _quote(value) if isinstance(value, str) else repr(value)


def _facet(name: str, counts: Mapping[Any, int], where: Mapping[Any, str]) -> Facet:
    """The facet with its most frequent values; of equally frequent ones by name."""
    order = sorted(counts, key=lambda value: (-counts[value], value is None, str(value)))
    values = tuple(FacetValue(value, counts[value], where[value]) for value in order[:MOST_SHOWN])
    return Facet(name, values, max(0, len(order) - MOST_SHOWN))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
