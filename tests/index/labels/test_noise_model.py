"""The fit of model: what was done to labels is found again, and its likelihood is the equation's."""

from __future__ import annotations

import numpy as np
import pytest

from index.labels.noise_model import fit_noise_model

COUNT, CLASSES = 4000, 8


def _plant(*, share: float, alike: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidences in what is shown, the labels given, and those that are right; classes 2 k and 2 k + 1 look alike."""
    random = np.random.default_rng(seed)
    right = random.integers(0, CLASSES, size=COUNT)
    logits = random.normal(size=(COUNT, CLASSES))
    logits[np.arange(COUNT), right] += 5
    logits[np.arange(COUNT), right ^ 1] += 2
    confidences = np.exp(logits)
    confidences /= confidences.sum(axis=1, keepdims=True)
    other = right ^ 1 if alike else (right + random.integers(1, CLASSES, size=COUNT)) % CLASSES
    return confidences.astype(np.float32), np.where(random.random(COUNT) < share, other, right), right


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_the_share_of_labels_that_are_wrong_is_found(share: float) -> None:
    confidences, labels, _ = _plant(share=share, alike=False)
    assert fit_noise_model(confidences, labels).noise_rate == pytest.approx(share, abs=0.03)


def test_labels_that_are_mixed_up_are_found_and_others_are_not_taken_for_such() -> None:
    confidences, labels, _ = _plant(share=0.3, alike=True)
    instead = fit_noise_model(confidences, labels).transitions
    assert all(instead[c, c ^ 1] > 0.6 for c in range(CLASSES))
    confidences, labels, _ = _plant(share=0.3, alike=False)
    assert fit_noise_model(confidences, labels).transitions.max() < 0.3


def test_transitions_are_probabilities_and_no_error_gives_the_label_itself() -> None:
    confidences, labels, _ = _plant(share=0.1, alike=True)
    model = fit_noise_model(confidences, labels)
    np.testing.assert_allclose(model.transitions.sum(axis=1), 1)
    np.testing.assert_array_equal(model.transitions.diagonal(), 0)
    np.testing.assert_allclose(model.classes(confidences).sum(axis=1), 1)
    shown = model.classes_if_wrong(confidences[:50], labels[:50])
    np.testing.assert_allclose(shown.sum(axis=1), 1)
    np.testing.assert_array_equal(shown[np.arange(50), labels[:50]], 0)


def test_what_an_image_shows_if_its_label_is_wrong_is_by_bayes_what_fits_both() -> None:
    confidences, labels, _ = _plant(share=0.3, alike=True)
    model = fit_noise_model(confidences, labels)
    for row in range(5):
        sharpened = [float(p) ** model.power for p in confidences[row]]
        fits = [s * model.transitions[c, labels[row]] for c, s in enumerate(sharpened)]
        expected = [fit / sum(fits) for fit in fits]
        np.testing.assert_allclose(model.classes_if_wrong(confidences[[row]], labels[[row]])[0], expected)
