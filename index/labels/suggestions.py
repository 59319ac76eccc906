"""Suggested labels: the probability that a suggestion is right, by simulated images of other and of unseen classes.

An image with a wrong label shows another class, or none. Both are simulated, as in `simulated_noise`: an image whose
label is exchanged shows another class; one that is predicted without any image of its own label shows none. How
confident the suggestions of the wrong labels are says how many of them are of either kind.
"""

from dataclasses import replace

import numpy as np

from index.arrays import Doubles, Floats, Ids, Labels
from index.labels.simulated_noise import SIMULATED, ErrorCalibration, Top, choose_top, draw_labels, score_labels

_BINS = 24  # number of bins of suggestions by confidence, with equally many simulated labels
_NONE_SHARES = np.linspace(0, 1, 101)
_PRIOR = 2.0  # the prior of the share of wrong labels whose image shows no class is (1 - share)^2
_EPSILON = 1e-9


def suggest_labels(confidences: Floats, labels: Labels, top: Top | None = None) -> tuple[Labels, Floats]:
    """(B, k) most confident other labels than the (B, k) given, and that confidence among all others, 0..1.

    `top` is what `choose_top` gives of the two highest confidences; None computes it.
    """
    rows = np.arange(len(labels))[:, None]
    first, second = np.split((top or choose_top(confidences, count=2))[0], 2, axis=1)
    suggested = np.where(first == labels, second, first)
    left = 1 - confidences[rows, labels]
    return suggested, (confidences[rows, suggested] / np.maximum(left, _EPSILON)).clip(max=1)


class SuggestionScores:
    """Suggestions, the most confident others, of N labels and of `each` simulated wrong ones, block by block."""

    def __init__(self, labels: Labels, *, count: int, each: int) -> None:
        drawn = draw_labels(labels, each=each)
        self.labels, self.simulates, self._count = labels, each > 0, count
        self._wrong = np.where(drawn == labels[:, None], (drawn + 1) % count, drawn)
        self.suggested, self.confidences = np.empty(len(labels), dtype=np.int64), np.empty(len(labels), np.float32)
        self._shown, self._unseen, self._scores, self._unseen_scores = np.full((4, *drawn.shape), np.nan)
        self._is_found = np.zeros(drawn.shape, dtype=bool)

    def add(self, rows: Ids, confidences: Floats, unseen: Floats, is_unseen: Ids) -> None:
        """Suggestions of (B,) rows by (B, C) confidences; `unseen` (b, C), at `is_unseen`, know no row of the label."""
        labels, wrong, top = self.labels[rows], self._wrong[rows], choose_top(confidences, count=2)
        suggested, sure = suggest_labels(confidences, labels[:, None], top)
        self.suggested[rows], self.confidences[rows] = suggested[:, 0], sure[:, 0]
        if not wrong.shape[1]:
            return
        suggested, self._shown[rows] = suggest_labels(confidences, wrong, top)
        self._is_found[rows] = suggested == labels[:, None]
        self._scores[rows] = score_labels(confidences, wrong, top)
        if len(is_unseen):
            positions, top = rows[is_unseen], choose_top(unseen, count=2)
            self._unseen[positions] = suggest_labels(unseen, wrong[is_unseen], top)[1]
            self._unseen_scores[positions] = score_labels(unseen, wrong[is_unseen], top)

    def calibrate(self, first: ErrorCalibration, p_error: Doubles, *, found: ErrorCalibration) -> ErrorCalibration:
        """`found` with the probabilities of suggestions, given (N,) p_error and the calibration of the `first` pass.

        With a, h the densities over the confidence t of suggestions of simulated labels of images that show another
        class and none, and w the probability that such a label is called wrong, the wrong labels found so are

            sum_i p_i^2 [t_i = t]  in proportion to  (1 - s) a(t) w_a(t) + s h(t) w_h(t)

        (p_i^2, as p_i (1 - p_i) is expected of right labels). The share s is the mean of its posterior; of two classes
        it cannot be estimated and is 0.
        """
        from scipy.optimize import isotonic_regression  # takes long to load, and is not of the base

        right, each = 1 - p_error, self._wrong.shape[1]
        is_unseen = ~np.isnan(self._unseen[:, 0])
        shown, unseen = self._shown.ravel(), self._unseen[is_unseen].ravel()
        edges = np.unique(np.quantile(np.concatenate([shown, unseen]), np.linspace(0, 1, _BINS + 1)[1:-1]))
        bins = len(edges) + 1

        def amounts(values: Floats | Doubles, weights: Doubles) -> Doubles:
            return np.bincount(np.searchsorted(edges, values), weights=weights, minlength=bins).astype(np.float64)

        of_shown, of_unseen = np.repeat(right, each), np.repeat(right[is_unseen], each)
        of_shown, of_unseen = of_shown / max(of_shown.sum(), _EPSILON), of_unseen / max(of_unseen.sum(), _EPSILON)
        called, called_unseen = first.read(self._scores.ravel()), first.read(self._unseen_scores[is_unseen].ravel())
        seen = amounts(self.confidences, p_error**2)
        wrong = amounts(shown, of_shown * called) + _EPSILON
        none = amounts(unseen, of_unseen * called_unseen) + _EPSILON
        mixed = (1 - _NONE_SHARES[:, None]) * wrong + _NONE_SHARES[:, None] * none
        likely = np.log(mixed / mixed.sum(axis=1, keepdims=True)) @ seen
        likely += _PRIOR * np.log(np.maximum(1 - _NONE_SHARES, _EPSILON))
        posterior = np.exp(likely - likely.max())
        share = 0.0 if self._count < 3 else float(posterior @ _NONE_SHARES / posterior.sum())

        all_shown, all_unseen = amounts(shown, of_shown), amounts(unseen, of_unseen)
        total = np.maximum((1 - share) * all_shown + share * all_unseen, _EPSILON)
        of_right = (1 - share) * amounts(shown, of_shown * self._is_found.ravel()) / total
        middle = (amounts(shown, shown) + amounts(unseen, unseen)) / np.maximum(
            amounts(shown, np.ones(len(shown))) + amounts(unseen, np.ones(len(unseen))), 1
        )
        return replace(
            found,
            suggested=np.maximum.accumulate(middle),
            p_right=isotonic_regression(of_right, weights=total).x,
            p_none=isotonic_regression(share * all_unseen / total, weights=total, increasing=False).x,
            none_share=share,
        )


class LookAlikes:
    """Scores of simulated errors between look-alike labels: an image gets what another of its label looks like."""

    def __init__(self, suggestions: SuggestionScores) -> None:
        labels, each = suggestions.labels, SIMULATED if suggestions.simulates else 0
        order = np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
        starts = np.searchsorted(labels[order], labels[order])
        sizes = np.searchsorted(labels[order], labels[order], side="right") - starts
        self._alike = np.empty((len(labels), each), dtype=np.int64)
        for step in range(each):
            position = starts + (np.arange(len(labels)) - starts + step + 1) % sizes
            self._alike[order, step] = suggestions.suggested[order[position]]
        self._is_other = self._alike != labels[:, None]
        self._scores = np.zeros(self._alike.shape)

    def add(self, rows: Ids, confidences: Floats) -> None:
        """Score the labels of (B,) rows, of which these are the (B, C) float32 confidences."""
        if self._alike.shape[1]:
            self._scores[rows] = score_labels(confidences, self._alike[rows])

    def find(self, calibration: ErrorCalibration) -> float:
        """Share of the simulated look-alike errors that would be found."""
        weights = self._is_other * (1 - calibration.p_error)[:, None]
        called = calibration.read(self._scores) >= 0.5
        return float((weights * called).sum() / max(weights.sum(), np.finfo(np.float64).tiny))
