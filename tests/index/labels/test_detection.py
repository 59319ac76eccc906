"""What any estimate of wrong labels has to keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import NO_ID
from index.labels.label_errors import LabelErrors, errors_from_confidences, errors_from_top
from index.labels.simulated_noise import ErrorCalibration, count_simulated, estimate_p_error, score_labels
from index.labels.suggestions import SuggestionScores


def _find(confidences: np.ndarray, labels: np.ndarray) -> LabelErrors:
    """Label errors by these confidences alone, where no image shows none of the classes."""
    found, model = estimate_p_error(confidences, labels)
    suggestions = SuggestionScores(labels, count=confidences.shape[1], each=count_simulated(len(labels)))
    suggestions.add(np.arange(len(labels)), confidences, confidences[:0], np.arange(0))
    calibration = suggestions.calibrate(found, found.p_error, found=found)
    return errors_from_confidences(confidences, labels, found=calibration, model=model, suggestions=suggestions)


def _noise(found: LabelErrors, labels: np.ndarray) -> np.ndarray:
    """(C, C): of the images labelled i, the share that show j."""
    counts, noise = np.bincount(labels, minlength=len(found.rates)), np.diag(1 - found.rates)
    for label, shown, images in found.pairs:
        noise[label, shown] = images / counts[label]
    return noise


def _confident(shown: np.ndarray, *, classes: int) -> np.ndarray:
    """(N, C) float32: nine tenths for what an image shows, and the rest spread over the other classes."""
    confidences = np.full((len(shown), classes), 0.1 / (classes - 1), dtype=np.float32)
    confidences[np.arange(len(shown)), shown] = 0.9
    return confidences


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), images=st.integers(1, 60), classes=st.integers(2, 6))
def test_chances_are_consistent_and_in_range(seed: int, images: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    confidences = random.dirichlet(np.full(classes, 0.5), size=images).astype(np.float32)
    labels, times = (
        random.integers(0, classes, size=images),
        random.integers(1, 5, size=images),
    )  # duplicates have the same confidences
    confidences, labels = confidences.repeat(times, axis=0), labels.repeat(times)
    before = confidences.copy()
    found = _find(confidences, labels)
    np.testing.assert_array_equal(confidences, before)
    assert found.p_error.shape == labels.shape
    assert ((found.p_error >= 0) & (found.p_error <= 1)).all()
    noise, none = _noise(found, labels), np.bincount(labels, weights=found.p_no_class, minlength=classes)
    assert ((noise >= 0) & (noise <= 1)).all()
    assert (noise.sum(axis=1) + none / np.bincount(labels, minlength=classes).clip(min=1) <= 1 + 1e-9).all()
    assert found.p_error.sum() == pytest.approx(np.bincount(labels, minlength=classes) @ found.rates, abs=1e-6)
    assert (np.diff(found.probabilities, axis=1) <= 1e-12).all()
    assert (found.probabilities.sum(axis=1) + found.p_no_class <= 1 + 1e-9).all()
    assert (found.p_suggested + found.p_no_class <= found.p_error + 1e-9).all()
    assert (found.suggested != labels).all()
    others = np.where(found.best == labels[:, None], 0, found.probabilities)
    assert (others <= found.p_suggested[:, None]).all()
    of_label = (found.best == labels[:, None]).any(axis=1)
    own = np.where(found.best == labels[:, None], found.probabilities, 0).sum(axis=1)
    np.testing.assert_allclose(own[of_label], 1 - found.p_error[of_label])
    by_score = found.p_error[np.argsort(score_labels(confidences, labels[:, None])[:, 0])]
    assert (np.diff(by_score) <= 1e-12).all()  # never more suspicious than one that stands worse


def test_a_class_of_few_images_does_not_swallow_what_fits_nowhere() -> None:
    random = np.random.default_rng(0)
    labels = np.concatenate([np.repeat(np.arange(3), 600), np.full(200, 3), np.full(7, 4)])
    odd = labels >= 3  # they look like anything: nobody knows the small class, and hardly anybody class 3
    confidences = _confident(labels, classes=5)
    confidences[odd] = random.dirichlet([3, 3, 3, 0.3, 0.01], size=odd.sum())
    found = _find(confidences, labels)
    assert _noise(found, labels)[3, 4] < 0.1
    assert found.rates[3] > 0.4


def test_a_class_without_images_and_confidences_that_say_nothing_are_survived() -> None:
    labels = np.array([0, 0, 1, 1])
    found = _find(_confident(labels, classes=3), labels)
    np.testing.assert_array_equal(_noise(found, labels)[2], [0, 0, 1])
    assert found.p_error.max() < 0.1
    [same] = set(_find(np.full((4, 2), 0.5, dtype=np.float32), labels).p_error)
    assert np.isfinite(same)


def test_without_all_confidences_the_class_of_a_wrong_label_is_the_suggested_one() -> None:
    wrong = np.array([0.9, 0.2, 0.5])
    labels, own = np.array([0, 3, 0]), np.array([0.1, 0.7, 0.0], dtype=np.float32)
    best = np.array([[2, 0, NO_ID], [3, 1, NO_ID], [NO_ID, NO_ID, NO_ID]])
    confidences = np.array([[0.8, 0.1, 0], [0.7, 0.3, 0], [0, 0, 0]], dtype=np.float32)
    suggestions = SuggestionScores(labels, count=4, each=0)
    suggestions.suggested[:], suggestions.confidences[:] = [2, 1, 1], [1.0, 1.0, 0.0]
    by_suggestion = np.array([0.0, 1.0]), np.array([0.0, 0.8]), np.array([0.6, 0.0])
    calibration = ErrorCalibration(-wrong, wrong, own, np.array([0.0, 0.0, 0.1]), *by_suggestion)
    found = errors_from_top(
        labels, own=own, best=best, confidences=confidences, count=4, found=calibration, suggestions=suggestions
    )
    np.testing.assert_allclose(found.p_suggested, [0.72, 0.16, 0.0])
    np.testing.assert_allclose(found.p_no_class, [0.0, 0.0, 0.3])
    assert found.best[:2, :2].tolist() == [[2, 0], [3, 1]]
    np.testing.assert_allclose(found.probabilities[:, :2], [[0.72, 0.1], [0.8, 0.16], [0.5, 0]], atol=1e-6)
    assert found.pairs == ((0, 1, pytest.approx(0.2)), (0, 2, pytest.approx(0.9)), (3, 1, pytest.approx(0.2)))
    np.testing.assert_allclose(found.rates, [0.7, 0, 0, 0.2])
