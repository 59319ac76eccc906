"""Kinds of label issues, with one rule for each kind."""

from typing import Literal, TypeAlias, get_args

import numpy as np

from index.arrays import Ids, Labels, Mask
from index.labels.label_errors import LabelErrors

LIKELY_ERROR = 0.5  # from this probability of a label error on a label is called wrong
IssueKind: TypeAlias = Literal[
    "wrong_label",
    "ambiguous",
    "confused_classes",
    "rare_class",
    "outlier",
    "conflicting_duplicates",
    "split_class",
    "unlabelled",
]
KINDS: tuple[IssueKind, ...] = get_args(IssueKind)
COPIES: IssueKind = "conflicting_duplicates"
PROPOSAL: IssueKind = "unlabelled"  # a label for an unlabelled image; all others are issues of given labels
AMBIGUOUS = 0.25  # least probability of the label and of another one, which may both be right
RARE = 5  # images of a label, near-duplicates apart; fewer hardly show what the label looks like
# Two classes are confused where such a share of the images of each shows the other, and so many images of both do.
CONFUSED_SHARE, CONFUSED_IMAGES = 0.05, 3.0


def is_outlier(errors: LabelErrors) -> Mask:
    """(N,) whether an image shows none of the labels with one half or more, and with more than any label."""
    unlike: Mask = (errors.p_no_class >= LIKELY_ERROR) & (errors.p_no_class > errors.probabilities.max(axis=1))
    return unlike


def has_conflicting_duplicate(labels: Labels, groups: Ids) -> Mask:
    """(N,) whether a duplicate, of the same of (N,) groups, has another label."""
    unique, inverse = np.unique(groups, return_inverse=True)
    lowest, highest = np.full(len(unique), np.iinfo(np.int64).max), np.full(len(unique), -1)
    np.minimum.at(lowest, inverse, labels)
    np.maximum.at(highest, inverse, labels)
    differ: Mask = (lowest < highest)[inverse]
    return differ


def has_rare_class(labels: Labels, groups: Ids) -> Mask:
    """(N,) whether a label has fewer than `RARE` images, duplicates, of the same of (N,) groups, counted once."""
    rare: Mask = (count_groups(labels, groups) < RARE)[labels]
    return rare


def count_groups(labels: Labels, groups: Ids) -> Ids:
    """(C,) number of images of each label, duplicates, of the same of (N,) groups, counted once."""
    return np.bincount(np.unique(np.stack([labels, groups]), axis=1)[0])


class IssueKinds:
    """Kinds of the issues among N labels; (N,) masks say where a rule holds, `split` where a label should be split."""

    def __init__(
        self, errors: LabelErrors, labels: Labels, groups: Ids, *, count: int, split: Mask | None = None
    ) -> None:
        self._errors, self._labels = errors, labels
        self.confused_classes = find_confused_classes(errors.pairs, labels, count=count)
        self.outliers, self.rare_class = is_outlier(errors), has_rare_class(labels, groups)
        self.conflicting_duplicates = has_conflicting_duplicate(labels, groups)
        self._split = np.zeros(len(labels), dtype=bool) if split is None else split
        self._confused = {pair for one, two, _ in self.confused_classes for pair in ((one, two), (two, one))}

    def kind_of(self, row: int) -> IssueKind:
        """The kind of the issue of a row: the first that fits."""
        label, right = int(self._labels[row]), 1 - float(self._errors.p_error[row])
        other, probability = next(iter(self._errors.others(row, label=label)), (label, 0.0))
        if self.conflicting_duplicates[row]:
            return COPIES  # a near-duplicate has another label; at least one of the two is wrong
        if self.outliers[row]:
            return "outlier"  # the image more probably shows none of the labels than another one
        if self._split[row] and self._errors.p_error[row] < LIKELY_ERROR:
            return "split_class"  # the label is probably right, and should be split
        if self.rare_class[row]:
            return "rare_class"  # fewer than `RARE` images have the label
        if (label, other) in self._confused:
            return "confused_classes"  # the label and the most probable other one are used for each other
        return "ambiguous" if min(right, probability) >= AMBIGUOUS else "wrong_label"


def find_confused_classes(
    pairs: tuple[tuple[int, int, float], ...], labels: Labels, *, count: int
) -> list[tuple[int, int, float]]:
    """(label, label, images) of labels used for each other, both ways, the most images first."""
    images = np.bincount(labels, minlength=count)
    amounts = {(given, shown): amount for given, shown, amount in pairs}
    found = []
    for (one, two), amount in amounts.items():
        back = amounts.get((two, one), 0.0)
        both_ways = min(amount / images[one], back / images[two] if images[two] else 0.0)
        if one < two and both_ways >= CONFUSED_SHARE and amount + back >= CONFUSED_IMAGES:
            found.append((one, two, amount + back))
    return sorted(found, key=lambda pair: -pair[2])
