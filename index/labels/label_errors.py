"""Label-error detection: the probability that each label is wrong, and the most probable classes of each image.

Two classifiers predict every label from other images, in two passes. A ridge regression finds more where similar
classes are confused, Gaussian classes where labels are random. In the second pass rows are weighted by the probability
that their label is right, found in the first. The constants were chosen on parts of five datasets that
`benchmarks.labels.chances` does not report on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from index.arrays import NO_ID, Doubles, Floats, Ids, Labels, Mask
from index.labels import gaussian_classes, leave_one_out
from index.labels.gaussian_classes import FOLDS, SHRINKAGES, GaussianClasses
from index.labels.leave_one_out import LeaveOneOut
from index.labels.noise_model import NoiseModel
from index.labels.simulated_noise import (
    ErrorCalibration,
    LabelScores,
    choose_top,
    count_simulated,
    estimate_p_error,
    row_slices,
)
from index.labels.suggestions import LookAlikes, SuggestionScores
from index.progress import Progress, no_progress
from index.threads import map_ahead, multiplying_workers, single_threaded_blas

RIDGES = (0.1, 0.3, 1.0, 3.0)
# Labels of n rows weigh n^0.5 in both passes: at 1 right labels of rare classes look wrong, at 0 frequent ones that
# overlap with rare ones do.
BALANCE = 0.5
MOST_VALUES = 1 << 26  # confidences in memory: 256 MB
MOST_LABELS = 2048  # limit up to which every pair of labels is estimated
CLEAN = 0.01  # estimated share of wrong labels below which look-alike errors are not simulated
MANY_ROWS = 20_000  # products of more rows are shared among threads
MOST_UNSEEN = 1 << 24  # confidences of images whose label is left out: 64 MB
TOP_CLASSES = 4  # classes that are kept for each image: its label and three others
# An outlier shows none of the classes, so that no confidence is high. Among photos of clothes, four fifths of images of
# animals and things had a highest confidence below half of the median, one in ten of the photos themselves.
CLEAR = 0.5
_THREADS = 4  # that predict at most; each holds some 120 MB
_LESS = 1 - 1e-9  # greatest probability of a further class, as a multiple of the suggested label's
_MIN_WEIGHT = 0.05  # weight of a row whose label is certainly wrong


@dataclass(frozen=True, slots=True)
class LabelErrors:
    """Estimated label errors among N labels, and proposed labels of M images without one.

    Where labels are noisy, `p_proposed` is too low: of those at 70 % more than seven in ten are right.
    """

    calibration: ErrorCalibration  # for use after decisions
    p_error: Doubles  # (N,) probability that each label is wrong; at least 1 - p_right where that is known
    suggested: Labels  # (N,) most probable other label
    p_suggested: Doubles  # (N,) probability that it is right
    p_no_class: Doubles  # (N,) probability that the image shows none of the labels
    best: Ids  # (N, 4) most probable classes, the best first, `NO_ID` where there are fewer labels
    probabilities: Doubles  # (N, 4) of these; over all labels and `p_no_class` together 1 at most
    rates: Doubles  # (C,) estimated noise rate of each label
    pairs: tuple[tuple[int, int, float], ...]  # (label, class, images): estimated images of a class with another label
    own: Floats  # (N,) leave-one-out confidence in the label
    # (M, 4) as `best`, with the confidences after both passes
    proposed: Ids = field(default_factory=lambda: _no_classes(0)[0])
    p_proposed: Doubles = field(default_factory=lambda: _no_classes(0)[1])

    @property
    def is_clear(self) -> Mask:
        """(M,) whether the highest confidence of an image without a label is no lower than `CLEAR` of the median."""
        return np.asarray(self.p_proposed[:, 0] >= CLEAR * float(np.median(self.calibration.highest)))

    def others(self, row: int, *, label: int) -> list[tuple[int, float]]:
        """(label, probability) of the most probable other labels of a row, best first, three at most, without zeros."""
        pairs = zip(self.best[row].tolist(), self.probabilities[row].tolist(), strict=True)
        others = [(other, share) for other, share in pairs if other not in (NO_ID, label) and share > 0]
        return others[: TOP_CLASSES - 1]


def find_label_errors(
    features: Floats,
    labels: Labels,
    *,
    count: int,
    groups: Ids | None = None,
    p_right: Doubles | None = None,
    before: ErrorCalibration | None = None,
    unlabelled: Floats | None = None,
    most_values: int = MOST_VALUES,
    most_labels: int = MOST_LABELS,
    progress: Progress = no_progress,
) -> LabelErrors:
    """Find label errors among all rows.

    Where N x C confidences are more than `most_values`, or labels more than `most_labels`, confidences are computed
    again instead of held, and simulated noise draws labels by their frequency instead of by the noise model.

    Args:
        features, labels: (N, D), and (N,) in 0..count-1, of at least 2.
        groups: (N,); rows of one group are near-duplicates, which do not predict each other.
        p_right: (N,) stated probability that the label is right: 1 where a person looked, NaN without a decision.
        before: calibration from before the decisions.
        unlabelled: (M, D) of images without a label, for which labels are proposed.
    """
    with single_threaded_blas() if len(labels) < MANY_ROWS else nullcontext():
        passes = TwoPasses(features, labels, count=count, groups=groups, p_right=p_right, progress=progress)
        errors = passes.find(before, is_held=len(labels) * count <= most_values and count <= most_labels)
        if unlabelled is None or not len(unlabelled):
            return errors
        proposed, p_proposed = passes.propose(unlabelled)
        return replace(errors, proposed=proposed, p_proposed=p_proposed)


def second_pass(
    features: Floats,
    labels: Labels,
    *,
    count: int,
    groups: Ids | None = None,
    p_right: Doubles | None = None,
    progress: Progress = no_progress,
) -> "TwoPasses":
    """Both classifiers after the second pass; `find_label_errors` describes the arguments.

    In the first pass rows of label y weigh n_y^`BALANCE` together; in the second by the probability that each is right.
    """
    passes = TwoPasses(features, labels, count=count, groups=groups, p_right=p_right, progress=progress)
    if len(labels) * count <= MOST_VALUES and count <= MOST_LABELS:
        first, _ = estimate_p_error(passes.hold(passes.blocks()), labels)
    else:
        scores = LabelScores.by_frequency(labels, count=count)
        for rows, confidences in passes.blocks():
            scores.add(rows, confidences)
        first = scores.calibrate()
    passes.reweight(first.p_error)
    return passes


class TwoPasses:
    """Both classifiers: fitted once, and again with weights."""

    def __init__(
        self,
        features: Floats,
        labels: Labels,
        *,
        count: int,
        groups: Ids | None,
        p_right: Doubles | None = None,
        progress: Progress = no_progress,
    ) -> None:
        choosing = leave_one_out.count_choosing(len(labels), count) * (len(RIDGES) + 1)
        of_folds = gaussian_classes.CHOOSING * gaussian_classes.count_choosing(len(labels) // FOLDS, count)
        done, total = 0, 2 * len(labels) + choosing + of_folds * (len(SHRINKAGES) + 1)

        def tell(rows: int) -> None:  # by 0 in other threads
            nonlocal done
            done = min(done + rows, total)
            progress(done, total)

        self.labels, self.count, self._p_right, self._tell = labels, count, p_right, tell
        self._images = np.bincount(labels, minlength=count).astype(np.float64)
        weights = self._images[labels] ** (BALANCE - 1)
        self._regressions = [
            LeaveOneOut(features, labels, count=count, groups=groups, weights=weights, ridges=RIDGES, tell=tell)
        ]
        self._classes = GaussianClasses(features, labels, count=count, prior=BALANCE, groups=groups, tell=tell)

    def find(self, before: ErrorCalibration | None, *, is_held: bool) -> LabelErrors:
        """Label errors, with all confidences in memory or with some that are computed again."""
        each = 0 if before is not None else count_simulated(len(self.labels))
        suggestions = SuggestionScores(self.labels, count=self.count, each=each)
        first, _ = self._calibrate(self._first_pass(suggestions), before, is_held=is_held)
        self.reweight(first.p_error)
        found, spread = self._calibrate(self._second_pass(alike := LookAlikes(suggestions)), before, is_held=is_held)
        if before is None:
            found = suggestions.calibrate(first, apply_decisions_to_p_error(first.p_error, self._p_right), found=found)
            is_clean = found.p_error.mean() < CLEAN  # then no label would be called wrong
            found = replace(found, look_alikes=1.0 if is_clean else alike.find(found))
        return spread(self.labels, found=found, suggestions=suggestions, p_right=self._p_right)

    def _calibrate(
        self, blocks: Iterator[tuple[Ids, Floats]], before: ErrorCalibration | None, *, is_held: bool
    ) -> tuple[ErrorCalibration, Callable[..., LabelErrors]]:
        """Calibrate the confidences of a pass; also returns the function that makes label errors of them."""
        if is_held:
            confidences = self.hold(blocks)
            found, model = estimate_p_error(confidences, self.labels, before=before)
            return found, partial(errors_from_confidences, confidences, model=model)
        scores = LabelScores.by_frequency(self.labels, count=self.count, simulates=before is None)
        best, top = _no_classes(len(self.labels))
        for rows, confidences in blocks:
            scores.add(rows, confidences)
            best[rows], top[rows] = _choose_top(confidences)
        make = partial(errors_from_top, own=scores.own, best=best, confidences=top, count=self.count)
        return scores.calibrate(before=before), make

    def _second_pass(self, alike: LookAlikes) -> Iterator[tuple[Ids, Floats]]:
        """Iterate over `blocks`, and score the look-alikes on the way."""
        for rows, confidences in self.blocks():
            alike.add(rows, confidences)
            yield rows, confidences

    def _first_pass(self, suggestions: SuggestionScores) -> Iterator[tuple[Ids, Floats]]:
        """Iterate over `blocks` before `reweight`, and score the suggestions on the way."""
        unseen_rows, unseen = np.empty(0, dtype=np.int64), np.empty((0, self.count), dtype=np.float32)
        if suggestions.simulates:
            unseen_rows, unseen = self._predict_unseen()
        for rows, by_classes, confidences in self._predict_ahead():
            is_unseen = np.flatnonzero(np.isin(rows, unseen_rows))
            without = by_classes[is_unseen]
            without[np.arange(len(is_unseen)), self.labels[rows[is_unseen]]] = 0
            without /= np.maximum(without.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
            without = join_confidences(unseen[np.searchsorted(unseen_rows, rows[is_unseen])], without)
            suggestions.add(rows, confidences, without, is_unseen)
            yield rows, confidences

    def _predict_unseen(self) -> tuple[Ids, Floats]:
        """Sorted (n,) rows of some labels, and their (n, C) confidences from rows of other labels only."""
        (regression,) = self._regressions
        found: list[tuple[Ids, Floats]] = []
        left = MOST_UNSEEN // self.count
        for label in np.random.default_rng(0).permutation(np.flatnonzero(self._images)).tolist():
            found.append(regression.confidences_unseen(label, most=max(left, 1)))
            left -= len(found[-1][0])
            if left <= 0:
                break
        rows = np.concatenate([one for one, _ in found])
        order = np.argsort(rows)
        return rows[order], np.concatenate([one for _, one in found])[order]

    def hold(self, blocks: Iterable[tuple[Ids, Floats]]) -> Floats:
        """(N, C) confidences of all rows."""
        found = np.empty((len(self.labels), self.count), dtype=np.float32)
        for rows, confidences in blocks:
            found[rows] = confidences
        return found

    def blocks(self) -> Iterator[tuple[Ids, Floats]]:
        """(rows, (B, C) float32 confidences) of all rows: of the regressions of all passes, and of the last classes."""
        return ((rows, confidences) for rows, _, confidences in self._predict_ahead())

    def _predict_ahead(self) -> Iterator[tuple[Ids, Floats, Floats]]:
        """(rows, confidences by the classes, and by both classifiers), of blocks in threads."""

        def predict(block: tuple[Ids, Any]) -> tuple[Ids, Floats, Floats]:
            rows, by_classes = block[0], self._classes.confidences(*block)
            regressed = sum(one.confidences(rows) for one in self._regressions)
            mean = np.asarray(regressed / np.float32(len(self._regressions)))
            return rows, by_classes, join_confidences(mean, by_classes)

        with (
            multiplying_workers() as cores,
            closing(map_ahead(predict, self._classes.blocks(), workers=min(cores, _THREADS), ahead=_THREADS)) as found,
        ):
            for rows, by_classes, confidences in found:
                yield rows, by_classes, confidences
                self._tell(len(rows))

    def propose(self, features: Floats) -> tuple[Ids, Doubles]:
        """(M, 4) most probable labels of (M, D) images without one, after both passes, and their confidences."""
        best, probabilities = _no_classes(len(features))
        for rows, by_classes in self._classes.predict(features):
            regressed = sum(one.predict(features[rows]) for one in self._regressions)
            mean = np.asarray(regressed / np.float32(len(self._regressions)))
            best[rows], probabilities[rows] = _choose_top(join_confidences(mean, by_classes))
        return best, probabilities

    def reweight(self, p_error: Doubles) -> None:
        """Fit again with rows weighted by (N,) probabilities that their labels are right."""
        p_right = (1 - apply_decisions_to_p_error(p_error, self._p_right)).clip(min=_MIN_WEIGHT)
        sums = np.bincount(self.labels, weights=p_right, minlength=self.count)
        weights = p_right * (self._images**BALANCE / np.maximum(sums, _MIN_WEIGHT))[self.labels]
        first = self._regressions[0]
        self._regressions.append(first.reweighted(weights, ridges=(first.ridge,)))
        self._classes.weigh(p_right)


def apply_decisions_to_p_error(p_error: Doubles, p_right: Doubles | None) -> Doubles:
    """(N,) p_error, 0 where a person looked, and at least 1 - p_right where a machine decided (NaN: no decision)."""
    if p_right is None:
        return p_error
    doubted: Doubles = np.fmax(p_error, 1 - p_right)
    return np.where(p_right == 1, 0.0, doubted)


def join_confidences(one: Floats, other: Floats) -> Floats:
    """(B, C) of two classifiers: the square of the mean of their roots, made to sum to 1, between mean and product."""
    both = np.square(np.sqrt(one) + np.sqrt(other))
    joined: Floats = both / both.sum(axis=1, keepdims=True)
    return joined


def errors_from_confidences(
    confidences: Floats,
    labels: Labels,
    *,
    model: NoiseModel,
    found: ErrorCalibration,
    suggestions: SuggestionScores,
    p_right: Doubles | None = None,
) -> LabelErrors:
    """Label errors from (N, C) confidences in (N,) labels: wrong labels show classes as the noise model says."""
    p_error, count = apply_decisions_to_p_error(found.p_error, p_right), confidences.shape[1]
    p_suggested, none = found.divide(p_error, suggestions.confidences)
    best, probabilities = _no_classes(len(labels))
    by_label = np.zeros((count, count))
    for rows in row_slices(len(labels)):
        given, own, suggested = labels[rows], np.arange(len(labels[rows])), suggestions.suggested[rows]
        classes = model.classes_if_wrong(confidences[rows], given)
        classes[own, suggested] = 0
        rest = (p_error[rows] - p_suggested[rows] - none[rows]).clip(min=0)
        classes *= (rest / np.maximum(classes.sum(axis=1), np.finfo(np.float64).tiny))[:, None]
        classes = np.minimum(classes, _LESS * p_suggested[rows, None])  # or another one would come before it
        classes[own, suggested] = p_suggested[rows]
        np.add.at(by_label, given, classes)
        classes[own, given] = 1 - p_error[rows]
        best[rows], probabilities[rows] = _choose_top(classes)
    pairs = tuple((int(i), int(j), float(by_label[i, j])) for i, j in np.argwhere(by_label > 0))
    return LabelErrors(
        found,
        p_error,
        suggestions.suggested,
        p_suggested,
        none,
        best,
        probabilities,
        _rates(p_error, labels, count=count),
        pairs,
        own=confidences[np.arange(len(labels)), labels],
    )


def pool_label_errors(one: LabelErrors, other: LabelErrors, labels: Labels) -> LabelErrors:
    """Label errors of the same (N,) labels by two kinds of features: the mean of both distributions over classes.

    Features that were trained with the labels are too sure alone: of confident suggestions six in ten were right where
    87 % were expected. Their mean with those of frozen features was calibrated, and ranked wrong labels better than
    either.
    """
    both = np.concatenate([one.best, other.best], axis=1)
    halves = np.concatenate([one.probabilities, other.probabilities], axis=1) / 2
    halves = np.where(both == NO_ID, 0.0, halves)
    sums = np.stack([np.where(both == column[:, None], halves, 0).sum(axis=1) for column in both.T], axis=1)
    is_again = np.stack([(both[:, :n] == both[:, n, None]).any(axis=1) for n in range(both.shape[1])], axis=1)
    sums = np.where(is_again | (both == NO_ID), -1.0, sums)
    positions, probabilities = _choose_top(sums)
    best = np.take_along_axis(both, positions, axis=1)
    best = np.where(probabilities < 0, NO_ID, best)
    others = np.where(both == labels[:, None], -1.0, sums)
    first, own = others.argmax(axis=1), np.arange(len(labels))
    is_known = others[own, first] > 0
    pairs = defaultdict[tuple[int, int], float](float)
    for label, shown, images in (*one.pairs, *other.pairs):
        pairs[label, shown] += images / 2
    known = [two.calibration.look_alikes for two in (one, other) if two.calibration.look_alikes is not None]
    return LabelErrors(
        replace(other.calibration, look_alikes=min(known, default=None)),
        (one.p_error + other.p_error) / 2,
        np.where(is_known, both[own, first], other.suggested),
        np.where(is_known, others[own, first], 0.0),
        (one.p_no_class + other.p_no_class) / 2,
        best,
        probabilities.clip(min=0),
        (one.rates + other.rates) / 2,
        tuple((label, shown, images) for (label, shown), images in sorted(pairs.items())),
        np.asarray((one.own + other.own) / 2, dtype=np.float32),
    )


def errors_from_top(
    labels: Labels,
    *,
    own: Floats,
    best: Ids,
    confidences: Doubles,
    count: int,
    found: ErrorCalibration,
    suggestions: SuggestionScores,
    p_right: Doubles | None = None,
) -> LabelErrors:
    """Label errors where N x C confidences are too many to hold: the class of a wrong label is the suggested one.

    `own` are the confidences in the label, and `confidences` the (N, s) highest ones, with their labels, `best`.
    """
    p_error, suggested = apply_decisions_to_p_error(found.p_error, p_right), suggestions.suggested
    p_suggested, none = found.divide(p_error, suggestions.confidences)
    is_other = (best != NO_ID) & (best != labels[:, None]) & (best != suggested[:, None])
    left = np.maximum(1 - own, np.finfo(np.float32).tiny)[:, None]
    rest = (p_error - p_suggested - none)[:, None]
    others = np.where(is_other, np.minimum(rest * confidences / left, _LESS * p_suggested[:, None]), -1.0)
    all_labels = np.column_stack([np.where(is_other, best, NO_ID), labels, suggested])
    positions, probabilities = _choose_top(np.column_stack([others, 1 - p_error, p_suggested]))
    classes = np.where(positions == NO_ID, NO_ID, np.take_along_axis(all_labels, positions, axis=1))
    pairs, position = np.unique(np.stack([labels, suggested]), axis=1, return_inverse=True)
    amounts = np.bincount(position.ravel(), weights=p_error - none)
    named = zip(*pairs.tolist(), amounts.tolist(), strict=True)
    kept = tuple((i, j, n) for i, j, n in named if n > 0)
    rates = _rates(p_error, labels, count=count)
    return LabelErrors(
        found, p_error, suggested, p_suggested, none, classes, probabilities.clip(min=0), rates, kept, own
    )


def _rates(p_error: Doubles, labels: Labels, *, count: int) -> Doubles:
    images = np.bincount(labels, minlength=count)
    sums = np.bincount(labels, weights=p_error, minlength=count)
    rates: Doubles = np.divide(sums, images, out=np.zeros(count), where=images > 0)
    return rates


def _no_classes(count: int) -> tuple[Ids, Doubles]:
    return np.full((count, TOP_CLASSES), NO_ID, dtype=np.int64), np.zeros((count, TOP_CLASSES))


def _choose_top(values: Floats | Doubles) -> tuple[Ids, Doubles]:
    """(B, 4) positions of the highest of (B, C) values, the best first, and these; `NO_ID` and 0 beyond C."""
    best, highest = _no_classes(len(values))
    positions, chosen = choose_top(values, count=TOP_CLASSES)
    best[:, : positions.shape[1]], highest[:, : positions.shape[1]] = positions, chosen
    return best, highest
