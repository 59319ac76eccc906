"""Which images of a gallery repeat another one, as groups around the image that a search would show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from index.arrays import Ids
from index.duplicates.duplicate_config import DuplicateConfig
from index.gallery.gallery import Gallery
from index.progress import Progress, no_progress
from index.text import valid_text
from retrieval_app.insights.computed_files import PathText
from retrieval_app.reports.duplicates_report import GroupedImage, read_report


@dataclass(frozen=True, slots=True)
class DuplicateImage:
    """An image of a group.

    Attributes:
        id: of the image.
        path: below its source, undecodable bytes as surrogates.
        label: None without.
        sha256: of its bytes.
        size_bytes: of its bytes.
        indexed: whether a search can find it; not where it was set aside when the gallery was built.
        similarity: its cosine to the kept image; None where unknown, and of the kept image.
        same_bytes: whether its file equals the kept image's; None of the kept image.
    """

    id: int
    path: PathText
    label: str | None
    sha256: str
    size_bytes: int
    indexed: bool
    similarity: float | None
    same_bytes: bool | None

    def to_json(self) -> dict[str, Any]:
        """As in the API; undecodable bytes of the path are shown as escapes."""
        return {
            "id": self.id,
            "path": valid_text(self.path),
            "label": self.label,
            "size_bytes": self.size_bytes,
            "similarity": self.similarity,
            "same_bytes": self.same_bytes,
            "indexed": self.indexed,
        }


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """Images that show one picture: the kept image, then equal files, then the others by falling similarity."""

    images: tuple[DuplicateImage, ...]

    @property
    def labels_differ(self) -> bool:
        """Whether two images have different labels, so that one of these is likely wrong."""
        return len({image.label for image in self.images} - {None}) > 1

    def to_json(self) -> dict[str, Any]:
        """As in the API without the group's name and the decision."""
        return {"images": [image.to_json() for image in self.images], "labels_differ": self.labels_differ}


@dataclass(frozen=True, slots=True)
class DuplicateGroups:
    """The duplicates among a gallery's `images`; those of different labels first, then the largest groups.

    Attributes:
        groups: no image is in two of them.
        images: that were compared, members and those set aside when the gallery was built.
        kept_for: the kept image's id of every image that repeats one, by its id.
    """

    groups: tuple[ImageGroup, ...]
    images: int
    kept_for: dict[int, int] = field(init=False, repr=False, compare=False)
    _found: dict[int, ImageGroup] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept_images = {image.id: group.images[0].id for group in self.groups for image in group.images[1:]}
        object.__setattr__(self, "kept_for", kept_images)
        places = {image.id: group for group in self.groups for image in group.images}
        object.__setattr__(self, "_found", places)

    def find(self, image_id: int) -> ImageGroup | None:
        """The group that an image is in."""
        return self._found.get(image_id)

    def groups_of(self, image_ids: Ids) -> Ids:
        """(n,) int64 a number for each of (n,) ids, which images that repeat each other share."""
        return np.array([self.kept_for.get(number, number) for number in image_ids.tolist()], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """All groups, as in the API without their names and the decisions."""
        return {"total": len(self.groups), "items": [group.to_json() for group in self.groups]}


def find_duplicate_groups(gallery: Gallery, progress: Progress = no_progress) -> DuplicateGroups:
    """The images that repeat another one by their bytes, or by hash and embedding under the default thresholds.

    One core takes 0.05 ms an image beside 100,000 others, so that 200,000 take about half a minute.

    Raises:
        GalleryError: the gallery is damaged.
    """
    report = read_report(gallery, config=DuplicateConfig(), progress=progress)
    groups = [
        ImageGroup(tuple(_describe(image, kept=group.kept) for image in group.images)) for group in report.groups
    ]
    groups.sort(key=lambda group: not group.labels_differ)  # the report has the largest first
    return DuplicateGroups(tuple(groups), images=report.images)


def _describe(image: GroupedImage, *, kept: GroupedImage) -> DuplicateImage:
    return DuplicateImage(
        id=image.id,
        path=image.path,
        label=image.label,
        sha256=image.sha256,
        size_bytes=image.size_bytes,
        indexed=image.indexed,
        similarity=image.similarity,
        same_bytes=None if image is kept else image.sha256 == kept.sha256,
    )
