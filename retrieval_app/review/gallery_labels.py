"""The gallery's labels with people's decisions applied: a CSV of `path,label` that training and building read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, LabelDecision, LabelKey
from index.labels.label_file import can_be_named, encode_labels
from retrieval_app.review.places import locate_image

OUTCOMES = ("kept", "changed", "dropped", "unlabelled", "in-archives", "unnamable")
"""What becomes of an image in a label file: its row has the given label, or another one; or it is left out because
somebody decided so, has no label, is in an archive, which training does not read, or has a path that UTF-8 cannot
say."""
_KEPT, _CHANGED, _DROPPED, _UNLABELLED, _ARCHIVED, _UNNAMABLE = OUTCOMES

Decisions = Mapping[LabelKey, LabelDecision]
"""As `ReviewStore.label_decisions` gives them."""


def stream_label_file(
    gallery: Gallery, decisions: Decisions, *, counts: Counter[str], folders: bool = True
) -> Iterator[bytes]:
    """The file in blocks of rows: absolute paths, so that it can be kept anywhere, or those within the sources.

    The images of each of the `OUTCOMES` are added to `counts` on the way.

    Raises:
        GalleryError: the gallery is damaged.
    """
    return encode_labels(_label_rows(gallery, decisions, counts=counts, folders=folders))


def _label_rows(
    gallery: Gallery, decisions: Decisions, *, counts: Counter[str], folders: bool
) -> Iterator[tuple[str, str]]:
    """(path, label) of the usable images that have one, those set aside as duplicates included."""
    with gallery.as_given.catalog() as catalog:
        for status in ("indexed", "duplicate"):
            for row in catalog.rows(status=status):
                path = locate_image(gallery, row, folders=folders)
                outcome, label = _choose_label(row, decisions)
                if outcome in (_KEPT, _CHANGED) and row.archive is not None:
                    outcome = _ARCHIVED
                elif outcome in (_KEPT, _CHANGED) and not can_be_named(path):
                    outcome = _UNNAMABLE
                counts[outcome] += 1
                if outcome in (_KEPT, _CHANGED):
                    yield path, label


def _choose_label(row: CatalogRow, decisions: Decisions) -> tuple[str, str]:
    decision = decisions.get((row.sha256 or "", row.label))
    if decision is not None and decision.decision == DROP:
        return _DROPPED, ""
    if decision is not None and decision.decision == CHANGE and decision.new_label:
        return _CHANGED, decision.new_label
    label = row.label or ""
    return (_KEPT if label.strip() else _UNLABELLED), label  # readers take white space around a label away
