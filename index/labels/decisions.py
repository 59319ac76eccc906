"""Decisions about labels and groups of near-duplicates, and marks, by the bytes of images, which outlive a gallery.

A mark is a field of an image: `tag:NAME`, or `split`, which takes the place of the metadata column of that name.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from typing import Final, Literal, TypeAlias, get_args

from index.catalog.rows import SPLIT
from index.errors import InputError
from index.text import printable_path

KEEP: Final = "keep"
CHANGE: Final = "change"
SET_ASIDE: Final = "set_aside"
DROP: Final = "drop"
DECISIONS = (KEEP, CHANGE, SET_ASIDE, DROP)
OPEN = "open"  # takes back what was decided
DecisionSource: TypeAlias = Literal["person", "bulk", "import", "agent", "rule"]
"""Source of a decision: a person, a bulk accept, a file of another program, an agent over MCP, or a condition."""
SOURCES: tuple[DecisionSource, ...] = get_args(DecisionSource)
P_RIGHT, GIVEN = "p_right", "given"
"""Columns of label files and tables: the probability that the label is right, and the label before decisions."""
MAX_UNREVIEWED_P_RIGHT = 0.9999  # p_right at most where no person looked, as 1 says that one did
MAX_LABEL_CHARACTERS = 200
LabelKey = tuple[str, str | None]
"""Key of a label decision: the image's SHA-256 and its given label, wherever the image lies."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNSEEN = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of characters that no label has on purpose


@dataclass(frozen=True, slots=True)
class LabelDecision:
    """Decision about a label; `open` undoes an earlier decision."""

    sha256: str
    label: str | None  # the given label; None without one
    decision: str  # one of `DECISIONS`, or `OPEN`; `set_aside`: out of training and results until another decision
    new_label: str | None = None
    image_id: int | None = None  # id of the shown image; a rebuilt gallery may give it to another image
    path: str = ""
    source: DecisionSource = "person"
    p_right: float = 1.0  # probability that the resulting label is right; below 1 only without a review by a person
    others_right: float | None = None  # in a bulk accept: expected share of right labels without a label issue
    others_to: int | None = None  # the greatest id of these images
    decided_at: str = ""  # UTC, ISO 8601; set by the store of decisions
    decided_by: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_word(self.decision, (*DECISIONS, OPEN))

    @property
    def key(self) -> LabelKey:
        return self.sha256, self.label

    @property
    def subject(self) -> str:
        """Key of the decision in a file of decisions: image and label."""
        return f"{self.sha256}/{self.label or ''}"

    @property
    def meaning(self) -> tuple[str, str | None] | None:
        """Decision and new label; None where it undoes an earlier decision."""
        return None if self.decision == OPEN else (self.decision, self.new_label)

    @property
    def is_look(self) -> bool:
        """Whether a person looked at the image."""
        return self.source == "person" and self.p_right == 1

    @property
    def leaves_out(self) -> bool:
        """Whether the image is left out of training and results."""
        return self.decision in (SET_ASIDE, DROP)

    @property
    def label_after(self) -> str | None:
        """Label of the image after the decision; None where the image is left out, or has no label."""
        if self.leaves_out:
            return None
        return self.new_label if self.decision == CHANGE else self.label


def parse_p_right(text: str | None, *, where: str) -> float | None:
    """Parse the `p_right` of a label file's cell, 0..1; None if empty."""
    if not text:
        return None
    try:
        p_right = float(text)
    except ValueError:
        p_right = -1.0
    if not 0 <= p_right <= 1:
        raise InputError(
            f"{where}: {P_RIGHT} must be a probability from 0 to 1, found {text!r}; correct it or empty it"
        )
    return p_right


DUPLICATES, DIFFERENT = "duplicates", "different"  # values in the database and in the API


@dataclass(frozen=True, slots=True)
class ImageRef:
    """Reference to a decided image; `path` is absolute, with undecodable bytes as surrogates."""

    image_id: int
    sha256: str
    label: str | None
    path: str

    @property
    def key(self) -> LabelKey:
        return self.sha256, self.label

    def decide(self, decision: str, *, new_label: str | None = None) -> LabelDecision:
        return LabelDecision(self.sha256, self.label, decision, new_label, self.image_id, self.path)


@dataclass(frozen=True, slots=True)
class DuplicateDecision:
    """Decision about a group: duplicates, of which some are kept, or different images, which all stay."""

    images: tuple[ImageRef, ...]
    decision: str  # `DUPLICATES`, `DIFFERENT` or `OPEN`, which takes an earlier decision back
    keep: tuple[int, ...] = ()  # ids of the kept images of `DUPLICATES`
    decided_at: str = ""
    inherits: bool = True  # whether kept images get the tags of dropped ones, and their label where they have no label

    @property
    def group(self) -> str:
        return name_group(image.sha256 for image in self.images)

    subject = group

    @property
    def meaning(self) -> tuple[str, tuple[int, ...]] | None:
        return None if self.decision == OPEN else (self.decision, self.keep)

    def find_kept(self, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """Current ids of the kept images, given the current images of the group."""
        kept = (image for image in self.images if image.image_id in self.keep)
        return tuple(sorted(now.image_id for now in match_images(kept, images)))


def match_images(images: Iterable[ImageRef], here: Sequence[ImageRef]) -> list[ImageRef]:
    """Match decided images with present images of the same bytes; images without a match are left out.

    Among several candidates, an equal path wins, then the longest common end of the path, then an equal id.
    """
    left: dict[str, dict[int, ImageRef]] = {}
    for now in here:
        left.setdefault(now.sha256, {})[now.image_id] = now
    found: list[ImageRef] = []
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
    """Name of a group of images, 32 hexadecimal digits, by their bytes in any order."""
    return hashlib.sha256("\n".join(sorted(sha256s)).encode("ascii", "backslashreplace")).hexdigest()[:32]


PRESENT = "1"
"""The value of a tag that an image has."""
_TAG = "tag:"


@dataclass(frozen=True, slots=True)
class Mark:
    """Tag or split of an image; the value is `PRESENT` or the split's name, None removes the mark."""

    sha256: str
    field: str
    value: str | None
    decided_at: str = ""

    @property
    def subject(self) -> str:
        return f"{self.field}/{self.sha256}"

    @property
    def meaning(self) -> str | None:
        return self.value

    @property
    def tag(self) -> str | None:
        """The name of the tag; None for the split."""
        return self.field.removeprefix(_TAG) if self.field.startswith(_TAG) else None


@lru_cache(maxsize=64)  # a step has thousands of one tag
def tag_field(name: str) -> str:
    return _TAG + check_name(name, what="tag")


def check_mark(given: Mark) -> Mark:
    """Check a mark; returns it as it is stored, or raises an InputError."""
    check_sha256(given.sha256)
    if given.tag is not None:
        if given.value not in (PRESENT, None):
            raise InputError(f"a tag is there or not ({PRESENT!r} or null), got {given.value!r}")
        field = tag_field(given.tag)
        return given if field == given.field else replace(given, field=field)
    if given.field != SPLIT:
        raise InputError(f"a mark is tag:NAME or {SPLIT}, got {given.field!r}")
    return given if given.value is None else replace(given, value=check_name(given.value, what="split"))


def check_label_decision(given: LabelDecision) -> LabelDecision:
    """Check a decision; returns it as it is stored: a change to the given label keeps the label."""
    check_sha256(given.sha256)
    if given.source not in SOURCES or not all(0 <= share <= 1 for share in (given.p_right, given.others_right or 0)):
        raise InputError(
            f"a decision is of {', '.join(SOURCES)} with a p_right in 0..1, got {given.source!r}, {given.p_right!r}"
        )
    if given.decision != CHANGE:
        if given.new_label is not None:
            raise InputError(f"only {CHANGE!r} takes a new label; {given.decision!r} came with {given.new_label!r}")
        return given
    new_label = check_label(given.new_label or "")
    if new_label == given.label:
        return replace(given, decision=KEEP, new_label=None)
    return given if new_label == given.new_label else replace(given, new_label=new_label)


@lru_cache(maxsize=64)  # a step has thousands of one label
def check_label(text: str) -> str:
    """Check a typed label; returns it without surrounding white space."""
    if not text.strip():
        raise InputError("the new label is empty; write one, or drop the image")
    return check_name(text, what="label")


def check_name(text: str, *, what: str) -> str:
    """Check the name of a label, tag or split; returns it without surrounding white space."""
    name = text.strip()
    if not name:
        raise InputError(f"the {what} is empty; write a name")
    if len(name) > MAX_LABEL_CHARACTERS:
        raise InputError(f"a {what} has at most {MAX_LABEL_CHARACTERS} characters, this one has {len(name)}")
    unseen = next((c for c in name if unicodedata.category(c) in _UNSEEN), None)
    if unseen is not None:
        raise InputError(f"the {what} {printable_path(name)} has the character {unseen!a}, which no {what} can have")
    return name


def check_word(seen: str, words: Sequence[str]) -> None:
    if seen not in words:
        raise InputError(f"the decision must be one of {', '.join(words)}, got {seen!r}")


def check_sha256(text: str) -> None:
    if _SHA256.fullmatch(text) is None:
        raise InputError(f"an image is known by its SHA-256, 64 hexadecimal digits, got {text!r}")


def check_duplicate_decision(given: DuplicateDecision) -> DuplicateDecision:
    """Check a decision; returns it with sorted ids, each once, or raises an InputError if it contradicts itself."""
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
