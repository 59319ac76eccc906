"""What a person can decide about a label: keep, change or drop, in words that outlive a run and a gallery."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from index.errors import InputError
from index.text import printable_path

KEEP, CHANGE, DROP = DECISIONS = ("keep", "change", "drop")
OPEN = "open"  # takes back what was decided
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
        decision: one of `DECISIONS`, or `OPEN`.
        new_label: of `change`; None for the others.
        image_id: of the image that was shown; may be another's after the gallery was made anew.
        path: of the image that was shown, undecodable bytes as surrogates; for people.
        decided_at: UTC, ISO 8601; set by the store of decisions.
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

    @property
    def label_after(self) -> str | None:
        """The label that it leaves the image with; None where the image is dropped, or has none."""
        if self.decision == DROP:
            return None
        return self.new_label if self.decision == CHANGE else self.label


def check_label_decision(given: LabelDecision) -> LabelDecision:
    """The decision as it is stored: a change to the label that the image has already keeps it.

    Raises:
        InputError: no such decision, no new label for a change, one for another, or a new label that cannot be one.
    """
    check_word(given.decision, (*DECISIONS, OPEN))
    check_sha256(given.sha256)
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


def check_word(seen: str, words: Sequence[str]) -> None:
    """See that a decision is one of some words.

    Raises:
        InputError: it is not.
    """
    if seen not in words:
        raise InputError(f"the decision must be one of {', '.join(words)}, got {seen!r}")


def check_sha256(text: str) -> None:
    """See that an image is named by the SHA-256 of its bytes.

    Raises:
        InputError: it is not.
    """
    if _SHA256.fullmatch(text) is None:
        raise InputError(f"an image is known by its SHA-256, 64 hexadecimal digits, got {text!r}")
