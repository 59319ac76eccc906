"""The judge of labels: leave-one-out twice, then how likely each label is wrong, and what the images seem to show.

The second time rows count by how far the first believed their labels. The constants were chosen on the three datasets
of `benchmarks.labels.audit`, under one seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from index.arrays import NO_ID, Floats, Ids, Labels
from index.labels.leave_one_out import Doubles, LeaveOneOut, own_against_others
from index.labels.suspicion import Suspicion, suspect_evenly, suspect_labels
from index.progress import Progress, no_progress

RIDGE = 1.0
# Labels of n rows count n^0.5 in both looks: at 1 right labels of rare ones look like mistakes, at 0 frequent ones that
# overlap with rare ones do.
BALANCE = 0.5
CALIBRATION = 0.5  # how far labels are brought to their share of the rows: 0 not at all, 1 fully
SHOWN = 4  # likeliest labels of a row that are kept: its own and three others
MOST_VALUES = 1 << 26  # confidences in memory: 256 MB
MOST_LABELS = 2048  # of which every pair is looked at
_LEAST = 0.05  # weight of a row that is not believed at all


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is thought of N labels.

    Attributes:
        suspicion: how likely each is wrong, and which stand in place of which.
        own: (N,) float32 confidence in the label, from all rows but this one and those left out with it.
        best: (N, 4) int64 likeliest labels, its own among them or not, best first; `NO_ID` where there are fewer.
        confidences: (N, 4) float32 in these.
    """

    suspicion: Suspicion
    own: Floats
    best: Ids
    confidences: Floats

    @property
    def wrong(self) -> Doubles:
        """(N,) float64 chance that each label is wrong."""
        return self.suspicion.wrong

    def others(self, row: int, *, label: int) -> list[tuple[int, float]]:
        """(label, confidence) of the likeliest labels of a row but its own, best first, three at most."""
        pairs = zip(self.best[row].tolist(), self.confidences[row].tolist(), strict=True)
        return [(other, share) for other, share in pairs if other not in (NO_ID, label)][: SHOWN - 1]


def judge_labels(
    features: Floats,
    labels: Labels,
    *,
    count: int,
    groups: Ids | None = None,
    most_values: int = MOST_VALUES,
    most_labels: int = MOST_LABELS,
    progress: Progress = no_progress,
) -> Judgement:
    """Judge the labels of all rows.

    Where N x C confidences are more than `most_values`, or labels more than `most_labels`, none are held together, and
    mistakes are taken to be spread evenly over labels instead of looked at pair by pair.

    Args:
        features: (N, D) float32.
        labels: (N,) int64 in 0..count-1.
        count: C, at least 2.
        groups: (N,) int64; rows of one group are duplicates and never speak for each other.
        most_values: confidences in memory.
        most_labels: of which every pair is looked at, which takes C x C numbers.
    """
    fits = len(labels) * count <= most_values and count <= most_labels
    looks = _TwoLooks(
        features, labels, count=count, groups=groups, progress=_Steps(progress, (2 if fits else 4) * len(labels))
    )
    own = np.zeros(len(labels), dtype=np.float32)
    best = np.full((len(labels), SHOWN), NO_ID, dtype=np.int64)
    confidences = np.zeros((len(labels), SHOWN), dtype=np.float32)
    kept = looks.collect() if fits else None
    for rows, shares in looks.blocks() if kept is None else _slices(kept):
        own[rows] = shares[np.arange(len(rows)), labels[rows]]
        order = np.argsort(-shares, axis=1, kind="stable")[:, :SHOWN]
        best[rows, : order.shape[1]] = order
        confidences[rows, : order.shape[1]] = np.take_along_axis(shares, order, axis=1)
    if kept is None:
        return Judgement(suspect_evenly(own, labels, best=best, count=count), own, best, confidences)
    return Judgement(suspect_labels(kept, labels), own, best, confidences)


def judge_twice(features: Floats, labels: Labels, *, count: int, groups: Ids | None = None) -> Floats:
    """(N, C) float32 confidences, rows sum to 1: the mean of two leave-one-out regressions, calibrated by label.

    With p_i the first one's confidences and y_i the given label, row i counts in the second with

        w_i = p_i(y_i) / (p_i(y_i) + max of p_i(c) over c other than y_i)

    and in the first as any other of its label; in both, rows of label y count n_y^`BALANCE` together.

    In the mean of both, p(c) is multiplied by (share of label c / mean of p(c))^`CALIBRATION`: least squares gives
    labels that are hard to see too little. A row still does not judge itself, but the weights of others were found
    with it, so the second look is leave-one-out up to that.

    Arguments as those of `judge_labels`.
    """
    return _TwoLooks(features, labels, count=count, groups=groups, progress=_Steps(no_progress, 1)).collect()


class _Steps:
    """Progress of a known amount of work, told in parts."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def tell(self, done: int) -> None:
        self._done = min(self._done + done, self._total)
        self._progress(self._done, self._total)


class _TwoLooks:
    def __init__(
        self, features: Floats, labels: Labels, *, count: int, groups: Ids | None, progress: _Steps
    ) -> None:
        def look(weights: Doubles) -> LeaveOneOut:
            return LeaveOneOut(
                features, labels, count=count, groups=groups, weights=weights, ridges=(RIDGE,), tell=progress.tell
            )

        self._labels, self._count = labels, count
        self._images = np.bincount(labels, minlength=count).astype(np.float64)
        self._look, self._first = look, look(self._images[labels] ** (BALANCE - 1))

    def collect(self) -> Floats:
        """(N, C) of all rows."""
        both = np.empty((len(self._labels), self._count), dtype=np.float32)
        believed = np.empty(len(self._labels))
        for rows, shares in self._first.blocks():
            both[rows], believed[rows] = shares, self._believe(rows, shares)
        for rows, shares in self._look(self._weigh(believed)).blocks():
            both[rows] = (both[rows] + shares) / 2
        factors = self._calibration(both.mean(axis=0, dtype=np.float64))
        for _, part in _slices(both):
            part *= factors
            part /= part.sum(axis=1, keepdims=True)
        return both

    def blocks(self) -> Iterator[tuple[Ids, Floats]]:
        """(rows, (B, C)) of all rows, a block at a time; they are computed again instead of held."""
        believed = np.empty(len(self._labels))
        for rows, shares in self._first.blocks():
            believed[rows] = self._believe(rows, shares)
        second = self._look(self._weigh(believed))
        sums = np.zeros(self._count)
        for rows, shares in self._first.blocks():
            sums += (shares + second.confidences(rows)).sum(axis=0, dtype=np.float64)
        factors = self._calibration(sums / 2 / len(self._labels))
        for rows, shares in self._first.blocks():
            both = (shares + second.confidences(rows)) * factors
            yield rows, both / both.sum(axis=1, keepdims=True)

    def _believe(self, rows: Ids, shares: Floats) -> Floats:
        return own_against_others(shares, self._labels[rows]).clip(min=_LEAST)

    def _weigh(self, believed: Doubles) -> Doubles:
        sums = np.bincount(self._labels, weights=believed, minlength=self._count)
        weights: Doubles = believed * (self._images**BALANCE / np.maximum(sums, _LEAST))[self._labels]
        return weights

    def _calibration(self, mean: Doubles) -> Floats:
        """(C,) what the confidences in each label are multiplied by."""
        share = self._images / len(self._labels)
        factors: Floats = ((share / np.maximum(mean, np.finfo(np.float32).tiny)) ** CALIBRATION).astype(np.float32)
        return factors


def _slices(values: Floats, *, size: int = 4096) -> Iterator[tuple[Ids, Floats]]:
    for start in range(0, len(values), size):
        part = values[start : start + size]
        yield np.arange(start, start + len(part)), part
