"""ScoreCalibration from simulated mistakes: what they are where the truth is known, and where there is none to find."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.labels.simulated_noise import (
    LabelScores,
    calibrate_scores,
    count_simulated,
    estimate_p_error,
    score_labels,
    simulate_labels,
)


def _calibrate(scores: np.ndarray, simulated: np.ndarray, **given: float) -> np.ndarray:
    """Probabilities of errors where every image shows some label."""
    alike = np.zeros(len(scores), dtype=np.float32)
    thirds = np.zeros((3, 2, len(scores)))
    return calibrate_scores(scores, simulated, simulated, thirds=thirds, highest=alike, **given)[0]


def _scores(*, share: float, overlap: float, count: int = 6000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of labels a share of which is wrong, of simulated mistakes, and which are wrong."""
    random = np.random.default_rng(0)
    wrong = random.random(count) < share
    given_scores = random.normal(np.where(wrong, -4.0, 0.0), 1 + overlap)
    return given_scores, random.normal(-4.0, 1 + overlap, size=(count, 3)), wrong


@pytest.mark.parametrize(("share", "overlap"), [(0.02, 0.0), (0.1, 1.0), (0.5, 1.0)])
def test_a_chance_is_how_often_it_is_so(share: float, overlap: float) -> None:
    scores, simulated, wrong = _scores(share=share, overlap=overlap)
    chances = _calibrate(scores, simulated)
    assert 0.85 * share - 0.005 <= chances.mean() <= share + 0.02  # a bound: the lowest of many
    for low in np.arange(0, 1, 0.2):
        some = (chances >= low) & (chances < low + 0.2)
        if some.sum() > 200:
            assert chances[some].mean() - 0.12 < wrong[some].mean() < chances[some].mean() + 0.25


def test_two_right_labels_in_a_thousand_that_look_wrong_are_not_called_so() -> None:
    scores, simulated, wrong = _scores(share=0.002, overlap=0.0)
    assert wrong.sum() > 5
    assert _calibrate(scores, simulated, missed=0.2).max() < 0.6


def test_a_likelier_share_moves_a_large_bound_and_no_small_one() -> None:
    scores, simulated, _ = _scores(share=0.3, overlap=2.0)
    likelier = _calibrate(scores, simulated, model_rate=0.5)
    assert likelier.mean() > _calibrate(scores, simulated).mean() + 0.03
    scores, simulated, _ = _scores(share=0.02, overlap=0.0)
    alone = _calibrate(scores, simulated)
    np.testing.assert_array_equal(_calibrate(scores, simulated, model_rate=0.5), alone)


@settings(deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 30), each=st.integers(1, 4))
def test_chances_are_in_range_and_never_rise_with_the_score(seed: int, count: int, each: int) -> None:
    random = np.random.default_rng(seed)
    scores, simulated = (random.integers(-3, 3, count) * 1.0, random.integers(-5, 2, (count, each)) * 1.0)
    chances = _calibrate(scores, simulated)
    assert ((chances >= 0) & (chances <= 1)).all()
    assert (np.diff(chances[np.argsort(scores, kind="stable")]) <= 1e-12).all()


def _confidences(*, classes: int, junk: float, wrong: float, count: int = 3000) -> tuple[np.ndarray, ...]:
    """Confidences, labels, and which images show no class (no confidence is high) and which show another class."""
    random = np.random.default_rng(0)
    shown, kind = random.integers(classes, size=count), random.random(count)
    is_junk, is_wrong = kind < junk, (kind >= junk) & (kind < junk + wrong)
    logits = random.normal(0, 1, size=(count, classes))
    logits[~is_junk, shown[~is_junk]] += random.normal(6, 1.5, size=count)[~is_junk]
    moved = is_junk | is_wrong
    labels = np.where(moved, (shown + random.integers(1, classes, size=count)) % classes, shown)
    confidences = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return confidences.astype(np.float32), labels, is_junk, is_wrong


@pytest.mark.parametrize(("junk", "wrong"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.2), (0.15, 0.15)])
@pytest.mark.parametrize("classes", [5, 40])
def test_images_of_no_class_are_found_and_told_from_wrong_labels(classes: int, junk: float, wrong: float) -> None:
    confidences, labels, is_junk, is_wrong = _confidences(classes=classes, junk=junk, wrong=wrong)
    found, _ = estimate_p_error(confidences, labels)
    assert found.p_error.mean() == pytest.approx(is_junk.mean() + is_wrong.mean(), abs=0.05)
    assert found.p_no_class.mean() == pytest.approx(is_junk.mean(), abs=0.06)  # one standard error less
    likely = found.p_error >= 0.5
    for kind, says_none in ((is_junk, True), (is_wrong, False)):
        if kind.any():
            assert likely[kind].mean() > 0.8
            assert ((found.none_if_wrong > 0.5) == says_none)[kind].mean() > 0.8
    assert likely[~is_junk & ~is_wrong].mean() < 0.03


@pytest.mark.parametrize(
    ("classes", "apart", "first"),
    [(2, 1.4, 0.5), (2, 1.4, 0.8), (3, 1.5, 1 / 3), (6, 2, 0.7), (20, 1.2, 0.05), (20, 2, 0.05)],
)
def test_right_labels_of_ambiguous_images_are_not_called_random(classes: int, apart: float, first: float) -> None:
    random = np.random.default_rng(0)
    shares = np.array([first, *[(1 - first) / (classes - 1)] * (classes - 1)])
    labels = random.choice(classes, 2000, p=shares)
    images = apart * np.eye(classes)[labels] + random.normal(size=(2000, classes))
    logits = np.log(shares) + apart * images  # of Gaussian classes
    confidences = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found, _ = estimate_p_error(confidences.astype(np.float32), labels)
    assert found.p_no_class.mean() < 0.015
    assert (found.p_error >= 0.5).mean() < 0.015


def test_a_calibration_is_applied_after_decisions_without_another_simulation() -> None:
    confidences, labels, is_junk, _ = _confidences(classes=12, junk=0.2, wrong=0.1)
    before, _ = estimate_p_error(confidences, labels)
    again, _ = estimate_p_error(confidences, labels, before=before)
    np.testing.assert_allclose(again.p_error, before.p_error)
    np.testing.assert_allclose(again.p_no_class, before.p_no_class)
    assert before.p_no_class[is_junk].mean() > 0.5
    by_confidence = before.none_if_wrong[np.argsort(before.highest)]
    assert (np.diff(by_confidence) <= 1e-12).all()
    few = LabelScores.by_frequency(labels, count=12)
    few.add(np.arange(len(labels)), confidences)
    assert few.calibrate().p_no_class[is_junk].mean() > 0.5
    np.testing.assert_array_equal(few.given, before.scores)


def test_confidences_that_know_nothing_of_the_labels_call_no_image_strange() -> None:
    random = np.random.default_rng(0)
    confidences = random.dirichlet(np.ones(10), size=1000).astype(np.float32)
    found, _ = estimate_p_error(confidences, random.integers(10, size=1000))
    assert not found.p_no_class.any()


def test_simulated_labels_follow_the_transitions_and_are_always_the_same() -> None:
    instead = np.array([[0, 0.75, 0.25], [1, 0, 0], [0.5, 0.5, 0]])
    labels = np.repeat([0, 1, 2], 2000)
    drawn = simulate_labels(labels, instead, each=3)
    for label in range(3):
        shares = np.bincount(drawn[labels == label].ravel(), minlength=3) / 6000
        np.testing.assert_allclose(shares, instead[label], atol=0.03)
    np.testing.assert_array_equal(drawn, simulate_labels(labels, instead, each=3))
    assert (count_simulated(10), count_simulated(1_000_000)) == (64, 3)


def test_a_score_is_the_label_against_the_best_other_one() -> None:
    confidences = np.array([[0.6, 0.3, 0.1]], dtype=np.float32)
    found = score_labels(confidences, np.array([[0, 1, 2]]))[0]
    expected = [np.log(0.6) - np.log(0.3) / 4, np.log(0.3) - np.log(0.6) / 4, np.log(0.1) - np.log(0.6) / 4]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
