"""What any estimate of wrong labels has to keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.suspicion import estimate_noise, estimate_wrong


def _random(seed: int, *, images: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.random((images, classes), dtype=np.float32), random.integers(0, classes, size=images)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), images=st.integers(1, 40), classes=st.integers(2, 6))
def test_chances_and_shares_are_in_range_and_shares_sum_to_one(seed: int, images: int, classes: int) -> None:
    confidences, labels = _random(seed, images=images, classes=classes)
    before = confidences.copy()
    wrong, noise = estimate_wrong(confidences, labels), estimate_noise(confidences, labels)
    assert wrong.dtype == noise.dtype == np.float64
    assert wrong.shape == (images,)
    assert ((wrong >= 0) & (wrong <= 1)).all()
    assert noise.shape == (classes, classes)
    assert ((noise >= 0) & (noise <= 1)).all()
    np.testing.assert_allclose(noise.sum(axis=1), 1)
    np.testing.assert_array_equal(confidences, before)


def test_confidences_without_a_doubt_give_no_noise() -> None:
    labels = np.repeat(np.arange(4), 10)
    confidences = np.eye(4, dtype=np.float32)[labels]
    assert estimate_wrong(confidences, labels).max() < 0.01
    np.testing.assert_allclose(estimate_noise(confidences, labels), np.eye(4), atol=0.01)


def test_planted_mistakes_are_the_most_suspicious_and_are_counted_for_their_pair() -> None:
    shown = np.repeat(np.arange(3), 40)
    labels = shown.copy()
    labels[:10] = 1  # of the images labelled 1, a fifth show 0
    confidences = np.full((120, 3), 0.05, dtype=np.float32)
    confidences[np.arange(120), shown] = 0.9
    wrong, noise = estimate_wrong(confidences, labels), estimate_noise(confidences, labels)
    assert wrong[:10].min() > 0.5
    assert wrong[10:].max() < 0.5
    assert noise[1, 0] == pytest.approx(0.2, abs=0.05)
    assert noise[0, 0] == pytest.approx(1, abs=0.05)


def test_a_class_without_images_and_confidences_of_nothing_are_survived() -> None:
    confidences, labels = np.zeros((4, 3), dtype=np.float32), np.array([0, 0, 1, 1])
    assert np.isfinite(estimate_wrong(confidences, labels)).all()
    np.testing.assert_allclose(estimate_noise(confidences, labels).sum(axis=1), 1)
