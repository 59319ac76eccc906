"""Which images of a gallery repeat another one, as groups around the image that a search would show."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from index.arrays import Ids
from index.duplicates.duplicate_config import DuplicateConfig
from index.gallery.gallery import Gallery
from index.progress import Progress, no_progress
from retrieval_app.reports.duplicates_report import DuplicateGroup, read_report


@dataclass(frozen=True, slots=True)
class DuplicateGroups:
    """The duplicates among a gallery's `images`; those of different labels first, then the largest groups.

    Attributes:
        groups: no image is in two of them.
        images: that were compared, members and those set aside when the gallery was built.
        kept_for: the kept image's id of every image that repeats one, by its id.
    """

    groups: tuple[DuplicateGroup, ...]
    images: int
    kept_for: dict[int, int] = field(init=False, repr=False, compare=False)
    _found: dict[int, DuplicateGroup] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept_images = {image.id: group.kept.id for group in self.groups for image in group.duplicates}
        object.__setattr__(self, "kept_for", kept_images)
        places = {image.id: group for group in self.groups for image in group.images}
        object.__setattr__(self, "_found", places)

    def find(self, image_id: int) -> DuplicateGroup | None:
        """The group that an image is in."""
        return self._found.get(image_id)

    def groups_of(self, image_ids: Ids) -> Ids:
        """(n,) int64 a number for each of (n,) ids, which images that repeat each other share."""
        return np.array([self.kept_for.get(number, number) for number in image_ids.tolist()], dtype=np.int64)


def find_duplicate_groups(gallery: Gallery, progress: Progress = no_progress) -> DuplicateGroups:
    """The images that repeat another one by their bytes, or by hash and embedding under the default thresholds.

    One core takes 0.05 ms an image beside 100,000 others, so that 200,000 take about half a minute.

    Raises:
        GalleryError: the gallery is damaged.
    """
    report = read_report(gallery, config=DuplicateConfig(), progress=progress)
    groups = sorted(report.groups, key=lambda group: not group.labels_differ)  # the report has the largest first
    return DuplicateGroups(tuple(groups), images=report.images)
