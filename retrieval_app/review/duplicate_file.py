"""What was decided about duplicates as a CSV of `path,decision,group`, for whoever tidies the folders."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from index.gallery.gallery import Gallery
from retrieval_app.review.duplicate_decisions import DUPLICATES, DuplicateDecision, GroupImage, name_group
from retrieval_app.review.places import shorten_path
from retrieval_app.review.subjects import read_all_subjects, read_known_subjects

_HEADER = ("path", "decision", "group")


def stream_duplicate_file(
    gallery: Gallery, decisions: Iterable[DuplicateDecision], *, folders: bool = True
) -> Iterator[bytes]:
    """The file, a block for each group that was decided; an image is `keep` or `drop`.

    Of duplicates those that are not kept are dropped; different pictures are all kept. A group is left out where not
    all of its images are the gallery's any more, as then nobody knows whether one would be left. Paths are absolute,
    without folders those within the sources; their undecodable bytes stay what they are.
    """
    yield _write_rows([_HEADER])
    write = partial(_write_group, shorten=None if folders else partial(shorten_path, gallery))
    unmatched = []
    for decision in decisions:
        known = read_known_subjects(gallery, (image.image_id for image in decision.images))
        images = [subject.as_group_image() for subject in known.values()]
        if decision.group == name_group(image.sha256 for image in images):
            yield write(decision, images)
        else:
            unmatched.append(decision)
    for decision, images in _match_by_bytes(gallery, unmatched):
        yield write(decision, images)


def _match_by_bytes(
    gallery: Gallery, decisions: Sequence[DuplicateDecision]
) -> Iterator[tuple[DuplicateDecision, list[GroupImage]]]:
    """Groups whose images have other ids now, as in a gallery made anew: all of it is looked at."""
    wanted = {image.sha256 for decision in decisions for image in decision.images}
    found: dict[str, list[GroupImage]] = defaultdict(list)
    for subject in read_all_subjects(gallery) if wanted else ():
        if subject.sha256 in wanted:
            found[subject.sha256].append(subject.as_group_image())
    for decision in decisions:
        images = [image for sha256 in {i.sha256 for i in decision.images} for image in found[sha256]]
        if decision.group == name_group(image.sha256 for image in images):
            yield decision, sorted(images, key=lambda image: image.image_id)


def _write_group(
    decision: DuplicateDecision, images: Sequence[GroupImage], *, shorten: Callable[[str], str] | None
) -> bytes:
    kept = {image.image_id for image in images}
    if decision.decision == DUPLICATES:
        kept = set(decision.find_kept(images))
    return _write_rows(
        (
            image.path if shorten is None else shorten(image.path),
            "keep" if image.image_id in kept else "drop",
            decision.group,
        )
        for image in images
    )


def _write_rows(rows: Iterable[tuple[str, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return os.fsencode(text.getvalue())
