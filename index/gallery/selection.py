"""Selecting items of a gallery by path or glob, id and filter."""

import fnmatch
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from index.catalog.reader import Catalog
from index.catalog.rows import REMOVED, CatalogRow
from index.errors import InputError
from index.filters.condition import Condition
from index.network.remote_store import is_address
from index.text import printable_path

_WILDCARDS = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class Selection:
    """Items that match all given conditions: any of the patterns, any of the ids, the filter.

    A pattern is a path below a source, an absolute one, or one relative to the working folder. A folder or archive
    selects everything in it; `*`, `?` and `[…]` match any characters, also '/'.
    """

    patterns: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    where: Condition | None = None

    def __post_init__(self) -> None:
        if not (self.patterns or self.ids or self.where):
            raise InputError("nothing is selected; give paths, --id or --where")
        if not all(self.patterns):
            raise InputError("a path is an empty text; nothing is selected by it")

    def select(self, catalog: Catalog) -> list[CatalogRow]:
        """The rows, in id order, without those removed before."""
        matching = _match_patterns(self.patterns, catalog) if self.patterns else None
        if self.where is not None and (self.ids or matching is not None):
            kept = set(catalog.matching_ids(self.where, status=None).tolist())
            matching = kept if matching is None else matching & kept
        rows: Iterable[CatalogRow]
        if self.ids:
            rows = list(catalog.rows_of(self.ids))
            _refuse_missing(map(str, sorted(set(self.ids).difference(row.id for row in rows))))
        else:
            rows = catalog.rows(where=self.where) if matching is None else catalog.rows_of(matching)
        found = [row for row in rows if (matching is None or row.id in matching)]
        if not found:
            raise InputError("no item of the gallery fulfils all that was asked; nothing was removed")
        return [row for row in found if row.reason != REMOVED]


def _match_patterns(patterns: Iterable[str], catalog: Catalog) -> set[int]:
    found = {text: _match_pattern(text, catalog) for text in patterns}
    _refuse_missing(text for text, (ids, _) in found.items() if not ids)
    for text, (_, meanings) in found.items():
        if len(meanings) > 1 and not _WILDCARDS.search(text):
            shown = ", ".join(map(printable_path, sorted(meanings)))
            raise InputError(f"there are several; say which one: {shown}; nothing was removed", at=text)
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
