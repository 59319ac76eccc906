"""What is told of an image besides its id, as the catalogue has it and a request names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from index.catalog import CatalogRow
from index.gallery import Gallery
from index.images import valid_text

_FIELDS: dict[str, Callable[[Gallery, CatalogRow], Any]] = {
    "label": lambda _, row: row.label,
    "path": lambda _, row: valid_text(row.path),
    "source": lambda gallery, row: gallery.roots[row.source],
    "metadata": lambda _, row: row.metadata,
}


def needs_row(include: Sequence[str]) -> bool:
    """Whether any of what is wanted is in the catalogue."""
    return not _FIELDS.keys().isdisjoint(include)


def describe_row(gallery: Gallery, row: CatalogRow, *, include: Sequence[str]) -> dict[str, Any]:
    """Those of label, path, source and metadata that are wanted, by name."""
    return {name: read(gallery, row) for name, read in _FIELDS.items() if name in include}
