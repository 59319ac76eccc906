"""Label-error detection: the probability that each label is wrong, and the most probable classes of each image.

Two classifiers predict every label from other images, in two passes. A ridge regression finds more where similar
classes are confused, Gaussian classes where labels are random; together they find nearly as much as the better one, or
more. In the second pass rows are weighted by the probability that their label is right, found in the first. The
constants were chosen on parts of five datasets that `benchmarks.labels.chances` does not report on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Doubles, Floats, Ids, Labels
from index.labels.gaussian_classes import GaussianClasses
from index.labels.leave_one_out import LeaveOneOut
from index.labels.simulated_noise import LabelScores, ScoreCalibration, estimate_p_error, row_slices
from index.progress import Progress, no_progress

RIDGES = (0.1, 0.3, 1.0, 3.0)
# Labels of n rows weigh n^0.5 in both passes: at 1 right labels of rare classes look wrong, at 0 frequent ones that
# overlap with rare ones do.
BALANCE = 0.5
MOST_VALUES = 1 << 26  # confidences in memory: 256 MB
MOST_LABELS = 2048  # of which every pair is estimated
TOP_CLASSES = 4  # of an image that are kept: its label and three others
# An outlier shows none of the classes, so that no confidence is high. Among photos of clothes, four fifths of images of
# animals and things had a highest confidence below half of the median, one in ten of the photos themselves.
CLEAR = 0.5
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
        best: (N, 4) int64 most probable classes, the best first; `NO_ID` where there are fewer labels.
        probabilities: (N, 4) float64 of these; 1 - p_error of its label, 1 over all labels and `none` together.
        rates: (C,) float64 estimated noise rate of each label.
        pairs: (label, class, images): estimated number of images of a class with another label.
        own: (N,) float32 confidence in the label, from all rows but this one and its group.
        proposals: for the images without a label, where there were any.
    """

    calibration: ScoreCalibration
    best: Ids
    probabilities: Doubles
    rates: Doubles
    pairs: tuple[tuple[int, int, float], ...]
    own: Floats
    proposals: Proposals | None = None

    @property
    def p_error(self) -> Doubles:
        """(N,) float64 probability that each label is wrong."""
        return self.calibration.p_error

    @property
    def none(self) -> Doubles:
        """(N,) float64 probability that each image shows none of the labels."""
        return self.calibration.none

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
    decided: Mask | None = None,
    before: ScoreCalibration | None = None,
    besides: ScoreCalibration | None = None,
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
        decided: (N,) whether a person has decided the label, which then counts as right.
        before: calibration from before the decisions.
        besides: calibration of the same rows by other features, see `ScoreCalibration.join`.
        unlabelled: (M, D) float32 of images without a label, for which labels are proposed.
        most_values: confidences in memory.
        most_labels: of which every pair is estimated, which takes C x C numbers.
    """
    passes = _TwoPasses(features, labels, count=count, groups=groups, decided=decided, progress=progress)
    if len(labels) * count <= most_values and count <= most_labels:
        errors = errors_from_confidences(passes.run(before, besides), labels, before=before, besides=besides)
    else:
        errors = _find_by_blocks(passes, before, besides)
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
    return _TwoPasses(features, labels, count=count, groups=groups).run()


class _TwoPasses:
    """Both classifiers: fitted once, and again with weights."""

    def __init__(
        self,
        features: Floats,
        labels: Labels,
        *,
        count: int,
        groups: Ids | None,
        decided: Mask | None = None,
        progress: Progress = no_progress,
    ) -> None:
        done, total = 0, 2 * len(labels)

        def tell(rows: int) -> None:
            nonlocal done
            done = min(done + rows, total)
            progress(done, total)

        def regress(weights: Doubles, ridges: tuple[float, ...]) -> LeaveOneOut:
            return LeaveOneOut(features, labels, count=count, groups=groups, weights=weights, ridges=ridges, tell=tell)

        self.labels, self.count, self._regress, self._decided = labels, count, regress, decided
        self._images = np.bincount(labels, minlength=count).astype(np.float64)
        self._regressions = [regress(self._images[labels] ** (BALANCE - 1), RIDGES)]
        self._classes = GaussianClasses(features, labels, count=count, prior=BALANCE, groups=groups, tell=tell)

    def run(self, before: ScoreCalibration | None = None, besides: ScoreCalibration | None = None) -> Floats:
        """(N, C) confidences of all rows after both passes."""
        confidences = self._confidences()
        self.reweight(estimate_p_error(confidences, self.labels, before=before, besides=besides)[0].p_error)
        return self._confidences()

    def _confidences(self) -> Floats:
        found = np.empty((len(self.labels), self.count), dtype=np.float32)
        for rows, confidences in self.blocks():
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
        """Fit again with rows weighted by (N,) probabilities that their labels are right; decided labels are right."""
        if self._decided is not None:
            p_error = np.where(self._decided, 0.0, p_error)
        p_right = (1 - p_error).clip(min=_LEAST)
        sums = np.bincount(self.labels, weights=p_right, minlength=self.count)
        weights = p_right * (self._images**BALANCE / np.maximum(sums, _LEAST))[self.labels]
        self._regressions.append(self._regress(weights, (self._regressions[0].ridge,)))
        self._classes.weigh(p_right)


def join_confidences(one: Floats, other: Floats) -> Floats:
    """(B, C) of two classifiers to (B, C): the square of the mean of their roots, made to sum to 1.

    A label that either favours stays likely, as with their mean; agreement of both counts, as with their product.
    """
    both = np.square(np.sqrt(one) + np.sqrt(other))
    joined: Floats = both / both.sum(axis=1, keepdims=True)
    return joined


def _find_by_blocks(
    passes: _TwoPasses, before: ScoreCalibration | None, besides: ScoreCalibration | None
) -> LabelErrors:
    """Label errors with confidences that are computed again instead of held."""
    labels, count = passes.labels, passes.count

    first, scores = (LabelScores.by_frequency(labels, count=count, simulates=before is None) for _ in range(2))
    for rows, confidences in passes.blocks():
        first.add(rows, confidences)
    passes.reweight(first.calibrate(before=before, besides=besides).p_error)
    best = np.full((len(labels), TOP_CLASSES), NO_ID, dtype=np.int64)
    top = np.zeros((len(labels), TOP_CLASSES), dtype=np.float32)
    for rows, confidences in passes.blocks():
        scores.add(rows, confidences)
        order = np.argsort(-confidences, axis=1, kind="stable")[:, :TOP_CLASSES]
        best[rows, : order.shape[1]] = order
        top[rows, : order.shape[1]] = np.take_along_axis(confidences, order, axis=1)
    return errors_from_top(
        scores.calibrate(before=before, besides=besides),
        labels,
        own=scores.own,
        best=best,
        confidences=top,
        count=count,
    )


def errors_from_confidences(
    confidences: Floats, labels: Labels, *, before: ScoreCalibration | None = None,
    besides: ScoreCalibration | None = None,
) -> LabelErrors:  # fmt: skip
    """Label errors from (N, C) confidences in (N,) labels; arguments as those of `estimate_p_error`."""
    found, model = estimate_p_error(confidences, labels, before=before, besides=besides)
    other, count = found.p_error - found.none, confidences.shape[1]
    best, probabilities = _no_classes(len(labels))
    by_label = np.zeros((count, count))
    for rows in row_slices(len(labels)):
        given, own = labels[rows], np.arange(len(labels[rows]))
        classes = other[rows, None] * model.classes_if_wrong(confidences[rows], given)
        np.add.at(by_label, given, classes)
        classes[own, given] = 1 - found.p_error[rows]
        order = np.argsort(-classes, axis=1, kind="stable")[:, :TOP_CLASSES]
        best[rows, : order.shape[1]] = order
        probabilities[rows, : order.shape[1]] = np.take_along_axis(classes, order, axis=1)
    pairs = tuple((int(i), int(j), float(by_label[i, j])) for i, j in np.argwhere(by_label > 0))
    rates = _rates(found.p_error, labels, count=count)
    return LabelErrors(found, best, probabilities, rates, pairs, confidences[np.arange(len(labels)), labels])


def errors_from_top(
    found: ScoreCalibration, labels: Labels, *, own: Floats, best: Ids, confidences: Floats, count: int
) -> LabelErrors:
    """Label errors where N x C confidences are too many to hold: the class of a wrong label is the best other one.

    Args:
        found: score of each label, and the probability that it is wrong.
        own: (N,) confidence in each label.
        best, confidences: (N, s) the labels of the highest confidence, best first, `NO_ID` for none.
        count: C.
    """
    p_error, other = found.p_error, found.p_error - found.none
    is_other = (best != NO_ID) & (best != labels[:, None])
    left = np.maximum(1 - own, np.finfo(np.float32).tiny)[:, None]
    others = np.where(is_other, other[:, None] * np.minimum(confidences / left, 1), -1.0)
    all_labels = np.concatenate([np.where(is_other, best, NO_ID), labels[:, None]], axis=1)
    everything = np.concatenate([others, 1 - p_error[:, None]], axis=1)
    order = np.argsort(-everything, axis=1, kind="stable")[:, :TOP_CLASSES]
    classes, probabilities = _no_classes(len(labels))
    classes[:, : order.shape[1]] = np.take_along_axis(all_labels, order, axis=1)
    probabilities[:, : order.shape[1]] = np.take_along_axis(everything, order, axis=1).clip(min=0)
    first = np.where(is_other.any(axis=1), best[np.arange(len(best)), is_other.argmax(axis=1)], NO_ID)
    pairs, place = np.unique(np.stack([labels, first]), axis=1, return_inverse=True)
    amounts = np.bincount(place.ravel(), weights=other)
    named = zip(*pairs.tolist(), amounts.tolist(), strict=True)
    kept = tuple((i, j, n) for i, j, n in named if j != NO_ID and n > 0)
    rates = _rates(p_error, labels, count=count)
    return LabelErrors(found, classes, probabilities, rates, kept, own)


def _rates(p_error: Doubles, labels: Labels, *, count: int) -> Doubles:
    images = np.bincount(labels, minlength=count)
    sums = np.bincount(labels, weights=p_error, minlength=count)
    rates: Doubles = np.divide(sums, images, out=np.zeros(count), where=images > 0)
    return rates


def _no_classes(count: int) -> tuple[Ids, Doubles]:
    return np.full((count, TOP_CLASSES), NO_ID, dtype=np.int64), np.zeros((count, TOP_CLASSES))
