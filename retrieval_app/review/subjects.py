"""The images that decisions are about: known by the SHA-256 of their bytes and their given label, not by id."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from index.catalog.rows import CatalogRow
from index.errors import UnknownImageError
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision, LabelKey
from index.text import printable_path
from retrieval_app.review.duplicate_decisions import GroupImage

_SHOWN_STATUSES = ("indexed", "duplicate")


@dataclass(frozen=True, slots=True)
class Subject:
    """An image that somebody decides about; `path` is absolute, with undecodable bytes as surrogates."""

    image_id: int
    sha256: str
    label: str | None
    path: str

    @property
    def key(self) -> LabelKey:
        """What a decision about its label holds for."""
        return self.sha256, self.label

    def decide(self, decision: str, *, new_label: str | None = None) -> LabelDecision:
        """A decision about its label."""
        return LabelDecision(self.sha256, self.label, decision, new_label, self.image_id, self.path)

    def as_group_image(self) -> GroupImage:
        """The image as one of a group of duplicates."""
        return GroupImage(self.sha256, self.image_id, self.path)


def find_subjects(gallery: Gallery, ids: Iterable[int]) -> dict[int, Subject]:
    """The images of these ids, those set aside as duplicates included, by id.

    Raises:
        UnknownImageError: an id is of no image.
    """
    wanted = set(ids)
    subjects = read_known_subjects(gallery, wanted)
    if missing := sorted(wanted - subjects.keys()):
        raise UnknownImageError(missing[0], gallery=printable_path(gallery.name))
    return subjects


def read_known_subjects(gallery: Gallery, ids: Iterable[int]) -> dict[int, Subject]:
    """As `find_subjects`; ids of no image are left out."""
    with gallery.as_given.catalog() as catalog:
        found = {row.id: _read_subject(gallery, row) for row in catalog.rows_of(ids)}
    return {number: subject for number, subject in found.items() if subject is not None}


def read_all_subjects(gallery: Gallery) -> Iterator[Subject]:
    """Every usable image, those set aside as duplicates included."""
    with gallery.as_given.catalog() as catalog:
        for status in _SHOWN_STATUSES:
            for row in catalog.rows(status=status):
                subject = _read_subject(gallery, row)
                if subject is not None:
                    yield subject


def find_decided_ids(gallery: Gallery, decisions: Iterable[LabelDecision]) -> dict[LabelKey, int]:
    """The id that the image of each decision has now; those that the gallery does not have any more are left out.

    The id that it had is tried first; only where the gallery was made anew are all images of its label looked at, and
    an image without a label is not found again.
    """
    wanted: Mapping[LabelKey, LabelDecision] = {decision.key: decision for decision in decisions}
    found: dict[LabelKey, int] = {}
    with gallery.as_given.catalog() as catalog:

        def take(rows: Iterable[CatalogRow]) -> None:
            for row in rows:
                subject = _read_subject(gallery, row)
                if subject is not None and subject.key in wanted:
                    found.setdefault(subject.key, subject.image_id)

        take(catalog.rows_of(d.image_id for d in wanted.values() if d.image_id is not None))
        for label in sorted({label for sha256, label in wanted.keys() - found.keys() if label is not None}):
            take(catalog.rows(label=label))
    return found


def _read_subject(gallery: Gallery, row: CatalogRow) -> Subject | None:
    """The image of a row; None where it is of no usable image."""
    if row.sha256 is None or row.status not in _SHOWN_STATUSES:
        return None
    path = os.path.join(gallery.sources[row.source].root, row.path)
    return Subject(row.id, row.sha256, row.label, path)
