"""Selecting items of a gallery by path or glob, id, label, metadata and filter."""

import fnmatch
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from index.catalog.reader import Catalog
from index.catalog.rows import REMOVED, CatalogRow
from index.errors import InputError
from index.filters.condition import LABEL, Condition, equals, join
from index.network.remote_store import is_address
from index.text import printable_path, valid_text

_WILDCARDS = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class Selection:
    """Items that match all given conditions: any of the patterns or ids, the label, all metadata, the filter.

    A pattern is a path below a source, an absolute path, or one relative to the working folder. A folder or archive
    selects everything in it; `*`, `?` and `[…]` match any characters, also '/'.
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
        """The rows, in id order, without those removed before."""
        matching = _match_patterns(self.patterns, catalog) if self.patterns else None
        parts = [] if self.label is None else [equals(LABEL, self.label)]
        parts += [] if self.where is None else [self.where]
        where = join(parts) if parts else None
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

    def _describes(self, row: CatalogRow) -> bool:
        if not self.metadata:
            return True
        if row.metadata_json is None:
            return False
        values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.metadata.items()}
        return all(values.get(valid_text(name)) == valid_text(value) for name, value in self.metadata)


def _match_patterns(patterns: Iterable[str], catalog: Catalog) -> set[int]:
    found = {text: _match_pattern(text, catalog) for text in patterns}
    _refuse_missing(text for text, (ids, _) in found.items() if not ids)
    for text, (_, meanings) in found.items():
        if len(meanings) > 1 and not _WILDCARDS.search(text):
            shown = ", ".join(map(printable_path, sorted(meanings)))
            raise InputError(f"{printable_path(text)}: there are several; say which one: {shown}; nothing was removed")
    return set().union(*(ids for ids, _ in found.values()))


def _match_pattern(text: str, catalog: Catalog) -> tuple[set[int], set[str]]:
    """The ids that match a pattern, and the absolute paths that it may mean."""
    bare, here = text.rstrip("/"), (text if is_address(text) else os.path.abspath(text)).rstrip("/")
    glob = re.compile("|".join(map(fnmatch.translate, (bare, here)))) if _WILDCARDS.search(text) else None
    ids: set[int] = set()
    meanings: set[str] = set()
    for number, source in catalog.sources().items():
        start, top = os.path.join(source.root, ""), source.root.rstrip("/")
        names: dict[str | None, str] = {here: here}  # as rows call it: absolute where it lies outside the root
        if not text.startswith("/"):
            names[bare] = start + bare
        if top == here or top.startswith(here + "/"):
            names[None] = here  # all below the root
        elif here.startswith(start):
            names[here.removeprefix(start)] = here
        for name, meaning in names.items():
            if below := catalog.ids_below(number, name):
                ids.update(below)
                meanings.add(meaning)
        if glob is not None:
            ids.update(
                image_id
                for image_id, path in catalog.paths(number)
                if glob.match(path) or glob.match(path if path.startswith("/") else start + path)
            )
    return ids, meanings


def _refuse_missing(names: Iterable[str]) -> None:
    listed = ", ".join(map(printable_path, sorted(names)))
    if listed:
        raise InputError(f"no item of the gallery is meant by: {listed}; nothing was removed")
