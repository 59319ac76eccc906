"""What a person can decide about labels and duplicates, each in words that outlive a rebuild of the gallery."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from index.errors import InputError
from index.images import printable_path

KEEP, CHANGE, DROP, OPEN = LABEL_DECISIONS = ("keep", "change", "drop", "open")
COPIES, DIFFERENT, _ = DUPLICATE_DECISIONS = ("copies", "different", OPEN)
MAX_LABEL_CHARACTERS = 200

LabelKey = tuple[str, str | None]
"""An image's SHA-256 and its given label: what a decision about the label holds for, wherever the image lies."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNSEEN = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of characters that no label has on purpose


@dataclass(frozen=True, slots=True)
class LabelDecision:
    """What becomes of a label; `open` takes back what was decided about it.

    Attributes:
        sha256: of the image's bytes, hexadecimal.
        label: as given; None without one.
        decision: one of `LABEL_DECISIONS`.
        new_label: of `change`; None for the others.
        image_id: of the image that was shown; may be another's after the gallery was made anew.
        path: absolute, of the image that was shown, undecodable bytes as surrogates; for people.
        decided_at: UTC, ISO 8601; set by the store.
    """

    sha256: str
    label: str | None
    decision: str
    new_label: str | None = None
    image_id: int | None = None
    path: str = ""
    decided_at: str = ""

    @property
    def key(self) -> LabelKey:
        """What it holds for."""
        return self.sha256, self.label


def check_label_decision(given: LabelDecision) -> LabelDecision:
    """The decision as it is stored: a change to the label that the image has already keeps it.

    Raises:
        InputError: no such decision, no new label for a change, one for another, or a new label that cannot be one.
    """
    _check_word(given.decision, LABEL_DECISIONS)
    _check_sha256(given.sha256)
    if given.decision != CHANGE:
        if given.new_label is not None:
            raise InputError(
                f"only {CHANGE!r} takes a new label; {given.decision!r} came with {given.new_label!r}"
            )
        return given
    new_label = check_label(given.new_label or "")
    if new_label == given.label:
        return replace(given, decision=KEEP, new_label=None)
    return replace(given, new_label=new_label)


def check_label(text: str) -> str:
    """A label that a person typed, without white space around it.

    Raises:
        InputError: it is empty, too long, or has characters that cannot be seen.
    """
    label = text.strip()
    if not label:
        raise InputError("the new label is empty; write one, or drop the image")
    if len(label) > MAX_LABEL_CHARACTERS:
        raise InputError(f"a label has at most {MAX_LABEL_CHARACTERS} characters, this one has {len(label)}")
    unseen = next((c for c in label if unicodedata.category(c) in _UNSEEN), None)
    if unseen is not None:
        raise InputError(
            f"the label {printable_path(label)} has the character {unseen!a}, which no label can have"
        )
    return label


@dataclass(frozen=True, slots=True)
class GroupImage:
    """An image of a group of duplicates: its bytes' SHA-256, its id, and its absolute path as in `LabelDecision`."""

    sha256: str
    image_id: int
    path: str


@dataclass(frozen=True, slots=True)
class DuplicateDecision:
    """Whether the images of a group are copies, of which some are kept, or different pictures, which all stay.

    `open` takes back what was decided about the group.

    Attributes:
        images: all of the group.
        decision: one of `DUPLICATE_DECISIONS`.
        keep: ids of the images of the group that are kept; empty for others than `copies`.
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
    _check_word(given.decision, DUPLICATE_DECISIONS)
    ids = {image.image_id for image in given.images}
    if len(ids) < 2 or len(ids) < len(given.images):
        raise InputError(f"a group has at least two images, each once; got {len(given.images)}")
    for image in given.images:
        _check_sha256(image.sha256)
    keep = tuple(sorted(set(given.keep)))
    if given.decision != COPIES and keep:
        raise InputError(f"only {COPIES!r} says which images are kept; {given.decision!r} came with {list(keep)}")
    if given.decision == COPIES and not keep:
        raise InputError("of copies at least one is kept; say which in keep")
    if strangers := sorted(set(keep) - ids):
        raise InputError(f"images to keep must be of the group: {strangers} are not among {sorted(ids)}")
    return replace(given, keep=keep)


def _check_word(seen: str, words: Sequence[str]) -> None:
    if seen not in words:
        raise InputError(f"the decision must be one of {', '.join(words)}, got {seen!r}")


def _check_sha256(text: str) -> None:
    if _SHA256.fullmatch(text) is None:
        raise InputError(f"an image is known by its SHA-256, 64 hexadecimal digits, got {text!r}")
