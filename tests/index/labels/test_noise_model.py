"""The fit of model: what was done to labels is found again, and its likelihood is the equation's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.labels.label_errors import apply_decisions_to_p_error
from index.labels.noise_model import LabelPrior, NoiseModel, fit_frequency_model, fit_noise_model

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


@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0, 1), st.floats(0.5, 8))
def test_the_posterior_is_the_equation(seed: int, classes: int, rate: float, power: float) -> None:
    random = np.random.default_rng(seed)
    confidences = random.dirichlet(np.full(classes, 0.5), size=7).astype(np.float32)
    labels = random.integers(0, classes, size=7)
    transitions = random.random((classes, classes))
    np.fill_diagonal(transitions, 0)
    transitions /= transitions.sum(axis=1, keepdims=True)
    found = NoiseModel(rate, power, transitions).posterior(confidences, labels)
    for row, (shown, label) in enumerate(zip(confidences, labels.tolist(), strict=True)):
        fits = [
            max(float(p), 1e-7) ** power * ((1 - rate) * (k == label) + rate * transitions[k, label])
            for k, p in enumerate(shown)
        ]
        np.testing.assert_allclose(found[row], [fit / sum(fits) for fit in fits], rtol=1e-9, atol=1e-12)
    order = random.permutation(classes)  # permuted classes permute the posterior
    inverse = np.argsort(order)
    permuted = NoiseModel(rate, power, transitions[np.ix_(order, order)])
    np.testing.assert_allclose(permuted.posterior(confidences[:, order], inverse[labels]), found[:, order], atol=1e-12)


def test_posteriors_know_the_true_class_better_than_labels_and_confidences() -> None:
    confidences, labels, right = _plant(share=0.4, alike=False)
    model = fit_noise_model(confidences, labels)
    posterior, rows = model.posterior(confidences, labels), np.arange(COUNT)
    of_labels, of_features = (labels == right).mean(), (confidences.argmax(axis=1) == right).mean()
    assert (posterior.argmax(axis=1) == right).mean() > max(of_labels, of_features) + 0.003
    own = posterior[rows, labels]
    for low, high in ((0.0, 0.2), (0.8, 1.01)):  # calibrated
        some = (low <= own) & (own < high)
        assert own[some].mean() == pytest.approx((labels == right)[some].mean(), abs=0.03)


def test_wrong_labels_of_very_many_classes_are_drawn_by_frequency() -> None:
    confidences, labels, right = _plant(share=0.3, alike=False)
    model = fit_frequency_model(confidences, labels, count=CLASSES)
    np.testing.assert_allclose(model.transitions, np.tile(np.bincount(labels) / COUNT, (CLASSES, 1)))
    assert model.noise_rate == pytest.approx(0.3 * CLASSES / (CLASSES - 1), abs=0.04)  # the own label is drawn too
    assert (model.posterior(confidences, labels).argmax(axis=1) == right).mean() > 0.97


def _draw_model(seed: int, *, classes: int, rate: float, count: int = 8) -> tuple[NoiseModel, np.ndarray, np.ndarray]:
    """A noise model at random, (count, C) confidences and labels."""
    random = np.random.default_rng(seed)
    transitions = random.random((classes, classes))
    np.fill_diagonal(transitions, 0)
    transitions /= transitions.sum(axis=1, keepdims=True)
    confidences = random.dirichlet(np.ones(classes), size=count).astype(np.float32)
    return NoiseModel(rate, 1.5, transitions), confidences, random.integers(0, classes, count)


@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0, 1), st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_the_posterior_of_labels_that_somebody_set_is_the_equation(
    seed: int, classes: int, rate: float, p_right: list[float]
) -> None:
    model, confidences, labels = _draw_model(seed, classes=classes, rate=rate)
    before = np.random.default_rng(seed + 1).integers(0, classes, len(labels))
    known = np.array([np.nan, *p_right[1:]])
    found = model.posterior(confidences, labels, LabelPrior(known, before))
    np.testing.assert_allclose(found[0], model.posterior(confidences, labels)[0], atol=1e-12)
    for row, (y, z, r) in enumerate(zip(labels.tolist(), before.tolist(), p_right, strict=True)):
        if row == 0:
            continue
        fits = []
        for k in range(classes):
            wrong = (1 - r) * model.transitions[k, y]
            if y != z:
                wrong = (1 - r) * ((1 - rate) * (k == z) + rate * model.transitions[k, z])
            fits.append(max(float(confidences[row, k]), 1e-7) ** model.power * (r * (k == y) + wrong))
        if sum(fits) > 1e-200:
            np.testing.assert_allclose(found[row], [fit / sum(fits) for fit in fits], atol=1e-9)


def test_a_prior_of_some_images_is_numbered_by_their_classes_and_forgets_others() -> None:
    prior = LabelPrior(np.array([0.1, 0.2, 0.3, 0.4]), np.array([5, 7, 9, 5]))
    taken = prior.take(np.array([0, 1, 2]), classes=np.array([5, 9]), labels=np.array([1, 0, 1]))
    assert taken.p_right.tolist() == [0.1, 0.2, 0.3]
    assert taken.before.tolist() == [0, 0, 1]  # no image of the second one's label is left: its own
    assert prior.at(np.array([3, 1])).before.tolist() == [5, 7]


@given(st.lists(st.tuples(st.floats(0, 1), st.one_of(st.just(float("nan")), st.floats(0, 1))), min_size=1, max_size=20))
def test_decisions_are_believed_as_far_as_who_made_them_looked(rows: list[tuple[float, float]]) -> None:
    p_error, p_right = np.array(rows).T
    found = apply_decisions_to_p_error(p_error, p_right)
    for error, right, believed in zip(p_error, p_right, found, strict=True):
        if np.isnan(right):
            assert believed == error
        else:
            assert believed == (0 if right == 1 else max(error, 1 - right))
    np.testing.assert_array_equal(apply_decisions_to_p_error(p_error, None), p_error)
