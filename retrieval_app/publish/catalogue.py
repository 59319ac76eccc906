"""Catalogue of a published gallery: the columns that are named, and nothing else about the images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from index.catalog.reader import list_columns
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.text import printable_path
from retrieval_app.review.places import describe_row

ORIGINALS = "originals"
OWN = ("label", "tags", "path")
_RESERVED = (*OWN, ORIGINALS, "id", "tag", "source")  # metadata of these names is not published
_MOST_COLUMNS = 1000


@dataclass(frozen=True, slots=True)
class Choice:
    """What is public of each image besides its thumbnail: `own` fields, `metadata` columns, and full-size images.

    `hidden` are the names of what the gallery has and nobody named.
    """

    own: tuple[str, ...]
    metadata: tuple[str, ...]
    originals: bool
    hidden: tuple[str, ...]


def choose_columns(gallery: Gallery, include: Sequence[str]) -> Choice:
    """The columns of these names; refuses a name that the gallery does not have."""
    with gallery.catalog(asks_metadata=True) as catalog:
        columns = [name for name in list_columns(catalog, limit=_MOST_COLUMNS) if name not in _RESERVED]
    known = [*OWN, ORIGINALS, *columns]
    if unknown := [name for name in include if name not in known]:
        shown = ", ".join(map(printable_path, known[:40]))
        raise InputError(f"--include: the gallery has no {printable_path(unknown[0])}; it has {shown}")
    return Choice(
        own=tuple(name for name in OWN if name in include),
        metadata=tuple(name for name in columns if name in include),
        originals=ORIGINALS in include,
        hidden=tuple(name for name in known if name not in include),
    )


def describe_public(gallery: Gallery, row: CatalogRow, choice: Choice) -> dict[str, Any]:
    """The chosen fields and metadata of an image, by name; None without a value."""
    fields = describe_row(gallery, row, include=(*choice.own, "metadata"), folders=False)
    metadata: Mapping[str, Any] = fields["metadata"]
    return {name: fields[name] for name in choice.own} | {name: metadata.get(name) for name in choice.metadata}
