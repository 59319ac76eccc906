"""Facets: counts of members by label, tag, folder, source and metadata, with the filter of each value."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

from index.catalog.reader import Counts, ValueKind, count_tagged, count_values, list_plain_columns
from index.catalog.rows import SPLIT
from index.filters.condition import (
    LABEL,
    PATH,
    SOURCE,
    TAG,
    And,
    Column,
    Compare,
    Condition,
    Constant,
    IsNull,
    Like,
    Not,
)
from index.filters.parser import write_column, write_condition
from index.gallery.gallery import Gallery
from index.images.file_facts import TAKEN
from index.text import valid_text
from retrieval_app.insights.answer import Answer, once_per_gallery

MOST_SHOWN = 50  # values of a facet
MOST_VALUES = 200  # most values of a metadata column that is a facet
_MOST_COLUMNS = 20
_MONTHS_OF = 2  # years, whose months are counted; of more the years
_MOST_CHARACTERS = 300  # longest value that a filter can name
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)

FacetKey: TypeAlias = str | int | float | bool | None


class FacetValueEntry(Answer):
    """A value, its count, and its filter; null stands for images without a value."""

    value: FacetKey
    count: int
    where: str


class FacetEntry(Answer):
    """A facet with its values; `more` values are left out."""

    name: str
    values: list[FacetValueEntry]
    more: int


class Facets(Answer):
    """Facets of `total` members: label, tag, folder (with those within), source and metadata, frequent values first."""

    total: int
    facets: list[FacetEntry]


@once_per_gallery
def _list_columns(given: Gallery) -> list[str]:
    with given.catalog(limited=True) as catalog:
        names = list_plain_columns(catalog, most_values=MOST_VALUES, limit=_MOST_COLUMNS)
    return [name for name in names if len(name) <= _MOST_CHARACTERS and "\0" not in name]


def _count(gallery: Gallery, where: Condition | None = None) -> Counts:
    columns = _list_columns(gallery.without_decisions)  # decisions change no metadata but the split
    splits = [SPLIT] if gallery.decided.marked.splits and SPLIT not in columns else []
    with gallery.catalog(limited=True) as catalog:
        return count_values(catalog, where, columns=[*splits, *columns])


_count_all = once_per_gallery(_count)


def count_facets(
    gallery: Gallery, where: Condition | None, *, folders: bool = True, only: str | None = None, part: str = ""
) -> Facets:
    """Facets of the members that a filter keeps; None keeps all.

    Metadata is a facet if it has at most `MOST_VALUES` plain values in the whole gallery; `taken` is one by year, or of
    two years at most by month. Without `folders`, sources, absolute folders and metadata called `path` are left out.
    Each facet has its `MOST_SHOWN` most frequent values, equally frequent ones by name, but the latest times: those
    that contain `part`, in any case. `only` is the name of the only facet.
    """
    counts = _count_all(gallery) if where is None else _count(gallery, where)
    found: list[tuple[str, Mapping[Any, int], Callable[[Any], Condition]]] = []
    if set(counts.labels) - {None}:
        found.append(("label", counts.labels, partial(_equals, LABEL)))
    if counts.tags:
        found.append(("tag", counts.tags, partial(_equals, TAG)))
    found.append(("folder", _count_folders(counts.folders, absolute=folders), _below))
    if folders and len(gallery.sources) > 1:
        places = {str(gallery.sources[number].location): count for number, count in counts.sources.items()}
        named = {place: count for place, count in places.items() if valid_text(place) == place}
        found.append(("source", named, partial(_equals, SOURCE)))
    times = _count_times(counts.months)
    found.append((TAKEN, times, lambda time: Like(Column((TAKEN,)), f"{time}%")))
    for name, values in counts.metadata.items():
        if name == TAKEN and times:
            continue
        merged = _merge_equal(values)
        if merged is not None and (folders or name != "path"):
            found.append((write_column(Column((name,))), merged, partial(_equals, Column((name,)))))
    facets = []
    for name, values_of, select in found:
        wanted = [value for value in values_of if part.casefold() in str(value or "").casefold()]
        if only not in (None, name) or not wanted:
            continue
        if values_of is times:
            wanted.reverse()
        else:
            wanted.sort(key=lambda value: (-values_of[value], value is None, str(value)))
        entries = [
            FacetValueEntry(value=value, count=values_of[value], where=write_condition(select(value)))
            for value in wanted[:MOST_SHOWN]
        ]
        facets.append(FacetEntry(name=name, values=entries, more=len(wanted) - len(entries)))
    return Facets(total=counts.total, facets=facets)


def count_tags(gallery: Gallery) -> list[dict[str, Any]]:
    """The tags of members, the most frequent first, with the filter of each; as the API has them."""
    counts: Counter[str] = Counter()
    if gallery.decided.marked.tags:
        with gallery.catalog(limited=True) as catalog:
            counts.update({tag: count for tag, count in count_tagged(catalog).items() if tag is not None})
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return [{"tag": tag, "count": count, "where": write_condition(_equals(TAG, tag))} for tag, count in ordered]


def _count_times(months: Mapping[str, int]) -> Mapping[str, int]:
    """Counts by year, or of two years at most by month, in order of time."""
    years = Counter[str]()
    for month, count in months.items():
        years[month[:4]] += count
    return months if len(years) <= _MONTHS_OF else dict(years)


def _count_folders(direct: Mapping[bytes, int], *, absolute: bool) -> Mapping[str, int]:
    """Counts of members in or below each folder; empty if all are in one."""
    counts: Counter[str] = Counter()
    for folder, count in direct.items():
        if folder.startswith(b"/") and not absolute:
            continue
        whole = os.fsdecode(folder)
        for name in [whole, *(whole[:end] for end, sign in enumerate(whole) if sign == "/")]:
            if valid_text(name) == name:  # no filter within a JSON document can name another one
                counts[name] += count
    return counts if set(counts) - {""} else {}


def _below(folder: str) -> Condition:
    """Filter of a folder and its subfolders; LIKE would treat some characters as wildcards."""
    if not folder:
        return Not(Like(PATH, "%/%"))
    last = folder + "0"  # 0 follows / in every encoding
    return And((Compare(PATH, ">", Constant("text", folder + "/")), Compare(PATH, "<", Constant("text", last))))


def _merge_equal(found: Mapping[tuple[ValueKind, Any], int]) -> Counter[FacetKey] | None:
    """Counts of values that a filter distinguishes; None for booleans mixed with others."""
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


def _equals(column: Column, value: FacetKey) -> Condition:
    if value is None:
        return IsNull(column)
    if isinstance(value, bool):
        return Compare(column, "=", Constant("truth", str(int(value))))
    kind: Literal["text", "number"] = "text" if isinstance(value, str) else "number"
    return Compare(column, "=", Constant(kind, str(value)))
