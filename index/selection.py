"""Which items of a gallery somebody means: by path or glob, id, label and metadata."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from index.catalog import Catalog, CatalogRow
from index.catalog_writer import REMOVED
from index.errors import InputError
from index.images import printable_path


@dataclass(frozen=True, slots=True)
class Selection:
    """Items that fulfil every kind of condition given: one of the patterns, one of the ids, the label, all metadata.

    A pattern is a path below a source, an absolute one, or one from here; a folder or archive stands for all that is
    below it, and `*`, `?`, `[…]` for any characters, '/' too.
    """

    patterns: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    label: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not (self.patterns or self.ids or self.metadata) and self.label is None:
            raise InputError("nothing is selected; give paths, --id, --label or --metadata")

    def select(self, catalog: Catalog) -> Iterator[CatalogRow]:
        """The rows, in id order, without those that were taken out before.

        Raises:
            InputError: a pattern or id is of no item, or no item, taken out or not, fulfils all conditions.
        """
        patterns = {pattern: _compile(pattern) for pattern in self.patterns}
        roots = {number: source.root for number, source in catalog.sources().items()}
        missing: set[str | int] = {*patterns, *self.ids}
        found = 0
        for row in catalog.rows():
            location = os.path.join(roots[row.source], row.path)
            matching = {p for p, match in patterns.items() if match(row.path) or match(location)}
            missing -= matching
            missing.discard(row.id)
            if (matching or not patterns) and (row.id in self.ids or not self.ids) and self._describes(row):
                found += 1
                if row.reason != REMOVED:
                    yield row
        if missing:
            listed = ", ".join(sorted(printable_path(str(name)) for name in missing))
            raise InputError(f"no item of the gallery is meant by: {listed}; nothing was removed")
        if not found:
            raise InputError("no item of the gallery fulfils all that was asked; nothing was removed")

    def _describes(self, row: CatalogRow) -> bool:
        values = {name: _as_text(value) for name, value in row.metadata.items()}
        return (self.label is None or row.label == self.label) and all(
            values.get(name) == value for name, value in self.metadata
        )


def _compile(pattern: str) -> Callable[[str], bool]:
    """Whether a path is the pattern's, matches it, or lies below it."""
    wanted = {pattern.rstrip("/"), os.path.abspath(pattern)}
    expressions = [re.compile(fnmatch.translate(text), re.DOTALL) for text in wanted]

    def match(path: str) -> bool:
        return any(path == text or path.startswith(text + "/") for text in wanted) or any(
            expression.match(path) for expression in expressions
        )

    return match


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
