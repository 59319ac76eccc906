"""Kinds of label issues, by one rule each, and verdicts: keep the label, change it or drop the image."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Labels, rows_by_value
from index.labels.decisions import CHANGE, DROP, KEEP
from index.labels.suspicion import Judgement

SUSPECT = 0.5  # least probability of a label error for a verdict other than `keep`
Mask = npt.NDArray[np.bool_]

Kind: TypeAlias = Literal[
    "wrong_label", "ambiguous", "confused_classes", "rare_class", "outlier", "conflicting_duplicates"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
# An image that shows none of the classes has no clear favourite. Among photos of clothes, four fifths of images of
# animals and things had a highest confidence below half of the median, one in ten of the photos themselves.
CLEAR = 0.5
AMBIGUOUS = 0.25  # chance of the label and of another one, each of which may then be right
RARE = 5  # images of a label, copies apart; of fewer it can hardly be said what the label looks like
# Two labels are mixed up where of the images of each so many show the other, and of both together so many images do.
CONFUSED_SHARE, CONFUSED_IMAGES = 0.05, 3.0


def give_verdicts(
    judgement: Judgement, labels: Labels, *, groups: Ids, rare: Mask, settled: Mask | None = None
) -> tuple[list[str], Ids]:
    """A verdict for every label.

    Near-duplicates with different labels come first: the most confident label stays (`keep`), the images with another
    label are left out (`drop`), unless it has too few images to lose one unseen. For all others:

    - `keep`: the label is more likely right than wrong, or has too few images to be taken from one unseen.
    - `drop`: the label is likely wrong, and the image is unlike the others.
    - `change`: the label is likely wrong, and some class is clear; to the likeliest one but the label.

    Args:
        judgement: of the N labels.
        labels: (N,) int64.
        groups: (N,) int64; near-duplicates have the same number.
        rare: (N,) whether the label has few images, as `index.labels.kinds.has_rare_class` tells.
        settled: (N,) whether a person has decided the label, which therefore stays; None where nobody has.

    Returns:
        N verdicts, and (N,) int64 new labels, `NO_ID` but for `change`.
    """
    decided = np.zeros(len(labels), dtype=bool) if settled is None else settled
    stays, loses = compare_duplicates(
        labels.tolist(), groups, confidences=judgement.own, decided=decided, rare=rare
    )
    verdicts = np.select(
        [loses, stays | decided | (judgement.p_error < SUSPECT) | rare, is_outlier(judgement)],
        [DROP, KEEP, DROP],
        default=CHANGE,
    )
    best = judgement.best
    others = np.where(best[:, 0] == labels, best[:, 1], best[:, 0])
    return verdicts.tolist(), np.where(verdicts == CHANGE, others, NO_ID).astype(np.int64)


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
        rare: (N,) whether the label has few images, as `index.labels.kinds.has_rare_class` tells.

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


def is_outlier(judgement: Judgement) -> npt.NDArray[np.bool_]:
    """(N,) whether an image is unlike the others: its highest confidence is below `CLEAR` times the median of all."""
    unlike: npt.NDArray[np.bool_] = judgement.highest < CLEAR * np.median(judgement.highest)
    return unlike


def has_conflicting_duplicate(labels: Labels, groups: Ids) -> npt.NDArray[np.bool_]:
    """(N,) whether a duplicate, of the same of (N,) groups, has another label."""
    places, inverse = np.unique(groups, return_inverse=True)
    lowest, highest = np.full(len(places), np.iinfo(np.int64).max), np.full(len(places), -1)
    np.minimum.at(lowest, inverse, labels)
    np.maximum.at(highest, inverse, labels)
    differ: npt.NDArray[np.bool_] = (lowest < highest)[inverse]
    return differ


def has_rare_class(labels: Labels, groups: Ids) -> npt.NDArray[np.bool_]:
    """(N,) whether a label has fewer than `RARE` images, duplicates, of the same of (N,) groups, counted once."""
    labels_of_groups = np.unique(np.stack([labels, groups]), axis=1)[0]
    rare: npt.NDArray[np.bool_] = (np.bincount(labels_of_groups) < RARE)[labels]
    return rare


class KindTeller:
    """Tells the kind of trouble of labels that were judged.

    Attributes:
        confused_classes: (label, label, images) that are given in each other's place, the most images first.
        unlike, rare, copies: (N,) as `is_outlier`, `has_rare_class` and `has_conflicting_duplicate` have them.
    """

    def __init__(self, judgement: Judgement, labels: Labels, groups: Ids, *, count: int) -> None:
        self._judgement, self._labels = judgement, labels
        self.confused_classes = find_confused_classes(judgement.pairs, labels, count=count)
        self.outliers, self.rare_class = is_outlier(judgement), has_rare_class(labels, groups)
        self.conflicting_duplicates = has_conflicting_duplicate(labels, groups)
        self._confused = {pair for one, two, _ in self.confused_classes for pair in ((one, two), (two, one))}

    def tell(self, row: int) -> Kind:
        """The kind of the issue of a row; the first that fits.

        - `copies`: a duplicate of the image has another label; at least one of the two is wrong.
        - `unlike`: the image is unlike the others, so that no label is clear: it may show none of them.
        - `rare`: its label has so few images that it is hardly known what the label looks like: look before it is lost.
        - `mixed`: its label and the likeliest other one are given in each other's place all over: are they one?
        - `several`: its label and another one are both likely: both may fit.
        - `wrong`: another label fits better.
        """
        label, right = int(self._labels[row]), 1 - float(self._judgement.p_error[row])
        other, chance = next(iter(self._judgement.others(row, label=label)), (label, 0.0))
        if self.conflicting_duplicates[row]:
            return "conflicting_duplicates"
        if self.outliers[row]:
            return "outlier"
        if self.rare_class[row]:
            return "rare_class"
        if (label, other) in self._confused:
            return "confused_classes"
        return "ambiguous" if min(right, chance) >= AMBIGUOUS else "wrong_label"


def find_confused_classes(
    pairs: tuple[tuple[int, int, float], ...], labels: Labels, *, count: int
) -> list[tuple[int, int, float]]:
    """(label, label, images) that are given in each other's place, both ways, the most images first.

    Args:
        pairs: of `Judgement`: (label, label shown, images).
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
