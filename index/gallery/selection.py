"""Selecting items of a gallery by path or glob, id, label, metadata and filter."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from index.catalog.catalog_scan import REMOVED
from index.catalog.reader import Catalog
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.filters.condition import LABEL, Condition, equals, join
from index.network.stores import is_address
from index.text import printable_path, valid_text

_WILDCARDS = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class Selection:
    """Items that fulfil every condition given: one of the patterns or ids, the label, all metadata, the filter.

    A pattern is a path below a source, an absolute one, or one from here; a folder or archive stands for all that is
    below it, and `*`, `?`, `[…]` for any characters, '/' too. Undecodable bytes of label and metadata are compared as
    the catalogue has them.
    """

    patterns: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    label: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    where: Condition | None = None

    def __post_init__(self) -> None:
        if not (self.patterns or self.ids or self.metadata or self.where) and self.label is None:
            raise InputError("nothing is selected; give paths, --id, --label, --metadata or --where")
        if not all(self.patterns):
            raise InputError("a path is an empty text; nothing is selected by it")

    def select(self, catalog: Catalog) -> list[CatalogRow]:
        """The rows, in id order, without those that were taken out before.

        Raises:
            InputError: a pattern or id is of no item, a path may mean items of more than one source, the filter names
                metadata, or a label, that no item has, or no item, taken out or not, fulfils all conditions.
        """
        matching = _Search(self.patterns).run(catalog) if self.patterns else None
        where = self._where
        if where is not None and (self.ids or matching is not None):
            kept = set(catalog.matching_ids(where, status=None).tolist())
            matching = kept if matching is None else matching & kept
        rows: Iterable[CatalogRow]
        if self.ids:
            rows = list(catalog.rows_of(self.ids))
            _refuse_missing(map(str, sorted(set(self.ids).difference(row.id for row in rows))))
        else:
            rows = catalog.rows(where=where) if matching is None else catalog.rows_of(matching)
        found = [row for row in rows if (matching is None or row.id in matching) and self._describes(row)]
        if not found:
            raise InputError("no item of the gallery fulfils all that was asked; nothing was removed")
        return [row for row in found if row.reason != REMOVED]

    @property
    def _where(self) -> Condition | None:
        label = [] if self.label is None else [equals(LABEL, self.label)]
        parts = [*label, *([] if self.where is None else [self.where])]
        return join(parts) if parts else None

    def _describes(self, row: CatalogRow) -> bool:
        if not self.metadata:
            return True
        if row.metadata_json is None:
            return False
        values = {name: _as_text(value) for name, value in row.metadata.items()}
        return all(values.get(valid_text(name)) == valid_text(value) for name, value in self.metadata)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern as given, without a '/' at its end, and as the absolute path that it is from here."""

    text: str
    bare: str
    here: str

    @property
    def is_glob(self) -> bool:
        return _WILDCARDS.search(self.text) is not None


class _Search:
    """One look at the path of every row, for all patterns together.

    `meanings` are the absolute paths that each pattern was found at, taken for a path; `unseen` the patterns with
    wildcards of which nothing was found yet.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.patterns = [_Pattern(text, text.rstrip("/"), _absolute(text).rstrip("/")) for text in texts]
        self.meanings: dict[str, set[str]] = {pattern.text: set() for pattern in self.patterns}
        self.unseen = {pattern.text: _compile([pattern]) for pattern in self.patterns if pattern.is_glob}

    def run(self, catalog: Catalog) -> set[int]:
        """The ids of the rows that any pattern means."""
        globs = [pattern for pattern in self.patterns if pattern.is_glob]
        anything = _compile(globs) if globs else None
        ids: set[int] = set()
        for number, source in catalog.sources().items():
            ids |= self._look(catalog.paths(number), root=source.root, anything=anything)
        unseen = {
            pattern.text for pattern in self.patterns if not pattern.is_glob and not self.meanings[pattern.text]
        }
        _refuse_missing(unseen.union(self.unseen))
        for pattern in self.patterns:
            places = self.meanings[pattern.text]
            if len(places) > 1 and not pattern.is_glob:
                shown = ", ".join(map(printable_path, sorted(places)))
                raise InputError(
                    f"{printable_path(pattern.text)}: there are several; say which one: {shown}; nothing was removed"
                )
        return ids

    def _look(self, paths: Iterable[tuple[int, str]], *, root: str, anything: re.Pattern[str] | None) -> set[int]:
        """The ids of a source's rows, given with their paths, that any pattern means."""
        start = os.path.join(root, "")
        names, whole = _name_places(self.patterns, root=root)
        ids: set[int] = set()
        found: set[str] = set()
        for image_id, path in paths:
            is_below = not path.startswith("/")
            if whole and is_below:
                ids.add(image_id)
            place = path
            while True:  # the path itself, then the folders above it
                if place in names:
                    found.add(place)
                    ids.add(image_id)
                if (cut := place.rfind("/")) < 0:
                    break
                place = place[:cut]
            if anything is not None:
                location = start + path if is_below else path
                if anything.match(path) or anything.match(location):
                    ids.add(image_id)
                    self._see(path, location)
        meant = [pair for place in found for pair in names[place]]
        for text, meaning in [*meant, *whole] if ids else meant:
            self.meanings[text].add(meaning)
            self.unseen.pop(text, None)
        return ids

    def _see(self, path: str, location: str) -> None:
        for text in [t for t, wanted in self.unseen.items() if wanted.match(path) or wanted.match(location)]:
            del self.unseen[text]


def _name_places(
    patterns: Iterable[_Pattern], *, root: str
) -> tuple[dict[str, list[tuple[str, str]]], list[tuple[str, str]]]:
    """What the patterns, taken for paths, name in a source of this root, each with the absolute path that is meant.

    First by a row's path, which is absolute where it lies outside the root, then those that name all below the root.
    """
    start, top = os.path.join(root, ""), root.rstrip("/")
    names: dict[str, list[tuple[str, str]]] = {}
    whole = []
    for pattern in patterns:
        own = {pattern.here: pattern.here}
        if not pattern.text.startswith("/"):
            own[pattern.bare] = start + pattern.bare
        if top == pattern.here or top.startswith(pattern.here + "/"):
            whole.append((pattern.text, pattern.here))
        elif pattern.here.startswith(start):
            own[pattern.here.removeprefix(start)] = pattern.here
        for name, meaning in own.items():
            names.setdefault(name, []).append((pattern.text, meaning))
    return names, whole


def _absolute(text: str) -> str:
    """A path from here; an address is one from anywhere."""
    return text if is_address(text) else os.path.abspath(text)


def _compile(patterns: Iterable[_Pattern]) -> re.Pattern[str]:
    """What matches a path that one of the patterns does, as it is or from here."""
    texts = {text for pattern in patterns for text in (pattern.bare, pattern.here)}
    return re.compile("|".join(map(fnmatch.translate, sorted(texts))))


def _refuse_missing(names: Iterable[str]) -> None:
    listed = ", ".join(map(printable_path, sorted(names)))
    if listed:
        raise InputError(f"no item of the gallery is meant by: {listed}; nothing was removed")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
