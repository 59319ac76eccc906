"""Decided images in a gallery, identified by their bytes and given label, which outlive ids."""

import os
from collections.abc import Iterable, Iterator

from index.catalog.reader import Catalog
from index.catalog.rows import CatalogRow
from index.errors import UnknownImageError
from index.gallery.gallery import Gallery
from index.labels.decisions import ImageRef, LabelDecision, LabelKey
from index.text import printable_path

USABLE = ("indexed", "duplicate")  # statuses


def list_usable(catalog: Catalog) -> Iterator[CatalogRow]:
    """The indexed images and left-out near-duplicates."""
    return (row for status in USABLE for row in catalog.rows(status=status))


def find_subjects(gallery: Gallery, ids: Iterable[int]) -> dict[int, ImageRef]:
    """Images by id, left-out near-duplicates included."""
    wanted = set(ids)
    with gallery.without_decisions.catalog() as catalog:
        subjects = {subject.image_id: subject for subject in _read_subjects(gallery, catalog.rows_of(wanted))}
    if missing := sorted(wanted - subjects.keys()):
        raise UnknownImageError(missing[0], gallery=printable_path(gallery.name))
    return subjects


def find_by_contents(gallery: Gallery, sha256s: Iterable[str]) -> list[ImageRef]:
    """The images with these bytes, left-out near-duplicates included."""
    with gallery.without_decisions.catalog() as catalog:
        ids = [image_id for image_id, _, _ in catalog.find_contents(sha256s)]
        return list(_read_subjects(gallery, catalog.rows_of(ids)))


def read_all_subjects(gallery: Gallery) -> Iterator[ImageRef]:
    """Every usable image, left-out near-duplicates included."""
    with gallery.without_decisions.catalog() as catalog:
        yield from _read_subjects(gallery, list_usable(catalog))


def find_decided_ids(gallery: Gallery, decisions: Iterable[LabelDecision]) -> dict[LabelKey, int]:
    """Current id of each decision's image; among images with equal bytes and label the id of the decision."""
    wanted = {decision.key: decision for decision in decisions}
    found: dict[LabelKey, int] = {}
    with gallery.without_decisions.catalog() as catalog:
        for image_id, sha256, label in catalog.find_contents({sha256 for sha256, _ in wanted}):
            key = (sha256, label)
            if key in wanted and (key not in found or image_id == wanted[key].image_id):
                found[key] = image_id
    return found


def _read_subjects(gallery: Gallery, rows: Iterable[CatalogRow]) -> Iterator[ImageRef]:
    for row in rows:
        if row.sha256 is not None and row.status in USABLE:
            path = os.path.join(gallery.sources[row.source].root, row.path)
            yield ImageRef(row.id, row.sha256, row.label, path)
