"""How likely each label is wrong, judged by all rows but its own and its copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from index.embedder import Vectors
from index.exact import NO_ID, Floats, Ids
from index.metrics import Labels
from index.progress import Progress, no_progress
from retrieval_app.insights.leave_one_out import LeaveOneOut

SUGGESTIONS = 3
_FIRST_RATE = 0.3  # of wrong labels, where the estimate begins
_ROUNDS = 3  # more bring it down where few labels are wrong, and no nearer where many are
_LEAST_CHANCE = 1e-4

Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is thought of N labels.

    Attributes:
        wrong: (N,) float64 chance that the label is wrong; 0 where it was not judged.
        judged: (N,) bool: not a label that only copies have too, nor any where all are the same.
        suggested: (N, s) int64 likeliest other labels, best first, `NO_ID` where there are fewer.
        confidences: (N, s) float32 of these.
    """

    wrong: Doubles
    judged: npt.NDArray[np.bool_]
    suggested: Ids
    confidences: Floats


def judge_labels(
    vectors: Vectors, labels: Labels, *, count: int, groups: Ids, progress: Progress = no_progress
) -> Judgement:
    """Judge the labels of all rows.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64 in 0..count-1, each of which some row has.
        count: C.
        groups: (N,) int64; rows of one group are copies and never speak for each other.
        progress: told (done, total) as `LeaveOneOut` tells it.
    """
    judged = _can_be_judged(labels, groups, count=count)
    wrong, own = np.zeros(len(labels)), np.zeros(len(labels))
    suggested = np.full((len(labels), SUGGESTIONS), NO_ID, dtype=np.int64)
    confidences = np.zeros((len(labels), SUGGESTIONS), dtype=np.float32)
    if judged.any():
        shown = min(SUGGESTIONS, count - 1)
        judge = LeaveOneOut(vectors, labels, count=count, together=_sets(groups), progress=progress)
        for rows, shares in judge.blocks():
            place = np.arange(len(rows))
            own[rows] = shares[place, labels[rows]]
            shares[place, labels[rows]] = -1
            best = np.argsort(-shares, axis=1, kind="stable")[:, :shown]
            suggested[rows, :shown] = best
            confidences[rows, :shown] = np.take_along_axis(shares, best, axis=1)
        wrong[judged] = estimate_wrong(own[judged], count=count)
    return Judgement(wrong, judged, suggested, confidences)


def estimate_wrong(own: Doubles, *, count: int) -> Doubles:
    """The chance that each label is wrong, from (N,) confidences in it, by expectation maximisation.

    A confidence p is the chance that an image is labelled so, mistakes included. With a share e of mistakes, spread
    evenly over the C - 1 other labels, and s the chance that the image shows its label,

        p = s (1 - e) + (1 - s) e / (C - 1),     right = s (1 - e) / p,     e = 1 - mean of right

    It takes no memory for pairs of labels, and never rises with the confidence. On the photos of `doubts` it says 0.18
    where 0.20 of the labels were replaced evenly, 0.15 where they were mixed up, 0.06 for 0.05, and 0.04 for the labels
    as they are. `training.suspicion`, with a rate for every pair of labels, says 0.20, 0.22, 0.10 and 0.09.

    Args:
        own: (N,) float64 in 0..1, N at least 1.
        count: C, at least 2.
    """
    share, right = _FIRST_RATE, own
    for _ in range(_ROUNDS):
        each = share / (count - 1)
        shows = ((own - each) / max(1 - share - each, _LEAST_CHANCE)).clip(_LEAST_CHANCE, 1)
        right = shows * (1 - share) / (shows * (1 - share) + (1 - shows) * each)
        share = min(1 - float(right.mean()), 0.9 * (count - 1) / count)
    return 1 - right


def _can_be_judged(labels: Labels, groups: Ids, *, count: int) -> npt.NDArray[np.bool_]:
    """Rows whose label a row of another group has too; none where there is but one label."""
    with_group = np.unique(np.stack([labels, groups]), axis=1)[0]
    judged: npt.NDArray[np.bool_] = np.bincount(with_group, minlength=count)[labels] > 1
    return judged & (count > 1)


def _sets(groups: Ids) -> list[Ids]:
    """The rows of every group of two or more, rising."""
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    return [part for part in parts if len(part) > 1]
