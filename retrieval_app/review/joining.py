"""Merging decisions that an earlier program kept elsewhere in the gallery's folder into those of today's place."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

from index.durable import remove_durably
from index.errors import GalleryError, InputError
from index.text import printable_path
from index.versions.gallery_lock import lock_gallery
from index.versions.people import decisions_file, former_decisions_file
from retrieval_app.review.database import Database, ReviewError
from retrieval_app.review.history import merge_history, read_history

logger = logging.getLogger(__name__)


def join_decisions(gallery: Path) -> None:
    """Bring decisions that lie where earlier programs kept them into those of the gallery; the later ones hold.

    Where it cannot be done now, they stay there and the log says why.
    """
    old, new = former_decisions_file(gallery), decisions_file(gallery)
    if not (old.is_file() and new.is_file()):
        return
    try:
        with lock_gallery(gallery, wait_s=0):
            with closing(Database(old)) as before, closing(Database(new)) as now:
                merged = merge_history(now, read_history(before))
            remove_durably(old)
    except (GalleryError, InputError, ReviewError) as error:
        logger.warning("decisions in two places are not brought together: %s", error)
        return
    logger.warning(
        "%s: %d decisions of an earlier program were taken over", printable_path(str(old)), merged.restored
    )
