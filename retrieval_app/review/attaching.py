"""Finding the images that restored decisions are about: by their bytes, for ids and paths may differ by now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import TypeAlias

from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision
from retrieval_app.review.duplicate_decisions import DuplicateDecision, GroupImage
from retrieval_app.review.history import DecidedStep
from retrieval_app.review.subjects import Subject, read_all_subjects

Decision: TypeAlias = LabelDecision | DuplicateDecision


def attach_steps(
    gallery: Gallery, steps: Iterable[DecidedStep], *, paths: Mapping[int, str]
) -> tuple[list[DecidedStep], list[Decision]]:
    """Let decisions name images by the ids and paths that these have in a gallery.

    An image is known by its bytes, one of a label by that too. Of several with the same bytes it is the one of the same
    id, or else the one of the same path, or any.

    Args:
        gallery: whose images are meant.
        steps: decisions of another gallery.
        paths: in their sources, by the ids that the images had there.

    Returns:
        All steps, in their order; and the last decisions about images that the gallery does not have, as they were.
    """
    given = list(steps)
    images = _Images(gallery, {sha256 for step in given for sha256 in _name_bytes(step)}, paths)
    attached, lost = list[DecidedStep](), dict[str, Decision]()
    for step in given:
        labels, duplicates = map(images.attach_label, step.labels), map(images.attach_group, step.duplicates)
        now = DecidedStep(
            step.decided_at,
            tuple(found or before for found, before in zip(labels, step.labels, strict=True)),
            tuple(found or before for found, before in zip(duplicates, step.duplicates, strict=True)),
            step.decided_by,
        )
        for (subject, after), before in zip(now.by_subject().items(), step.by_subject().values(), strict=True):
            lost.pop(subject, None)
            if not images.has(after):
                lost[subject] = before
        attached.append(now)
    return attached, list(lost.values())


class _Images:
    """The images of a gallery by the SHA-256 of their bytes, those that are asked for."""

    def __init__(self, gallery: Gallery, wanted: set[str], paths: Mapping[int, str]) -> None:
        self._paths = paths
        self._found: dict[str, list[Subject]] = {}
        for subject in read_all_subjects(gallery) if wanted else ():
            if subject.sha256 in wanted:
                self._found.setdefault(subject.sha256, []).append(subject)

    def attach_label(self, decision: LabelDecision) -> LabelDecision | None:
        """The decision about the image that is here; None without one."""
        same = [subject for subject in self._found.get(decision.sha256, ()) if subject.label == decision.label]
        best = self._choose(same, image_id=decision.image_id, path=decision.path)
        return None if best is None else replace(decision, image_id=best.image_id, path=best.path)

    def attach_group(self, decision: DuplicateDecision) -> DuplicateDecision | None:
        """The decision about the images that are here; None where one is not."""
        now: dict[int, Subject] = {}
        for image in decision.images:
            taken = {subject.image_id for subject in now.values()}
            same = [subject for subject in self._found.get(image.sha256, ()) if subject.image_id not in taken]
            best = self._choose(same, image_id=image.image_id, path=image.path)
            if best is None:
                return None
            now[image.image_id] = best
        return replace(
            decision,
            images=tuple(now[image.image_id].as_group_image() for image in decision.images),
            keep=tuple(sorted(now[number].image_id for number in decision.keep)),
        )

    def has(self, decision: Decision) -> bool:
        """Whether the images of an attached decision are here."""
        if isinstance(decision, LabelDecision):
            return any(subject.label == decision.label for subject in self._found.get(decision.sha256, ()))
        return self.attach_group(decision) is not None

    def _choose(self, same: list[Subject], *, image_id: int | None, path: str) -> Subject | None:
        """Of images with the same bytes the one that is meant."""
        below = None if image_id is None else self._paths.get(image_id)
        ways = (
            lambda subject: subject.image_id == image_id,
            lambda subject: below is not None and _ends_with(subject.path, below),
            lambda subject: subject.path == path,
            lambda subject: os.path.basename(subject.path) == os.path.basename(path),
            lambda _: True,
        )
        return next((subject for is_meant in ways for subject in same if is_meant(subject)), None)


def _ends_with(path: str, end: str) -> bool:
    parts = PurePath(end).parts
    return bool(parts) and PurePath(path).parts[-len(parts) :] == parts


def _name_bytes(step: DecidedStep) -> Iterable[str]:
    yield from (decision.sha256 for decision in step.labels)
    yield from (image.sha256 for decision in step.duplicates for image in decision.images)


def describe_lost(decision: Decision) -> dict[str, object]:
    """A decision without its images, for people."""
    if isinstance(decision, LabelDecision):
        return {"kind": "label", "sha256": decision.sha256, "label": decision.label, "decision": decision.decision,
                "new_label": decision.new_label, "path": decision.path}  # fmt: skip
    return {"kind": "duplicates", "decision": decision.decision, "images": list(map(_describe, decision.images))}


def _describe(image: GroupImage) -> dict[str, object]:
    return {"sha256": image.sha256, "path": image.path}
