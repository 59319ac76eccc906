"""Label-error detection: the probability that each label is wrong, and the most probable classes of each image.

Two classifiers predict every label from other images, in two passes. A ridge regression finds more where similar
classes are confused, Gaussian classes where labels are random; together they find nearly as much as the better one, or
more. In the second pass rows are weighted by the probability that their label is right, found in the first. The
constants were chosen on parts of five datasets that `benchmarks.labels.chances` does not report on.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Doubles, Floats, Ids, Labels
from index.labels.gaussian_classes import GaussianClasses
from index.labels.leave_one_out import LeaveOneOut
from index.labels.noise_model import NoiseModel
from index.labels.simulated_noise import (
    SIMULATED,
    LabelScores,
    ScoreCalibration,
    count_simulated,
    estimate_p_error,
    row_slices,
    score_labels,
)
from index.labels.suggestions import SuggestionScores
from index.progress import Progress, no_progress
from index.threads import single_threaded_blas

RIDGES = (0.1, 0.3, 1.0, 3.0)
# Labels of n rows weigh n^0.5 in both passes: at 1 right labels of rare classes look wrong, at 0 frequent ones that
# overlap with rare ones do.
BALANCE = 0.5
MOST_VALUES = 1 << 26  # confidences in memory: 256 MB
MOST_LABELS = 2048  # of which every pair is estimated
CLEAN = 0.01  # estimated share of wrong labels below which look-alike errors are not simulated
MANY_ROWS = 20_000  # from which on products are large enough to share among threads
MOST_UNSEEN = 1 << 24  # confidences of images whose label is left out: 64 MB
TOP_CLASSES = 4  # of an image that are kept: its label and three others
# An outlier shows none of the classes, so that no confidence is high. Among photos of clothes, four fifths of images of
# animals and things had a highest confidence below half of the median, one in ten of the photos themselves.
CLEAR = 0.5
_LESS = 1 - 1e-9  # of the suggested label's probability that another one has at most
_LEAST = 0.05  # weight of a row whose label is certainly wrong
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Proposals:
    """Most probable labels of M images that have none.

    Attributes:
        best: (M, 4) int64 labels, the best first; `NO_ID` where there are fewer.
        probabilities: (M, 4) float64 of these: the confidences after both passes. Where labels are noisy they are too
            low: of those at 70 % more than seven in ten are right.
        is_outlier: (M,) whether the highest confidence is below half of the median of labelled images.
    """

    best: Ids
    probabilities: Doubles
    is_outlier: Mask


@dataclass(frozen=True, slots=True)
class LabelErrors:
    """Estimated label errors among N labels.

    Attributes:
        calibration: scores of the labels and the probabilities that they are wrong, for use after decisions.
        p_error: (N,) float64 probability that each label is wrong; not below 1 - p_right where that is known.
        suggested: (N,) int64 most probable other label.
        p_suggested: (N,) float64 probability that the suggested label is right.
        none: (N,) float64 probability that the image shows none of the labels.
        best: (N, 4) int64 most probable classes, the best first; `NO_ID` where there are fewer labels.
        probabilities: (N, 4) float64 of these; 1 - p_error of its label, p_suggested of the suggested one, 1 at most
            over all labels and `none` together.
        rates: (C,) float64 estimated noise rate of each label.
        pairs: (label, class, images): estimated number of images of a class with another label.
        own: (N,) float32 confidence in the label, from all rows but this one and its group.
        proposals: for the images without a label, where there were any.
    """

    calibration: ScoreCalibration
    p_error: Doubles
    suggested: Labels
    p_suggested: Doubles
    none: Doubles
    best: Ids
    probabilities: Doubles
    rates: Doubles
    pairs: tuple[tuple[int, int, float], ...]
    own: Floats
    proposals: Proposals | None = None

    @property
    def highest(self) -> Floats:
        """(N,) float32 highest confidence in any label."""
        return self.calibration.highest

    def others(self, row: int, *, label: int) -> list[tuple[int, float]]:
        """(label, probability) of the most probable other labels of a row, best first, three at most, none of 0."""
        pairs = zip(self.best[row].tolist(), self.probabilities[row].tolist(), strict=True)
        others = [
            (other, probability) for other, probability in pairs if other not in (NO_ID, label) and probability > 0
        ]
        return others[: TOP_CLASSES - 1]


def find_label_errors(
    features: Floats,
    labels: Labels,
    *,
    count: int,
    groups: Ids | None = None,
    p_right: Doubles | None = None,
    before: ScoreCalibration | None = None,
    unlabelled: Floats | None = None,
    most_values: int = MOST_VALUES,
    most_labels: int = MOST_LABELS,
    progress: Progress = no_progress,
) -> LabelErrors:
    """Label errors among all rows.

    Where N x C confidences are more than `most_values`, or labels more than `most_labels`, confidences are computed
    again instead of held, and simulated noise draws labels by their frequency instead of by the noise model.

    Args:
        features: (N, D) float32.
        labels: (N,) int64 in 0..count-1.
        count: C, at least 2.
        groups: (N,) int64; rows of one group are near-duplicates, none of which predicts another one.
        p_right: (N,) probability that the label is right, as whoever set it said: 1 where a person looked, NaN where
            nobody decided.
        before: calibration from before the decisions.
        unlabelled: (M, D) float32 of images without a label, for which labels are proposed.
        most_values: confidences in memory.
        most_labels: of which every pair is estimated, which takes C x C numbers.
    """
    with single_threaded_blas() if len(labels) < MANY_ROWS else nullcontext():
        passes = _TwoPasses(features, labels, count=count, groups=groups, p_right=p_right, progress=progress)
        if len(labels) * count <= most_values and count <= most_labels:
            errors = passes.find_held(before)
        else:
            errors = passes.find_by_blocks(before)
        if unlabelled is None or not len(unlabelled):
            return errors
        return replace(errors, proposals=passes.propose(unlabelled, clear=CLEAR * float(np.median(errors.highest))))


def two_pass_confidences(features: Floats, labels: Labels, *, count: int, groups: Ids | None = None) -> Floats:
    """(N, C) float32 confidences of both classifiers after the second pass; rows sum to 1.

    In the first pass rows of label y weigh n_y^`BALANCE` together, each as any other; in the second each row in
    proportion to the probability that its label is right. No row predicts itself, but it took part in the weights of
    the others.

    Arguments as those of `find_label_errors`.
    """
    passes = _TwoPasses(features, labels, count=count, groups=groups)
    passes.reweight(estimate_p_error(passes.hold(passes.blocks()), labels)[0].p_error)
    return passes.hold(passes.blocks())


class _TwoPasses:
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
        done, total = 0, 2 * len(labels)

        def tell(rows: int) -> None:
            nonlocal done
            done = min(done + rows, total)
            progress(done, total)

        self.labels, self.count, self._p_right = labels, count, p_right
        self._images = np.bincount(labels, minlength=count).astype(np.float64)
        weights = self._images[labels] ** (BALANCE - 1)
        self._regressions = [
            LeaveOneOut(features, labels, count=count, groups=groups, weights=weights, ridges=RIDGES, tell=tell)
        ]
        self._classes = GaussianClasses(features, labels, count=count, prior=BALANCE, groups=groups, tell=tell)

    def find_held(self, before: ScoreCalibration | None) -> LabelErrors:
        """Label errors with all confidences in memory."""
        suggestions = self._score_suggestions(simulates=before is None)
        first, _ = estimate_p_error(self.hold(self._first_pass(suggestions)), self.labels, before=before)
        self.reweight(first.p_error)
        confidences = self.hold(self.blocks())
        found, model = estimate_p_error(confidences, self.labels, before=before)
        alike = LookAlikes(suggestions)
        for rows in row_slices(len(self.labels)):
            alike.add(np.arange(len(self.labels))[rows], confidences[rows])
        found = self._calibrate(found, first, suggestions, alike)
        return errors_from_confidences(
            confidences, self.labels, found=found, model=model, suggestions=suggestions, p_right=self._p_right
        )

    def find_by_blocks(self, before: ScoreCalibration | None) -> LabelErrors:
        """Label errors with confidences that are computed again instead of held."""
        labels, count, simulates = self.labels, self.count, before is None
        first, scores = (LabelScores.by_frequency(labels, count=count, simulates=simulates) for _ in range(2))
        suggestions = self._score_suggestions(simulates=simulates)
        for rows, confidences in self._first_pass(suggestions):
            first.add(rows, confidences)
        calibration = first.calibrate(before=before)
        self.reweight(calibration.p_error)
        best = np.full((len(labels), TOP_CLASSES), NO_ID, dtype=np.int64)
        top, alike = np.zeros((len(labels), TOP_CLASSES), dtype=np.float32), LookAlikes(suggestions)
        for rows, confidences in self.blocks():
            scores.add(rows, confidences)
            alike.add(rows, confidences)
            order = np.argsort(-confidences, axis=1, kind="stable")[:, :TOP_CLASSES]
            best[rows, : order.shape[1]] = order
            top[rows, : order.shape[1]] = np.take_along_axis(confidences, order, axis=1)
        found = scores.calibrate(before=before)
        return errors_from_top(
            self._calibrate(found, calibration, suggestions, alike),
            labels,
            own=scores.own,
            best=best,
            confidences=top,
            count=count,
            suggestions=suggestions,
            p_right=self._p_right,
        )

    def _score_suggestions(self, *, simulates: bool) -> SuggestionScores:
        each = count_simulated(len(self.labels)) if simulates else 0
        return SuggestionScores(self.labels, count=self.count, each=each)

    def _calibrate(
        self, found: ScoreCalibration, first: ScoreCalibration, suggestions: SuggestionScores, alike: "LookAlikes"
    ) -> ScoreCalibration:
        """With the probabilities of suggestions, unless these are from before decisions."""
        if found.suggestions is not None:
            return found
        calibrated = suggestions.calibrate(first, self._believe(first.p_error))
        is_clean = found.p_error.mean() < CLEAN  # then none of them would be called wrong
        return replace(found, suggestions=replace(calibrated, look_alikes=1.0 if is_clean else alike.found(found)))

    def _first_pass(self, suggestions: SuggestionScores) -> Iterator[tuple[Ids, Floats]]:
        """As `blocks` before `reweight`; the suggestions are scored on the way."""
        (regression,) = self._regressions
        unseen_rows, unseen = np.empty(0, dtype=np.int64), np.empty((0, self.count), dtype=np.float32)
        if suggestions.simulates:
            unseen_rows, unseen = self._predict_unseen()
        for rows, by_classes in self._classes.blocks():
            confidences = join_confidences(regression.confidences(rows), by_classes)
            is_unseen = np.flatnonzero(np.isin(rows, unseen_rows))
            without = by_classes[is_unseen]
            without[np.arange(len(is_unseen)), self.labels[rows[is_unseen]]] = 0
            without /= np.maximum(without.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
            without = join_confidences(unseen[np.searchsorted(unseen_rows, rows[is_unseen])], without)
            suggestions.add(rows, confidences, without, is_unseen)
            yield rows, confidences

    def _predict_unseen(self) -> tuple[Ids, Floats]:
        """Rising rows of some labels, (n,), and their (n, C) confidences from rows of other labels alone."""
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
        for rows, by_classes in self._classes.blocks():
            regressed = sum(one.confidences(rows) for one in self._regressions)
            mean = np.asarray(regressed / np.float32(len(self._regressions)))
            yield rows, join_confidences(mean, by_classes)

    def propose(self, features: Floats, *, clear: float) -> Proposals:
        """Labels of (M, D) images without one, after both passes; outliers have no confidence of `clear`."""
        best, probabilities = _no_classes(len(features))
        for rows, by_classes in self._classes.predict(features):
            regressed = sum(one.predict(features[rows]) for one in self._regressions)
            confidences = join_confidences(np.asarray(regressed / np.float32(len(self._regressions))), by_classes)
            order = np.argsort(-confidences, axis=1, kind="stable")[:, :TOP_CLASSES]
            best[rows, : order.shape[1]] = order
            probabilities[rows, : order.shape[1]] = np.take_along_axis(confidences, order, axis=1)
        return Proposals(best, probabilities, probabilities[:, 0] < clear)

    def reweight(self, p_error: Doubles) -> None:
        """Fit again with rows weighted by (N,) probabilities that their labels are right."""
        p_right = (1 - self._believe(p_error)).clip(min=_LEAST)
        sums = np.bincount(self.labels, weights=p_right, minlength=self.count)
        weights = p_right * (self._images**BALANCE / np.maximum(sums, _LEAST))[self.labels]
        first = self._regressions[0]
        self._regressions.append(first.reweighted(weights, ridges=(first.ridge,)))
        self._classes.weigh(p_right)

    def _believe(self, p_error: Doubles) -> Doubles:
        return believe_decisions(p_error, self._p_right)


class LookAlikes:
    """Scores of simulated errors between look-alike labels: each image gets what another one of its label looks like.

    Args:
        suggestions: of all images.
    """

    def __init__(self, suggestions: SuggestionScores) -> None:
        labels, each = suggestions.labels, SIMULATED if suggestions.simulates else 0
        order = np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
        starts = np.searchsorted(labels[order], labels[order])
        sizes = np.searchsorted(labels[order], labels[order], side="right") - starts
        self._alike = np.empty((len(labels), each), dtype=np.int64)
        for step in range(each):
            place = starts + (np.arange(len(labels)) - starts + step + 1) % sizes
            self._alike[order, step] = suggestions.suggested[order[place]]
        self._is_other = self._alike != labels[:, None]
        self._scores = np.zeros(self._alike.shape)

    def add(self, rows: Ids, confidences: Floats) -> None:
        """Score the labels of (B,) rows, of which these are the (B, C) float32 confidences."""
        if self._alike.shape[1]:
            self._scores[rows] = score_labels(confidences, self._alike[rows])

    def found(self, calibration: ScoreCalibration) -> float:
        """Share of these errors that would be called wrong."""
        weights = self._is_other * (1 - calibration.p_error)[:, None]
        called = calibration.read(self._scores) >= 0.5
        return float((weights * called).sum() / max(weights.sum(), np.finfo(np.float64).tiny))


def believe_decisions(p_error: Doubles, p_right: Doubles | None) -> Doubles:
    """(N,) p_error, 0 where a person looked, and at least 1 - p_right where a machine decided (NaN: nobody did)."""
    if p_right is None:
        return p_error
    doubted: Doubles = np.fmax(p_error, 1 - p_right)
    return np.where(p_right == 1, 0.0, doubted)


def join_confidences(one: Floats, other: Floats) -> Floats:
    """(B, C) of two classifiers to (B, C): the square of the mean of their roots, made to sum to 1.

    A label that either favours stays likely, as with their mean; agreement of both counts, as with their product.
    """
    both = np.square(np.sqrt(one) + np.sqrt(other))
    joined: Floats = both / both.sum(axis=1, keepdims=True)
    return joined


def errors_from_confidences(
    confidences: Floats,
    labels: Labels,
    *,
    found: ScoreCalibration,
    model: NoiseModel,
    suggestions: SuggestionScores,
    p_right: Doubles | None = None,
) -> LabelErrors:
    """Label errors from (N, C) confidences in (N,) labels.

    Args:
        found, model: of `estimate_p_error`.
        suggestions: of the same images.
        p_right: as of `find_label_errors`.
    """
    p_error, count = believe_decisions(found.p_error, p_right), confidences.shape[1]
    p_suggested, none = divide_errors(p_error, found, suggestions)
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
        order = np.argsort(-classes, axis=1, kind="stable")[:, :TOP_CLASSES]
        best[rows, : order.shape[1]] = order
        probabilities[rows, : order.shape[1]] = np.take_along_axis(classes, order, axis=1)
    pairs = tuple((int(i), int(j), float(by_label[i, j])) for i, j in np.argwhere(by_label > 0))
    rates = _rates(p_error, labels, count=count)
    own_confidences = confidences[np.arange(len(labels)), labels]
    return LabelErrors(
        found, p_error, suggestions.suggested, p_suggested, none, best, probabilities, rates, pairs, own_confidences
    )


def pool_label_errors(one: LabelErrors, other: LabelErrors, labels: Labels) -> LabelErrors:
    """Label errors of the same (N,) labels by two kinds of features: the mean of both distributions over classes.

    Features that were trained with the labels make every image look sure. Alone their probabilities are too high: of a
    well trained network's confident suggestions six in ten were right where 87 % were expected. Their mean with those
    of frozen features was right as often as it said, and ranked wrong labels better than either.
    """
    both = np.concatenate([one.best, other.best], axis=1)
    halves = np.concatenate([one.probabilities, other.probabilities], axis=1) / 2
    halves = np.where(both == NO_ID, 0.0, halves)
    sums = np.stack([np.where(both == column[:, None], halves, 0).sum(axis=1) for column in both.T], axis=1)
    is_again = np.stack([(both[:, :n] == both[:, n, None]).any(axis=1) for n in range(both.shape[1])], axis=1)
    sums = np.where(is_again | (both == NO_ID), -1.0, sums)
    order = np.argsort(-sums, axis=1, kind="stable")[:, :TOP_CLASSES]
    best, probabilities = (np.take_along_axis(values, order, axis=1) for values in (both, sums))
    best = np.where(probabilities < 0, NO_ID, best)
    others = np.where(both == labels[:, None], -1.0, sums)
    first, own = others.argmax(axis=1), np.arange(len(labels))
    is_known = others[own, first] > 0
    pairs = defaultdict[tuple[int, int], float](float)
    for label, shown, images in (*one.pairs, *other.pairs):
        pairs[label, shown] += images / 2
    found = other.calibration.suggestions
    if found is not None and one.calibration.suggestions is not None:
        found = replace(found, look_alikes=min(found.look_alikes, one.calibration.suggestions.look_alikes))
    return LabelErrors(
        replace(other.calibration, suggestions=found),
        (one.p_error + other.p_error) / 2,
        np.where(is_known, both[own, first], other.suggested),
        np.where(is_known, others[own, first], 0.0),
        (one.none + other.none) / 2,
        best,
        probabilities.clip(min=0),
        (one.rates + other.rates) / 2,
        tuple((label, shown, images) for (label, shown), images in sorted(pairs.items())),
        np.asarray((one.own + other.own) / 2, dtype=np.float32),
    )


def divide_errors(p_error: Doubles, found: ScoreCalibration, suggestions: SuggestionScores) -> tuple[Doubles, Doubles]:
    """(N,) probabilities that the suggested label is right, and that the image shows none of the labels."""
    assert found.suggestions is not None
    right, none = found.suggestions.apply(suggestions.confidences)
    none = np.maximum(none, found.none_if_wrong)
    return p_error * np.minimum(right, 1 - none), p_error * none


def errors_from_top(
    found: ScoreCalibration,
    labels: Labels,
    *,
    own: Floats,
    best: Ids,
    confidences: Floats,
    count: int,
    suggestions: SuggestionScores,
    p_right: Doubles | None = None,
) -> LabelErrors:
    """Label errors where N x C confidences are too many to hold: the class of a wrong label is the suggested one.

    Args:
        found: score of each label, and the probability that it is wrong.
        own: (N,) confidence in each label.
        best, confidences: (N, s) the labels of the highest confidence, best first, `NO_ID` for none.
        count: C.
        suggestions, p_right: as of `errors_from_confidences`.
    """
    p_error, suggested = believe_decisions(found.p_error, p_right), suggestions.suggested
    p_suggested, none = divide_errors(p_error, found, suggestions)
    is_other = (best != NO_ID) & (best != labels[:, None]) & (best != suggested[:, None])
    left = np.maximum(1 - own, np.finfo(np.float32).tiny)[:, None]
    rest = (p_error - p_suggested - none)[:, None]
    others = np.where(is_other, np.minimum(rest * confidences / left, _LESS * p_suggested[:, None]), -1.0)
    all_labels = np.column_stack([np.where(is_other, best, NO_ID), labels, suggested])
    everything = np.column_stack([others, 1 - p_error, p_suggested])
    order = np.argsort(-everything, axis=1, kind="stable")[:, :TOP_CLASSES]
    classes, probabilities = _no_classes(len(labels))
    classes[:, : order.shape[1]] = np.take_along_axis(all_labels, order, axis=1)
    probabilities[:, : order.shape[1]] = np.take_along_axis(everything, order, axis=1).clip(min=0)
    pairs, place = np.unique(np.stack([labels, suggested]), axis=1, return_inverse=True)
    amounts = np.bincount(place.ravel(), weights=p_error - none)
    named = zip(*pairs.tolist(), amounts.tolist(), strict=True)
    kept = tuple((i, j, n) for i, j, n in named if n > 0)
    rates = _rates(p_error, labels, count=count)
    return LabelErrors(found, p_error, suggested, p_suggested, none, classes, probabilities, rates, kept, own)


def _rates(p_error: Doubles, labels: Labels, *, count: int) -> Doubles:
    images = np.bincount(labels, minlength=count)
    sums = np.bincount(labels, weights=p_error, minlength=count)
    rates: Doubles = np.divide(sums, images, out=np.zeros(count), where=images > 0)
    return rates


def _no_classes(count: int) -> tuple[Ids, Doubles]:
    return np.full((count, TOP_CLASSES), NO_ID, dtype=np.int64), np.zeros((count, TOP_CLASSES))
