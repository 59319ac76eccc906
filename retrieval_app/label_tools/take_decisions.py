"""Decisions of other programs become those of a gallery, or of an audit."""

from __future__ import annotations

from pathlib import Path

from index.gallery.gallery import Gallery
from index.output_files import write_csv
from retrieval_app.label_tools.bring_back import bring_back
from retrieval_app.label_tools.judged import DECISIONS_NAME, read_judged
from retrieval_app.review.review_store import MAX_STEP_DECISIONS, ReviewStore
from retrieval_app.review.subjects import read_all_subjects


def take_decisions(place: Path, file: Path) -> dict[str, int]:
    """Keep what a file decides; how many decisions were taken, and how many are about unknown images.

    Raises:
        InputError: the file, or the audit, cannot be read.
        GalleryError: there is no gallery.
        ReviewError: the decisions cannot be kept.
    """
    if (place / "audit.csv").exists():
        judged = read_judged(place)
        brought = bring_back(file, [item.subject for item in judged.items])
        all_of_them = {**judged.decisions, **{d.key: d for d in brought.decisions}}
        rows = [[d.path, d.sha256, d.label, d.decision, d.new_label] for d in all_of_them.values()]
        write_csv(place / DECISIONS_NAME, ["path", "sha256", "label", "decision", "new_label"], rows)
    else:
        gallery = Gallery.open(place)
        brought = bring_back(file, list(read_all_subjects(gallery)))
        store = ReviewStore.of_gallery(gallery.path)
        for start in range(0, len(brought.decisions), MAX_STEP_DECISIONS):
            store.decide(brought.decisions[start : start + MAX_STEP_DECISIONS])
        store.close()
    return {"decided": len(brought.decisions), "unknown": brought.unknown}
