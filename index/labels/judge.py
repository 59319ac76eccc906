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
    Judgement,
    estimate_p_error,
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
    looks = _Looks(features, labels, count=count, groups=groups, settled=settled, progress=progress)
    if len(labels) * count <= most_values and count <= most_labels:
        return suspect_labels(looks.look_twice(), labels, before=looks.before)
    return _judge_by_blocks(looks)


def judge_twice(features: Floats, labels: Labels, *, count: int, groups: Ids | None = None) -> Floats:
    """(N, C) float32 confidences, rows sum to 1: what two classifiers say at their second look.

    In the first, rows of label y count n_y^`BALANCE` together, each as any other; in the second each row in proportion
    to the chance that its label is right, as the first sees it. A row does not judge itself, but the weights of others
    were found with it, so the second look is of others up to that.

    Arguments as those of `judge_labels`.
    """
    return _Looks(features, labels, count=count, groups=groups).look_twice()


class _Looks:
    """What the two classifiers see, at a first look and at a second one.

    Attributes:
        before: what scores meant before anybody had decided; None where nobody has.
    """

    def __init__(
        self,
        features: Floats,
        labels: Labels,
        *,
        count: int,
        groups: Ids | None,
        settled: Settled | None = None,
        progress: Progress = no_progress,
    ) -> None:
        done, total = 0, 2 * len(labels)

        def tell(rows: int) -> None:
            nonlocal done
            done = min(done + rows, total)
            progress(done, total)

        def regress(weights: Doubles, ridges: tuple[float, ...]) -> LeaveOneOut:
            return LeaveOneOut(
                features, labels, count=count, groups=groups, weights=weights, ridges=ridges, tell=tell
            )

        self.labels, self.count, self._regress = labels, count, regress
        self.before = None if settled is None else settled.before
        self._settled = None if settled is None else settled.rows
        self._images = np.bincount(labels, minlength=count).astype(np.float64)
        self._regressions = [regress(self._images[labels] ** (BALANCE - 1), RIDGES)]
        self._classes = GaussianClasses(features, labels, count=count, prior=BALANCE, groups=groups, tell=tell)

    def look_twice(self) -> Floats:
        """(N, C) confidences of all rows at the second look."""
        seen = np.empty((len(self.labels), self.count), dtype=np.float32)
        for rows, shares in self.blocks():
            seen[rows] = shares
        self.look_again(estimate_p_error(seen, self.labels, before=self.before)[0].p_error)
        for rows, shares in self.blocks():
            seen[rows] = shares
        return seen

    def blocks(self) -> Iterator[tuple[Ids, Floats]]:
        """(rows, (B, C) float32 confidences) of all rows: of the regressions of all looks, and of the last classes."""
        for rows, by_classes in self._classes.blocks():
            regressed = sum(one.confidences(rows) for one in self._regressions)
            mean = np.asarray(regressed / np.float32(len(self._regressions)))
            yield rows, join_confidences(mean, by_classes)

    def look_again(self, wrong: Doubles) -> None:
        """From now on rows count by (N,) chances that their labels are wrong, too, unless they are settled."""
        if self._settled is not None:
            wrong = np.where(self._settled, 0.0, wrong)
        believed = (1 - wrong).clip(min=_LEAST)
        sums = np.bincount(self.labels, weights=believed, minlength=self.count)
        weights = believed * (self._images**BALANCE / np.maximum(sums, _LEAST))[self.labels]
        self._regressions.append(self._regress(weights, (self._regressions[0].ridge,)))
        self._classes.weigh(believed)


def join_confidences(one: Floats, other: Floats) -> Floats:
    """(B, C) of two classifiers to (B, C): the square of the mean of their roots, made to sum to 1.

    A label that either favours stays likely, as with their mean; agreement of both counts, as with their product.
    """
    both = np.square(np.sqrt(one) + np.sqrt(other))
    joined: Floats = both / both.sum(axis=1, keepdims=True)
    return joined


def _judge_by_blocks(looks: _Looks) -> Judgement:
    """As `judge_labels`, with confidences that are computed again instead of held."""
    labels, count = looks.labels, looks.count
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
    looks.look_again(find_chances().p_error)
    best = np.full((len(labels), SHOWN), NO_ID, dtype=np.int64)
    confidences = np.zeros((len(labels), SHOWN), dtype=np.float32)
    for rows, shares in looks.blocks():
        score(rows, shares)
        order = np.argsort(-shares, axis=1, kind="stable")[:, :SHOWN]
        best[rows, : order.shape[1]] = order
        confidences[rows, : order.shape[1]] = np.take_along_axis(shares, order, axis=1)
    return suspect_evenly(
        find_chances(), labels, own=own, highest=highest, best=best, confidences=confidences, count=count
    )
