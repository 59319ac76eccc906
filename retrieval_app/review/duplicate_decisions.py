"""What a person can decide about a group of duplicates, in words that outlive a rebuild of the gallery."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from index.errors import InputError
from index.labels.decisions import OPEN, check_sha256, check_word

DUPLICATES, DIFFERENT = "copies", "different"  # as they are stored, and as the API has them


@dataclass(frozen=True, slots=True)
class GroupImage:
    """An image of a group of duplicates: its bytes' SHA-256, its id, and its absolute path as in `LabelDecision`."""

    sha256: str
    image_id: int
    path: str


@dataclass(frozen=True, slots=True)
class DuplicateDecision:
    """Whether the images of a group are duplicates, of which some are kept, or different pictures, which all stay.

    `open` takes back what was decided about the group.

    Attributes:
        images: all of the group.
        decision: `DUPLICATES`, `DIFFERENT` or `OPEN`.
        keep: ids of the images of the group that are kept; empty for others than `DUPLICATES`.
        decided_at: UTC, ISO 8601; set by the store.
    """

    images: tuple[GroupImage, ...]
    decision: str
    keep: tuple[int, ...] = ()
    decided_at: str = ""

    @property
    def group(self) -> str:
        """The name of the group."""
        return name_group(image.sha256 for image in self.images)

    def find_kept(self, images: Sequence[GroupImage]) -> tuple[int, ...]:
        """The ids that the kept images have now, given those of the group as they are now.

        An image is known by its bytes and its id or path; where its file was moved in a gallery made anew, another of
        the same bytes stands for it.
        """
        kept: list[int] = []
        for image in (image for image in self.images if image.image_id in self.keep):
            same = [now for now in images if now.sha256 == image.sha256 and now.image_id not in kept]
            best = [now for now in same if now.path == image.path]
            best += [now for now in same if now.image_id == image.image_id]
            kept += [now.image_id for now in (best or same)[:1]]
        return tuple(sorted(kept))


def name_group(sha256s: Iterable[str]) -> str:
    """The name of a group of images, the same for the same bytes in any order: 32 hexadecimal digits."""
    return hashlib.sha256("\n".join(sorted(sha256s)).encode("ascii", "backslashreplace")).hexdigest()[:32]


def check_duplicate_decision(given: DuplicateDecision) -> DuplicateDecision:
    """The decision as it is stored, its ids once and in order.

    Raises:
        InputError: no such decision, fewer than two images, or images to keep that are not of the group, or none.
    """
    check_word(given.decision, (DUPLICATES, DIFFERENT, OPEN))
    ids = {image.image_id for image in given.images}
    if len(ids) < 2 or len(ids) < len(given.images):
        raise InputError(f"a group has at least two images, each once; got {len(given.images)}")
    for image in given.images:
        check_sha256(image.sha256)
    keep = tuple(sorted(set(given.keep)))
    if given.decision != DUPLICATES and keep:
        raise InputError(
            f"only {DUPLICATES!r} says which images are kept; {given.decision!r} came with {list(keep)}"
        )
    if given.decision == DUPLICATES and not keep:
        raise InputError("of duplicates at least one is kept; say which in keep")
    if strangers := sorted(set(keep) - ids):
        raise InputError(f"images to keep must be of the group: {strangers} are not among {sorted(ids)}")
    return replace(given, keep=keep)
