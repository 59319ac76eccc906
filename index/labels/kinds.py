"""Kinds of label issues, by one rule each, and verdicts: keep the label, change it or drop the image."""

import math
from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Literal, TypeAlias, get_args

import numpy as np

from index.arrays import NO_ID, Floats, Ids, Labels, rows_by_value
from index.labels.decisions import CHANGE, DROP, KEEP
from index.labels.label_errors import LabelErrors, Mask

LIKELY_ERROR = 0.5  # least probability of a label error for a verdict other than `keep`
Kind: TypeAlias = Literal[
    "wrong_label",
    "ambiguous",
    "confused_classes",
    "rare_class",
    "outlier",
    "conflicting_duplicates",
    "split_class",
    "unlabelled",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PROPOSAL: Kind = "unlabelled"  # a label for an image that has none; all others are issues of given labels
AMBIGUOUS = 0.25  # least probability of the label and of another one, which may both be right
RARE = 5  # images of a label, near-duplicates apart; fewer hardly show what the label looks like
# Two classes are confused where such a share of the images of each shows the other, and so many images of both do.
CONFUSED_SHARE, CONFUSED_IMAGES = 0.05, 3.0
_EXPECTED, _LEAST = 0.7, 0.6  # share of right verdicts in a recommended bulk step, and of its most doubtful part


def give_verdicts(
    errors: LabelErrors, labels: Labels, *, groups: Ids, rare: Mask, decided: Mask | None = None
) -> tuple[list[str], Ids]:
    """A verdict for every label.

    Near-duplicates with different labels come first: the most confident label stays (`keep`), the images with another
    label are left out (`drop`), unless it has too few images to lose one unseen. For all others:

    - `keep`: the label is more probably right than wrong, or of a rare class, which somebody should look at.
    - `drop`: the label is probably wrong, and the image is an outlier.
    - `change`: the label is probably wrong, and the image shows another one: the most probable other label.

    Args:
        errors: of the N labels.
        labels: (N,) int64.
        groups: (N,) int64; near-duplicates have the same number.
        rare: (N,) whether the label has few images, of `has_rare_class`.
        decided: (N,) whether a person has decided the label, which therefore stays; None where nobody has.

    Returns:
        N verdicts, and (N,) int64 new labels, `NO_ID` but for `change`.
    """
    if decided is None:
        decided = np.zeros(len(labels), dtype=bool)
    stays, loses = compare_duplicates(labels.tolist(), groups, confidences=errors.own, decided=decided, rare=rare)
    verdicts = np.select(
        [loses, stays | decided | (errors.p_error < LIKELY_ERROR) | rare, is_outlier(errors, labels)],
        [DROP, KEEP, DROP],
        default=CHANGE,
    )
    best = errors.best
    others = np.where(best[:, 0] == labels, best[:, 1], best[:, 0])
    return verdicts.tolist(), np.where(verdicts == CHANGE, others, NO_ID).astype(np.int64)


def recommend_threshold(probabilities: Sequence[float]) -> float:
    """The lowest threshold from 60 % on above which at least seven in ten verdicts are expected to be right.

    Calibrated probabilities come in steps, of which none is cut: the threshold is that of a step, rounded down to a
    percent unless that reaches the next one, of (N,) falling probabilities; 70 % where no step will do.
    """
    found, count, expected = _EXPECTED, 0, 0.0
    for probability, step in groupby(probabilities):
        size = sum(1 for _ in step)
        count, expected = count + size, expected + size * probability
        if probability < _LEAST or expected < _EXPECTED * count:
            break
        found = probability
    rounded = math.floor(100 * found + 1e-9) / 100
    return found if any(rounded <= probability < found for probability in probabilities) else rounded


def compare_duplicates(
    labels: Sequence[Hashable | None], groups: Ids, *, confidences: Floats, decided: Mask, rare: Mask
) -> tuple[Mask, Mask]:
    """Which images stay and which are left out among near-duplicates with different labels.

    The labels that people decided about stay; where nobody did, the label whose image is the most confident in it, so
    that of every group one image stays, and rare labels.

    Args:
        labels: of the N images; None where a person dropped the image.
        groups: (N,) int64; near-duplicates have the same number.
        confidences: (N,) in the label.
        decided: (N,) whether a person has decided the label.
        rare: (N,) whether the label has few images, of `has_rare_class`.

    Returns:
        (N,) which images stay and (N,) which are left out; neither where all of a group have one label.
    """
    stays, loses = np.zeros((2, len(groups)), dtype=bool)
    for rows in rows_by_value(groups):
        if len(rows) < 2:
            continue
        group = rows.tolist()
        open_rows = [row for row in group if not decided[row]]
        if len({labels[row] for row in group}) < 2 or not open_rows:
            continue
        right = {labels[row] for row in group if decided[row]} - {None}
        unseen = not right
        right = right or {labels[max(open_rows, key=lambda row: confidences[row])]}
        for row in open_rows:
            stays[row] = labels[row] in right
            loses[row] = not stays[row] and not (unseen and rare[row])
    return stays, loses


def is_outlier(errors: LabelErrors, labels: Labels) -> Mask:
    """(N,) whether an image, if its label is wrong, more probably shows none of the labels than another one."""
    others = np.where(errors.best == labels[:, None], 0.0, errors.probabilities)
    unlike: Mask = (errors.none > others.max(axis=1)) & (errors.calibration.none_if_wrong >= 0.5)
    return unlike


def has_conflicting_duplicate(labels: Labels, groups: Ids) -> Mask:
    """(N,) whether a duplicate, of the same of (N,) groups, has another label."""
    places, inverse = np.unique(groups, return_inverse=True)
    lowest, highest = np.full(len(places), np.iinfo(np.int64).max), np.full(len(places), -1)
    np.minimum.at(lowest, inverse, labels)
    np.maximum.at(highest, inverse, labels)
    differ: Mask = (lowest < highest)[inverse]
    return differ


def has_rare_class(labels: Labels, groups: Ids) -> Mask:
    """(N,) whether a label has fewer than `RARE` images, duplicates, of the same of (N,) groups, counted once."""
    labels_of_groups = np.unique(np.stack([labels, groups]), axis=1)[0]
    rare: Mask = (np.bincount(labels_of_groups) < RARE)[labels]
    return rare


class IssueKinds:
    """Kinds of the issues among N labels.

    Attributes:
        confused_classes: (label, label, images) of labels used for each other, the most images first.
        outliers, rare_class, conflicting_duplicates: (N,) whether the rule of that kind holds.
    """

    def __init__(self, errors: LabelErrors, labels: Labels, groups: Ids, *, count: int) -> None:
        self._errors, self._labels = errors, labels
        self.confused_classes = find_confused_classes(errors.pairs, labels, count=count)
        self.outliers, self.rare_class = is_outlier(errors, labels), has_rare_class(labels, groups)
        self.conflicting_duplicates = has_conflicting_duplicate(labels, groups)
        self._confused = {pair for one, two, _ in self.confused_classes for pair in ((one, two), (two, one))}

    def kind_of(self, row: int) -> Kind:
        """The kind of the issue of a row; the first that fits.

        - `conflicting_duplicates`: a near-duplicate has another label; at least one of the two is wrong.
        - `outlier`: the image more probably shows none of the labels than another one.
        - `rare_class`: fewer than `RARE` images have the label.
        - `confused_classes`: the label and the most probable other one are used for each other.
        - `ambiguous`: the label and another one are both probable.
        - `wrong_label`: another label fits better.
        """
        label, right = int(self._labels[row]), 1 - float(self._errors.p_error[row])
        other, probability = next(iter(self._errors.others(row, label=label)), (label, 0.0))
        if self.conflicting_duplicates[row]:
            return "conflicting_duplicates"
        if self.outliers[row]:
            return "outlier"
        if self.rare_class[row]:
            return "rare_class"
        if (label, other) in self._confused:
            return "confused_classes"
        return "ambiguous" if min(right, probability) >= AMBIGUOUS else "wrong_label"


def find_confused_classes(
    pairs: tuple[tuple[int, int, float], ...], labels: Labels, *, count: int
) -> list[tuple[int, int, float]]:
    """(label, label, images) of labels used for each other, both ways, the most images first.

    Args:
        pairs: of `LabelErrors`: (label, class, images).
        labels: (N,) int64 in 0..count-1.
    """
    images = np.bincount(labels, minlength=count)
    amounts = {(given, shown): amount for given, shown, amount in pairs}
    found = []
    for (one, two), amount in amounts.items():
        back = amounts.get((two, one), 0.0)
        both_ways = min(amount / images[one], back / images[two] if images[two] else 0.0)
        if one < two and both_ways >= CONFUSED_SHARE and amount + back >= CONFUSED_IMAGES:
            found.append((one, two, amount + back))
    return sorted(found, key=lambda pair: -pair[2])
