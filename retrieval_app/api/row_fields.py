"""The fields that `include` asks for of an image: label, path, source and metadata, from its row of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.text import valid_text
from retrieval_app.review.places import name_source

_FIELDS: dict[str, Callable[[Gallery, CatalogRow, bool], Any]] = {
    "label": lambda _gallery, row, _folders: row.label,
    "path": lambda _gallery, row, _folders: valid_text(row.path),
    "source": lambda gallery, row, folders: name_source(gallery, row.source, folders=folders),
    "metadata": lambda _gallery, row, _folders: row.metadata,
}


def needs_row(include: Sequence[str]) -> bool:
    """Whether any of what is wanted is in the catalogue."""
    return not _FIELDS.keys().isdisjoint(include)


def describe_row(gallery: Gallery, row: CatalogRow, *, include: Sequence[str], folders: bool) -> dict[str, Any]:
    """Those of label, path, source and metadata that are wanted, by name; with the machine's folders, or without."""
    told = {name: read(gallery, row, folders) for name, read in _FIELDS.items() if name in include}
    return told | given_label(row) if "label" in told else told


def given_label(row: CatalogRow) -> dict[str, str | None]:
    """The field of the label that was given, where another one was decided."""
    return {} if row.given_label == row.label else {"given_label": row.given_label}
