"""Label decisions: keep, change, set aside or drop, by a person or by the machine; they outlive a run and a gallery."""

import csv
import io
import logging
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from index.errors import InputError
from index.text import printable_path

HEADER = ("path", "label")
_ROWS_AT_ONCE = 1000

logger = logging.getLogger(__name__)
_COLUMNS = ("path", "sha256", "label", "decision", "new_label")
KEEP, CHANGE, SET_ASIDE, DROP = "keep", "change", "set_aside", "drop"
DECISIONS = (KEEP, CHANGE, SET_ASIDE, DROP)
OPEN = "open"  # takes back what was decided
DecisionSource: TypeAlias = Literal["person", "bulk", "import", "agent"]
"""Who decided: a person who looked, a bulk accept, a file of another program, or an agent over MCP."""
SOURCES: tuple[DecisionSource, ...] = get_args(DecisionSource)
P_RIGHT, GIVEN = "p_right", "given"
"""Columns of label files and tables: the probability that the label is right, and the label before decisions."""
MOST_RIGHT = 0.9999  # p_right at most where no person looked, as 1 says that one did
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
        decision: one of `DECISIONS`, or `OPEN`. `set_aside` leaves the image out of training and results until somebody
            decides.
        new_label: of `change`; None for the others.
        image_id: of the image that was shown; may be another's after the gallery was made anew.
        path: of the image that was shown, undecodable bytes as surrogates; for people.
        source: who decided.
        p_right: probability (0..1) that the label it leaves is right; below 1 only where no person looked.
        others_right: of a bulk accept, the expected share (0..1) of right labels among the images up to the id
            `others_to` that were no label issues.
        decided_at: UTC, ISO 8601; set by the store of decisions.
        decided_by: the name of whoever decided, where it is known; likewise.
    """

    sha256: str
    label: str | None
    decision: str
    new_label: str | None = None
    image_id: int | None = None
    path: str = ""
    source: DecisionSource = "person"
    p_right: float = 1.0
    others_right: float | None = None
    others_to: int | None = None
    decided_at: str = ""
    decided_by: str | None = field(default=None, compare=False)

    @property
    def key(self) -> LabelKey:
        """What it holds for."""
        return self.sha256, self.label

    @property
    def subject(self) -> str:
        """What it is about, in a file of decisions."""
        return f"{self.sha256}/{self.label or ''}"

    @property
    def meaning(self) -> tuple[str, str | None]:
        """What was decided."""
        return self.decision, self.new_label

    @property
    def is_undone(self) -> bool:
        """Whether it takes an earlier one back."""
        return self.decision == OPEN

    @property
    def leaves_out(self) -> bool:
        """Whether the image takes no part in training and results."""
        return self.decision in (SET_ASIDE, DROP)

    @property
    def label_after(self) -> str | None:
        """The label that it leaves the image with; None where the image is left out, or has none."""
        if self.leaves_out:
            return None
        return self.new_label if self.decision == CHANGE else self.label


def parse_p_right(text: str | None, *, where: str) -> float | None:
    """The `p_right` of a label file's cell, 0..1; None of an empty one."""
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


def encode_labels(rows: Iterable[Sequence[str]], *, more_columns: Sequence[str] = ()) -> Iterator[bytes]:
    """The file in blocks, from rows of path, label and what else there is.

    Nothing is put before what a spreadsheet would take for a formula: the file is read back by programs.
    """
    lines = chain([(*HEADER, *more_columns)], rows)
    while block := list(islice(lines, _ROWS_AT_ONCE)):
        text = io.StringIO(newline="")
        csv.writer(text).writerows(block)
        yield text.getvalue().encode()


def can_be_named(path: str) -> bool:
    """Whether a path is text, so that a label file, which is UTF-8, can say it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_decisions(path: Path, *, known: Collection[LabelKey]) -> dict[LabelKey, LabelDecision]:
    """Decisions by what they hold for: every image of these bytes with that label, wherever it lies.

    Decisions about others than the known ones are left out with a warning: a file that was used for an earlier run may
    be used again. A new label that no image has is taken, with a warning: it may be a new class, or a slip.
    """
    shown = printable_path(str(path))
    classes = {label for _, label in known}
    decisions: dict[LabelKey, LabelDecision] = {}
    unknown: list[str] = []
    for line, row in _read_rows(path):
        where = f"{shown}, line {line}"
        decision = _read_decision(row, where=where)
        if decision.key not in known:
            unknown.append(where)
            continue
        before = decisions.setdefault(decision.key, decision)
        if before.meaning != decision.meaning:
            raise InputError(
                f"{where}: {printable_path(decision.path)} as {decision.label!r} is decided otherwise above; keep one"
            )
        if decision.new_label is not None and decision.new_label not in classes:
            logger.warning("%s: the new label %r is no class of this run yet", where, decision.new_label)
    if unknown:
        logger.warning(
            "left out, because about images or labels that this run does not have: %d decisions, the first in %s",
            len(unknown),
            unknown[0],
        )
    return decisions


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, values of all columns) of every row that is not empty."""
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such decisions file; the audit's page saves one")
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            missing = [name for name in _COLUMNS if name not in columns]
            if missing:
                raise InputError(
                    f"{shown}: expected a header with the columns {','.join(_COLUMNS)}; lacks {','.join(missing)}"
                )
            for row in rows:
                yield rows.line_num, {name: row.get(name) or "" for name in (*_COLUMNS, P_RIGHT)}
    except csv.Error as error:
        raise InputError(f"{shown}: not a readable CSV file: {error}") from error


def _read_decision(row: Mapping[str, str], *, where: str) -> LabelDecision:
    decision, new = row["decision"], row["new_label"].strip()
    if decision not in DECISIONS:
        raise InputError(f"{where}: the decision must be one of {', '.join(DECISIONS)}, found {decision!r}")
    if decision == CHANGE and not new:
        raise InputError(f"{where}: {CHANGE} needs a new_label, found none")
    if decision == CHANGE and new == row["label"]:
        decision = KEEP
    p_right = parse_p_right(row[P_RIGHT], where=where)
    return LabelDecision(
        row["sha256"],
        row["label"],
        decision,
        new if decision == CHANGE else None,
        path=row["path"],
        p_right=1.0 if p_right is None else p_right,
    )


def check_label_decision(given: LabelDecision) -> LabelDecision:
    """The decision as it is stored: a change to the label that the image has already keeps it."""
    check_word(given.decision, (*DECISIONS, OPEN))
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
    """A label that a person typed, without white space around it."""
    if not text.strip():
        raise InputError("the new label is empty; write one, or drop the image")
    return check_name(text, what="label")


def check_name(text: str, *, what: str) -> str:
    """The name of a label, a tag or a split, without white space around it."""
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
    """See that a decision is one of some words."""
    if seen not in words:
        raise InputError(f"the decision must be one of {', '.join(words)}, got {seen!r}")


def check_sha256(text: str) -> None:
    """See that an image is named by the SHA-256 of its bytes."""
    if _SHA256.fullmatch(text) is None:
        raise InputError(f"an image is known by its SHA-256, 64 hexadecimal digits, got {text!r}")
