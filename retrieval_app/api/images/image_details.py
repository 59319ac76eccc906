"""What is known of one image: its row, its duplicates, whether its label is doubted, and what somebody decided."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from index.catalog.rows import CatalogRow
from index.errors import UnknownImageError
from index.gallery.gallery import Gallery
from index.network.remote_store import has_time
from index.text import printable_path, valid_text
from retrieval_app.api.review.doubt_list import describe_decision, describe_doubt
from retrieval_app.api.review.duplicate_list import describe_duplicates
from retrieval_app.api.row_fields import given_label
from retrieval_app.review.places import name_source
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot

_STATUSES = ("indexed", "duplicate")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def describe_details(snapshot: Snapshot, review: ReviewStore, image_id: int, *, folders: bool) -> dict[str, Any]:
    """The document of one image; what is computed of the whole gallery is in it once that is done.

    Its source is told with the folders of the machine, or without.

    Raises:
        UnknownImageError: no usable image has this id.
    """
    gallery = snapshot.gallery
    given = find_row(gallery.as_given, image_id)
    row = gallery.decided.apply(given)
    decision = review.label_decisions().get((given.sha256 or "", given.label))
    doubts = snapshot.insights.doubts.value
    doubt = None if doubts is None else doubts.find(image_id)
    return {
        "id": row.id,
        "path": valid_text(row.path),
        "label": row.label,
        **given_label(row),
        "source": name_source(gallery, row.source, folders=folders),
        "metadata": row.metadata,
        "size_bytes": row.size_bytes,
        "modified": _format_time(row.mtime_ns),
        "sha256": row.sha256,
        "indexed": given.status == "indexed",
        "copies": describe_duplicates(gallery, snapshot.insights.duplicates.value, image_id),
        "doubt": None if doubt is None else describe_doubt(doubt, row, decision),
        "decision": describe_decision(decision),
    }


def find_row(gallery: Gallery, image_id: int) -> CatalogRow:
    """The row of an image that is indexed or was set aside as a duplicate.

    Raises:
        UnknownImageError: there is none.
    """
    with gallery.catalog() as catalog:
        for row in catalog.rows_of([image_id]):
            if row.status in _STATUSES:
                return row
    raise UnknownImageError(image_id, gallery=printable_path(gallery.name))


def _format_time(mtime_ns: int) -> str | None:
    if not has_time(mtime_ns):
        return None
    try:
        return (_EPOCH + timedelta(seconds=mtime_ns // 10**9)).isoformat()
    except OverflowError:  # file systems hold times that no calendar has
        return None
