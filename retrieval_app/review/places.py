"""Descriptions of images for the API, with absolute paths, or for other visitors with paths within the sources."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.text import hide_folder, valid_text

_FOLDERS = re.compile(r"(?<![\w.:/])/(?!v1/)[^:'\"\n]*/")
_BUCKETS = re.compile(r"\b(?!https?:)[a-z][a-z0-9+.-]*://[^:'\"\n]*/")


def name_source(gallery: Gallery, number: int, *, folders: bool) -> str:
    """Root or location of a source; without `folders` the last part of it."""
    root = gallery.roots[number] or valid_text(gallery.sources[number].location)
    return root if folders else os.path.basename(root.rstrip("/"))


def locate_image(gallery: Gallery, row: CatalogRow, *, folders: bool) -> str:
    """Path of an image, absolute or within its source; undecodable bytes are surrogates."""
    return os.path.join(gallery.sources[row.source].root, row.path) if folders else hide_folder(row.path)


def shorten_path(gallery: Gallery, path: str) -> str:
    """Path within its source, of a stored absolute path; the file name where no source has it."""
    for source in (source for source in gallery.sources.values() if source.root):
        root = os.path.join(source.root, "")
        if path.startswith(root):
            return path.removeprefix(root)
    return os.path.basename(path)


def hide_folders(values: Any) -> Any:
    """JSON document with the folders removed from its `path` fields."""
    if isinstance(values, dict):
        return {
            name: hide_folder(value) if name == "path" and isinstance(value, str) else hide_folders(value)
            for name, value in values.items()
        }
    return [hide_folders(value) for value in values] if isinstance(values, list | tuple) else values


def strip_folders(message: str) -> str:
    """Message without folders of absolute paths and without buckets; URLs of the API and the web stay."""
    return _FOLDERS.sub("", _BUCKETS.sub("", message))


RowField: TypeAlias = Literal["label", "tags", "path", "source", "metadata", "measures"]
ROW_FIELDS: tuple[RowField, ...] = get_args(RowField)
"""Values of `include` that are read from an image's row in the catalogue."""


def describe_row(gallery: Gallery, row: CatalogRow, *, include: Sequence[str], folders: bool) -> dict[str, Any]:
    """Fields of a row, those of `include` among `ROW_FIELDS`, for an answer of the API."""
    fields: dict[str, Any] = {}
    if "label" in include:
        fields["label"] = row.label
        if row.given_label != row.label:
            fields["given_label"] = row.given_label
    if "tags" in include:
        fields["tags"] = list(row.tags)
    if "path" in include:
        fields["path"] = valid_text(row.path if folders else hide_folder(row.path))
    if "source" in include:
        fields["source"] = name_source(gallery, row.source, folders=folders)
    if "metadata" in include:
        metadata = read_valid_metadata(row)
        fields["metadata"] = metadata if folders else hide_folders(metadata)
    if "measures" in include:
        fields["measures"] = row.measures
    return fields


def read_valid_metadata(row: CatalogRow) -> Mapping[str, Any]:
    """Metadata of an image without lone surrogates, which JSON allows and UTF-8 does not."""
    if "\\u" not in (row.metadata_json or ""):
        return row.metadata
    text = json.dumps(row.metadata, ensure_ascii=False).encode("utf-8", "replace")
    metadata: Mapping[str, Any] = json.loads(text)
    return metadata
