"""Simulated label noise, which calibrates the scores of labels to probabilities of a label error.

The confidences of an image are computed without the image, so they do not depend on its label. An image with a
simulated wrong label therefore costs no second computation: only its score is read. (The target-decoy method estimates
false discoveries in proteomics in the same way: Elias and Gygi, 2007.)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from index.arrays import Doubles, Floats, Labels
from index.labels.noise_model import NoiseModel, fit_noise_model

SIMULATED = 3  # wrong labels for each image, or more where there are few images
_LEAST_SIMULATED = 20_000
_MOST_EACH = 64
# The noise rate is read from the lowest tenth to nine tenths of the simulated scores; from more where there are few
# images, because hardly any of their wrong labels score as low as that tenth.
_SHARES = (0.1, 0.9)
_MANY, _MOST_OF_FEW = 60, 0.6
_ROUNDS = 3
# Up to here the bound is the noise rate, from there on it moves halfway to that of the noise model: the bound is too
# low where label errors look like right labels, the model's rate too high where there are hardly any.
_BOUND_ALONE, _HALFWAY = 0.05, 0.15
# Share, among labels that the confidences do not favour, of right labels that score as low as any: as in clean data.
_ODD = 0.01
_LEAST = 1e-6

_ROWS_AT_ONCE = 4096


def count_simulated(images: int) -> int:
    """Number of wrong labels to simulate for each image."""
    return int(np.clip(-(-_LEAST_SIMULATED // max(images, 1)), SIMULATED, _MOST_EACH))


def simulate_labels(labels: Labels, transitions: Doubles, *, each: int) -> Labels:
    """(N, each) wrong labels for (N,) labels, drawn from (C, C) transition probabilities with a fixed seed."""
    generator, found = np.random.default_rng(0), np.empty((len(labels), each), dtype=np.int64)
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        summed = np.cumsum(transitions[label])
        drawn = generator.random((len(rows), each)) * summed[-1]
        found[rows] = np.searchsorted(summed, drawn, side="right").clip(max=len(summed) - 1)
    return found


def score_labels(confidences: Floats, labels: Labels) -> Doubles:
    """Scores of labels: log p(y) - 1/4 log of the highest p(c) over c other than y.

    Args:
        confidences: (B, C) float32.
        labels: (B, k) int64.

    Returns:
        (B, k); the lower, the more probably wrong.
    """
    own = np.take_along_axis(confidences, labels, axis=1)
    two = np.partition(confidences, -2, axis=1)[:, -2:]
    other = np.where(own >= two[:, 1:], two[:, :1], two[:, 1:])
    return np.asarray(
        np.log(np.maximum(own, _LEAST, dtype=np.float64)) - np.log(np.maximum(other, _LEAST, dtype=np.float64)) / 4
    )


def calibrate_scores(
    given: Doubles, simulated: Doubles, *, missed: float = 0.0, model_rate: float | None = None
) -> Doubles:
    """The probability that each label is wrong, from scores of given and of simulated wrong labels.

    With f the density of given scores, g that of simulated ones (weighted by the probability that the given label of
    their image is right) and e the noise rate, f is a mixture that contains e g, so

        p_error(s) = e g(s) / f(s),     e <= min over t of F(t) / G(t)

    g / f is fitted by isotonic regression; a share o / (e + o) of the result counts as right, with o = `_ODD` times
    `missed`. It is 0 where no given label scores as low as the lowest tenth of the simulated ones. People's own errors
    on ambiguous images score higher than simulated ones and are under-estimated.

    Args:
        given: (N,) scores of `score_labels`.
        simulated: (N, k) scores of simulated wrong labels.
        missed: share of the given labels that the confidences do not favour.
        model_rate: noise rate of the noise model, towards which the bound is moved.

    Returns:
        (N,) float64 in 0..1; it never rises with the score.
    """
    from scipy.optimize import isotonic_regression  # takes long to load, and is not of the base

    count, each = simulated.shape
    order = np.argsort(np.concatenate([given, simulated.ravel()]), kind="stable")
    is_simulated = order >= count
    _, place = np.unique(np.concatenate([given, simulated.ravel()])[order], return_inverse=True)
    image_of = np.repeat(np.arange(count), each)
    p_error = np.zeros(count)
    for _ in range(_ROUNDS):
        weights = (1 - p_error).clip(_LEAST)[image_of]
        weights *= count / weights.sum()
        counts = np.concatenate([np.ones(count), weights])[order]
        amounts: Doubles = np.bincount(place, weights=counts).astype(np.float64)
        simulated_amounts: Doubles = np.bincount(place, weights=counts * is_simulated).astype(np.float64)
        rate = _noise_rate(simulated_amounts, amounts - simulated_amounts, model_rate=model_rate)
        parts = isotonic_regression(simulated_amounts / amounts, weights=amounts, increasing=False).x
        ratio = parts / np.maximum(1 - parts, _LEAST)
        probability = np.minimum(1, rate * ratio)[place]
        p_error[order[~is_simulated]] = probability[~is_simulated]
    return p_error * rate / max(rate + _ODD * missed, _LEAST)


def _noise_rate(simulated: Doubles, given: Doubles, *, model_rate: float | None) -> float:
    """The noise rate, from (S,) amounts of simulated and of given labels at rising scores, N of either."""
    simulated_below, given_below = np.cumsum(simulated), np.cumsum(given)
    least = float(np.clip(_MANY / given_below[-1], _SHARES[0], _MOST_OF_FEW))
    shares = np.linspace(least, _SHARES[1], 33)
    places = np.searchsorted(simulated_below, shares * simulated_below[-1]).clip(max=len(simulated) - 1)
    below = given_below[places]
    below = below + np.sqrt(below) / 2  # as the lowest of many that vary at random is too low
    bound = min(1.0, float((below / np.maximum(simulated_below[places], _LEAST)).min()))
    if model_rate is None or bound <= 0:
        return bound
    weight = float(np.clip((bound - _BOUND_ALONE) / (_HALFWAY - _BOUND_ALONE), 0, 1)) / 2
    return float(bound ** (1 - weight) * model_rate**weight)


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """Scores of labels with their probabilities of a label error, from before any decision.

    Once people have decided the labels of the lowest scores, the others cannot be calibrated by simulated noise: the
    lowest scores are missing. (On groceries and cars a new calibration then found half of the wrong labels or none;
    the one from before still held.)

    Attributes:
        scores: (N,) of `score_labels`.
        p_error: (N,) probabilities, which never rise with the score.
    """

    scores: Doubles
    p_error: Doubles

    def probability_at(self, scores: Doubles) -> Doubles:
        """(N,) probabilities at other scores, by interpolation."""
        order = np.argsort(self.scores)
        return np.interp(scores, self.scores[order], self.p_error[order])


def estimate_p_error(
    confidences: Floats, labels: Labels, *, before: ScoreCalibration | None = None
) -> tuple[ScoreCalibration, NoiseModel]:
    """Score of each label with the probability that it is wrong, and the noise model of the simulation.

    Args:
        confidences: (N, C) float32 in 0..1, rows sum to 1; of each image from other images.
        labels: (N,) int64 in 0..C-1.
        before: calibration from before any decision; None simulates label noise to calibrate.
    """
    model = fit_noise_model(confidences, labels)
    if before is not None:
        scores = np.concatenate(
            [score_labels(confidences[rows], labels[rows, None])[:, 0] for rows in row_slices(len(labels))]
        )
        return ScoreCalibration(scores, before.probability_at(scores)), model
    wrong_labels = simulate_labels(labels, model.transitions, each=count_simulated(len(labels)))
    given, simulated, missed = np.empty(len(labels)), np.empty(wrong_labels.shape), 0
    for rows in row_slices(len(labels)):
        given[rows] = score_labels(confidences[rows], labels[rows, None])[:, 0]
        simulated[rows] = score_labels(confidences[rows], wrong_labels[rows])
        missed += int((confidences[rows].argmax(axis=1) != labels[rows]).sum())
    p_error = calibrate_scores(given, simulated, missed=missed / len(labels), model_rate=model.noise_rate)
    return ScoreCalibration(given, p_error), model


def row_slices(count: int) -> Iterator[slice]:
    """Slices of at most `_ROWS_AT_ONCE` rows."""
    return (slice(start, start + _ROWS_AT_ONCE) for start in range(0, count, _ROWS_AT_ONCE))
