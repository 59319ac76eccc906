"""The judge of labels: two classifiers look twice, then how likely each label is wrong, and what the images show.

A regression, which learns what lies near, finds more where look-alikes are mixed up; Gaussian classes, which tell how
far off a label is, where any labels are. Together they find nearly as much as the better one, or more. The second time
rows count by how far the first look believed their labels. The constants were chosen on parts of five datasets that
`benchmarks.labels.chances` does not report on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Labels
from index.labels.gaussian_classes import GaussianClasses
from index.labels.leave_one_out import Doubles, LeaveOneOut
from index.labels.suspicion import (
    SHOWN,
    Chances,
    Suspicion,
    doubt_labels,
    judge_by_planted,
    planted_each,
    score_labels,
    suspect_evenly,
    suspect_labels,
)
from index.progress import Progress, no_progress

RIDGES = (0.1, 0.3, 1.0, 3.0)
# Labels of n rows count n^0.5 in both looks: at 1 right labels of rare ones look like mistakes, at 0 frequent ones that
# overlap with rare ones do.
BALANCE = 0.5
MOST_VALUES = 1 << 26  # confidences in memory: 256 MB
MOST_LABELS = 2048  # of which every pair is looked at
_LEAST = 0.05  # weight of a row that is not believed at all


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is thought of N labels.

    Attributes:
        suspicion: how likely each is wrong, what the images show, and which stand in place of which.
        own: (N,) float32 confidence in the label, from all rows but this one and those left out with it.
        highest: (N,) float32 highest confidence in any label.
    """

    suspicion: Suspicion
    own: Floats
    highest: Floats

    @property
    def wrong(self) -> Doubles:
        """(N,) float64 chance that each label is wrong."""
        return self.suspicion.wrong

    @property
    def chances(self) -> Chances:
        """What the scores of the labels mean."""
        return Chances(self.suspicion.scores, self.suspicion.wrong)

    def others(self, row: int, *, label: int) -> list[tuple[int, float]]:
        """(label, chance that it is what is shown) of the likeliest labels but a row's own, best first, three at most.

        Those without any chance are left out.
        """
        found = self.suspicion
        pairs = zip(found.best[row].tolist(), found.chances[row].tolist(), strict=True)
        return [(other, chance) for other, chance in pairs if other not in (NO_ID, label) and chance > 0][
            : SHOWN - 1
        ]


@dataclass(frozen=True, slots=True)
class Settled:
    """What people have decided, from which the judge learns.

    Attributes:
        rows: (N,) whether the label is what somebody decided: it is believed.
        before: what scores meant before anybody had decided.
    """

    rows: npt.NDArray[np.bool_]
    before: Chances


def judge_labels(
    features: Floats,
    labels: Labels,
    *,
    count: int,
    groups: Ids | None = None,
    settled: Settled | None = None,
    most_values: int = MOST_VALUES,
    most_labels: int = MOST_LABELS,
    progress: Progress = no_progress,
) -> Judgement:
    """Judge the labels of all rows.

    Where N x C confidences are more than `most_values`, or labels more than `most_labels`, none are held together, and
    mistakes are taken to give any label as often as it is there, instead of looked at pair by pair.

    Args:
        features: (N, D) float32.
        labels: (N,) int64 in 0..count-1.
        count: C, at least 2.
        groups: (N,) int64; rows of one group are duplicates and never speak for each other.
        settled: which labels somebody has decided; None has none.
        most_values: confidences in memory.
        most_labels: of which every pair is looked at, which takes C x C numbers.
    """
    fits = len(labels) * count <= most_values and count <= most_labels
    steps = _Steps(progress, 2 * len(labels))
    if fits:
        looks = _Looks(features, labels, count=count, groups=groups, settled=settled, steps=steps)
        kept = _look_twice(looks, labels, count=count)
        own = kept[np.arange(len(labels)), labels]
        return Judgement(suspect_labels(kept, labels, before=looks.before), own, kept.max(axis=1))
    return _judge_by_blocks(features, labels, count=count, groups=groups, settled=settled, steps=steps)


def judge_twice(features: Floats, labels: Labels, *, count: int, groups: Ids | None = None) -> Floats:
    """(N, C) float32 confidences, rows sum to 1: what two classifiers say at their second look.

    In the first, rows of label y count n_y^`BALANCE` together, each as any other; in the second each row in proportion
    to the chance that its label is right, as the first sees it. A row does not judge itself, but the weights of others
    were found with it, so the second look is of others up to that.

    Arguments as those of `judge_labels`.
    """
    steps = _Steps(no_progress, 1)
    looks = _Looks(features, labels, count=count, groups=groups, settled=None, steps=steps)
    return _look_twice(looks, labels, count=count)


class _Steps:
    """Progress of a known amount of work, told in parts."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def tell(self, done: int) -> None:
        self._done = min(self._done + done, self._total)
        self._progress(self._done, self._total)


class _Looks:
    """What the two classifiers see, at a first look and at a second one."""

    def __init__(
        self,
        features: Floats,
        labels: Labels,
        *,
        count: int,
        groups: Ids | None,
        settled: Settled | None,
        steps: _Steps,
    ) -> None:
        def regress(weights: Doubles, ridges: tuple[float, ...]) -> LeaveOneOut:
            return LeaveOneOut(
                features, labels, count=count, groups=groups, weights=weights, ridges=ridges, tell=steps.tell
            )

        self._labels, self._count, self._regress, self._settled = labels, count, regress, settled
        self._images = np.bincount(labels, minlength=count).astype(np.float64)
        self._regressions = [regress(self._images[labels] ** (BALANCE - 1), RIDGES)]
        self._classes = GaussianClasses(
            features, labels, count=count, prior=BALANCE, groups=groups, tell=steps.tell
        )

    @property
    def before(self) -> Chances | None:
        return None if self._settled is None else self._settled.before

    def blocks(self) -> Iterator[tuple[Ids, Floats]]:
        """(rows, (B, C) float32 confidences) of all rows: of the regressions of all looks, and of the last classes."""
        for rows, by_classes in self._classes.blocks():
            regressed = sum(one.confidences(rows) for one in self._regressions) / np.float32(
                len(self._regressions)
            )
            yield rows, join_confidences(np.asarray(regressed), by_classes)

    def look_again(self, wrong: Doubles) -> None:
        """From now on rows count by (N,) chances that their labels are wrong, too, unless they are settled."""
        if self._settled is not None:
            wrong = np.where(self._settled.rows, 0.0, wrong)
        believed = (1 - wrong).clip(min=_LEAST)
        sums = np.bincount(self._labels, weights=believed, minlength=self._count)
        weights = believed * (self._images**BALANCE / np.maximum(sums, _LEAST))[self._labels]
        self._regressions.append(self._regress(weights, (self._regressions[0].ridge,)))
        self._classes.weigh(believed)


def join_confidences(one: Floats, other: Floats) -> Floats:
    """(B, C) of two classifiers to (B, C): the square of the mean of their roots, made to sum to 1.

    A label that either believes is hardly doubted, as with their mean; that both say so still counts, as with their
    product.
    """
    both = np.square(np.sqrt(one) + np.sqrt(other))
    joined: Floats = both / both.sum(axis=1, keepdims=True)
    return joined


def _look_twice(looks: _Looks, labels: Labels, *, count: int) -> Floats:
    """(N, C) of all rows."""
    seen = np.empty((len(labels), count), dtype=np.float32)
    for rows, shares in looks.blocks():
        seen[rows] = shares
    looks.look_again(doubt_labels(seen, labels, before=looks.before)[0].wrong)
    for rows, shares in looks.blocks():
        seen[rows] = shares
    return seen


def _judge_by_blocks(
    features: Floats, labels: Labels, *, count: int, groups: Ids | None, settled: Settled | None, steps: _Steps
) -> Judgement:
    """As `judge_labels`, with confidences that are computed again instead of held."""
    looks = _Looks(features, labels, count=count, groups=groups, settled=settled, steps=steps)
    drawn = np.random.default_rng(0).integers(len(labels), size=(len(labels), planted_each(len(labels))))
    planted = labels[drawn]
    planted[planted == labels[:, None]] += 1  # the next label, where its own was drawn
    planted %= count
    given, wrongly = np.empty(len(labels)), np.empty(planted.shape)

    own, highest = np.zeros((2, len(labels)), dtype=np.float32)

    def score(rows: Ids, shares: Floats) -> None:
        given[rows] = score_labels(shares, labels[rows, None])[:, 0]
        wrongly[rows] = score_labels(shares, planted[rows])
        own[rows], highest[rows] = shares[np.arange(len(rows)), labels[rows]], shares.max(axis=1)

    def find_chances() -> Chances:
        if looks.before is not None:
            return Chances(given, looks.before.of(given))
        return Chances(given, judge_by_planted(given, wrongly, missed=float((own < highest).mean())))

    for rows, shares in looks.blocks():
        score(rows, shares)
    looks.look_again(find_chances().wrong)
    best = np.full((len(labels), SHOWN), NO_ID, dtype=np.int64)
    confidences = np.zeros((len(labels), SHOWN), dtype=np.float32)
    for rows, shares in looks.blocks():
        score(rows, shares)
        order = np.argsort(-shares, axis=1, kind="stable")[:, :SHOWN]
        best[rows, : order.shape[1]] = order
        confidences[rows, : order.shape[1]] = np.take_along_axis(shares, order, axis=1)
    found = suspect_evenly(find_chances(), labels, own=own, best=best, confidences=confidences, count=count)
    return Judgement(found, own, highest)
