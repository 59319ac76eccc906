"""Decisions about groups of near-duplicates, whose images are known by their bytes, which outlive ids."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from index.errors import InputError
from index.labels.decisions import OPEN, LabelDecision, LabelKey, check_sha256, check_word

DUPLICATES, DIFFERENT = "duplicates", "different"  # as they are stored, and as the API has them


@dataclass(frozen=True, slots=True)
class Subject:
    """A decided image; `path` is absolute, with undecodable bytes as surrogates."""

    image_id: int
    sha256: str
    label: str | None
    path: str

    @property
    def key(self) -> LabelKey:
        """The subject of a decision about its label."""
        return self.sha256, self.label

    def decide(self, decision: str, *, new_label: str | None = None) -> LabelDecision:
        """A decision about its label."""
        return LabelDecision(self.sha256, self.label, decision, new_label, self.image_id, self.path)


@dataclass(frozen=True, slots=True)
class DuplicateDecision:
    """Whether the images of a group are duplicates, of which some are kept, or different images, which all stay.

    Attributes:
        decision: `DUPLICATES`, `DIFFERENT` or `OPEN`, which takes an earlier decision back.
        keep: ids of the kept images of `DUPLICATES`.
        inherits: whether kept images get the tags of dropped ones, and their label where they have none.
        decided_at: UTC, ISO 8601; set by the store.
    """

    images: tuple[Subject, ...]
    decision: str
    keep: tuple[int, ...] = ()
    decided_at: str = ""
    inherits: bool = True

    @property
    def group(self) -> str:
        """The name of the group."""
        return name_group(image.sha256 for image in self.images)

    subject = group

    @property
    def meaning(self) -> tuple[str, tuple[int, ...]]:
        """What was decided."""
        return self.decision, self.keep

    @property
    def is_undone(self) -> bool:
        """Whether it takes an earlier one back."""
        return self.decision == OPEN

    def find_kept(self, images: Sequence[Subject]) -> tuple[int, ...]:
        """The present ids of the kept images, given the present images of the group."""
        kept = (image for image in self.images if image.image_id in self.keep)
        return tuple(sorted(now.image_id for now in find_images(kept, images)))


def find_images(images: Iterable[Subject], here: Sequence[Subject]) -> list[Subject]:
    """The present counterparts of decided images; those without one are left out.

    A counterpart has the same bytes. Of several it is the one of the same path, then the one whose path ends most
    alike, then the one of the same id: paths and ids differ in a gallery that was built anew.
    """
    left: dict[str, dict[int, Subject]] = {}
    for now in here:
        left.setdefault(now.sha256, {})[now.image_id] = now
    found: list[Subject] = []
    for image in images:
        if same := left.get(image.sha256):
            alike = [now for now in same.values() if now.path == image.path] or same.values()
            best = max(alike, key=lambda now: (*rank_path(now.path, image.path), now.image_id == image.image_id))
            found.append(same.pop(best.image_id))
    return found


def rank_path(path: str, other: str) -> tuple[bool, int]:
    """Whether two paths are equal, then the length of their common end."""
    pairs = zip(reversed(path), reversed(other), strict=False)
    return path == other, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def name_group(sha256s: Iterable[str]) -> str:
    """The name of a group of images, the same for the same bytes in any order: 32 hexadecimal digits."""
    return hashlib.sha256("\n".join(sorted(sha256s)).encode("ascii", "backslashreplace")).hexdigest()[:32]


def check_duplicate_decision(given: DuplicateDecision) -> DuplicateDecision:
    """The decision as it is stored, its ids once and in order; an InputError where it contradicts itself."""
    check_word(given.decision, (DUPLICATES, DIFFERENT, OPEN))
    ids = {image.image_id for image in given.images}
    if len(ids) < 2 or len(ids) < len(given.images):
        raise InputError(f"a group has at least two images, each once; got {len(given.images)}")
    for image in given.images:
        check_sha256(image.sha256)
    keep = tuple(sorted(set(given.keep)))
    if given.decision != DUPLICATES and keep:
        raise InputError(f"only {DUPLICATES!r} names images to keep; {given.decision!r} came with {list(keep)}")
    if given.decision == DUPLICATES and not keep:
        raise InputError("of duplicates at least one is kept; say which in keep")
    if strangers := sorted(set(keep) - ids):
        raise InputError(f"images to keep must be of the group: {strangers} are not among {sorted(ids)}")
    return replace(given, keep=keep)
