"""Facet counts: how many members have each label, folder, source and value of metadata, with the filter of each."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from index.catalog.reader import Kind, count_values, list_plain_columns
from index.filters.condition import (
    LABEL,
    PATH,
    SOURCE,
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
from index.text import valid_text
from retrieval_app.insights.answer import Answer

MOST_SHOWN = 50  # values of a facet
MOST_VALUES = 200  # of metadata that is a facet
_MOST_COLUMNS = 20
_MOST_CHARACTERS = 300  # of a value, which a filter must be able to name
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)

FacetKey: TypeAlias = str | int | float | bool | None
_columns_of: WeakKeyDictionary[Gallery, list[str]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class FacetValues:
    """Which values are wanted: those of a facet, or of all, and in which a part occurs, whatever its case."""

    name: str | None = None
    part: str = ""

    def pick(self, facet: str, counts: Mapping[Any, int]) -> Mapping[Any, int]:
        """The wanted ones of a facet's values, with their counts."""
        if self.name not in (None, facet):
            return {}
        part = self.part.casefold()
        return {value: count for value, count in counts.items() if part in str(value or "").casefold()}


ALL_VALUES = FacetValues()


class FacetValueEntry(Answer):
    """A value, its images, and the condition that selects them; null stands for images without one."""

    value: FacetKey
    count: int
    where: str


class FacetEntry(Answer):
    """What images can be told apart by; `more` values are left out."""

    name: str
    values: list[FacetValueEntry]
    more: int


class Facets(Answer):
    """The facets of `total` members: label, folder, source, and metadata as a filter names it.

    The most frequent values come first; a folder holds those within it too.
    """

    total: int
    facets: list[FacetEntry]


def count_facets(
    gallery: Gallery, where: Condition | None, *, folders: bool = True, wanted: FacetValues = ALL_VALUES
) -> Facets:
    """Count the members that a filter keeps, all without one, by what they have.

    Metadata is a facet where it has at most `MOST_VALUES` plain values in the whole gallery, which is looked up once
    for an opened gallery. Sources, absolute folders and metadata called `path` are told only with the folders of the
    machine. Of each facet the `MOST_SHOWN` most frequent of the wanted values are told.

    Raises:
        InputError: the filter names metadata, or a label, that no image has, or it takes too long.
        GalleryError: the catalogue is damaged.
    """
    given = gallery.as_given  # decisions change no metadata
    if given not in _columns_of:
        with given.catalog(limited=True) as catalog:
            names = list_plain_columns(catalog, most_values=MOST_VALUES, limit=_MOST_COLUMNS)
        _columns_of[given] = [name for name in names if len(name) <= _MOST_CHARACTERS and "\0" not in name]
    with gallery.catalog(limited=True) as catalog:
        counts = count_values(catalog, where, columns=_columns_of[given])
    counted = [
        _count_labels(counts.labels),
        _count_folders(counts.folders, absolute=folders),
        *([_count_sources(gallery, counts.sources)] if folders and len(gallery.sources) > 1 else []),
    ]
    for name, found in counts.metadata.items():
        column, merged = Column((name,)), _merge_equal(found)
        if merged is not None and (folders or name != "path"):
            counted.append(_Counted(write_column(column), merged, partial(_equals, column)))
    facets = [_facet(one.name, wanted.pick(one.name, one.counts), one.find) for one in counted]
    return Facets(total=counts.total, facets=[facet for facet in facets if facet.values])


class _Counted(NamedTuple):
    """How often each value of a facet is there, and the condition that selects one."""

    name: str
    counts: Mapping[Any, int]
    find: Callable[[Any], Condition]


def _count_labels(counts: Mapping[str | None, int]) -> _Counted:
    has_labels = not set(counts) <= {None}
    return _Counted("label", counts if has_labels else {}, partial(_equals, LABEL))


def _count_folders(direct: Mapping[bytes, int], *, absolute: bool) -> _Counted:
    counts: Counter[str] = Counter()
    for folder, count in direct.items():
        if folder.startswith(b"/") and not absolute:
            continue
        whole = os.fsdecode(folder)
        for name in [whole, *(whole[:end] for end, sign in enumerate(whole) if sign == "/")]:
            if valid_text(name) == name:  # no filter within a JSON document can name another one
                counts[name] += count
    return _Counted("folder", {} if set(counts) <= {""} else counts, _below)


def _below(folder: str) -> Condition:
    """All that lies in a folder or further down; LIKE would take some characters of its name for any."""
    if not folder:
        return Not(Like(PATH, "%/%"))
    last = folder + "0"  # 0 follows / in every encoding
    return And((Compare(PATH, ">", Constant("text", folder + "/")), Compare(PATH, "<", Constant("text", last))))


def _count_sources(gallery: Gallery, counts: Mapping[int, int]) -> _Counted:
    places = {number: str(source.location) for number, source in gallery.sources.items()}
    found = {places[number]: count for number, count in counts.items()}
    named = {name: count for name, count in found.items() if valid_text(name) == name}
    return _Counted("source", named, partial(_equals, SOURCE))


def _merge_equal(found: Mapping[tuple[Kind, Any], int]) -> Counter[FacetKey] | None:
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


def _equals(column: Column, value: FacetKey) -> Condition:
    if value is None:
        return IsNull(column)
    if isinstance(value, bool):
        return Compare(column, "=", Constant("truth", str(int(value))))
    kind: Literal["text", "number"] = "text" if isinstance(value, str) else "number"
    return Compare(column, "=", Constant(kind, str(value)))


def _facet(name: str, counts: Mapping[Any, int], find: Callable[[Any], Condition]) -> FacetEntry:
    """The facet with its most frequent values; of equally frequent ones by name."""
    order = sorted(counts, key=lambda value: (-counts[value], value is None, str(value)))
    shown = order[:MOST_SHOWN]
    values = [
        FacetValueEntry(value=value, count=counts[value], where=write_condition(find(value))) for value in shown
    ]
    return FacetEntry(name=name, values=values, more=len(order) - len(shown))
