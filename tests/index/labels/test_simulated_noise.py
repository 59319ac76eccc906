"""ScoreCalibration from simulated mistakes: what they are where the truth is known, and where there is none to find."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.labels.simulated_noise import calibrate_scores, count_simulated, score_labels, simulate_labels


def _scores(*, share: float, overlap: float, count: int = 6000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of labels a share of which is wrong, of simulated mistakes, and which are wrong."""
    random = np.random.default_rng(0)
    wrong = random.random(count) < share
    given_scores = random.normal(np.where(wrong, -4.0, 0.0), 1 + overlap)
    return given_scores, random.normal(-4.0, 1 + overlap, size=(count, 3)), wrong


@pytest.mark.parametrize(("share", "overlap"), [(0.02, 0.0), (0.1, 1.0), (0.5, 1.0)])
def test_a_chance_is_how_often_it_is_so(share: float, overlap: float) -> None:
    scores, simulated, wrong = _scores(share=share, overlap=overlap)
    chances = calibrate_scores(scores, simulated)
    assert 0.85 * share - 0.005 <= chances.mean() <= share + 0.02  # a bound: the lowest of many
    for low in np.arange(0, 1, 0.2):
        some = (chances >= low) & (chances < low + 0.2)
        if some.sum() > 200:
            assert chances[some].mean() - 0.12 < wrong[some].mean() < chances[some].mean() + 0.25


def test_two_right_labels_in_a_thousand_that_look_wrong_are_not_called_so() -> None:
    scores, simulated, wrong = _scores(share=0.002, overlap=0.0)
    assert wrong.sum() > 5
    assert calibrate_scores(scores, simulated, missed=0.2).max() < 0.6


def test_a_likelier_share_moves_a_large_bound_and_no_small_one() -> None:
    scores, simulated, _ = _scores(share=0.3, overlap=2.0)
    likelier = calibrate_scores(scores, simulated, model_rate=0.5)
    assert likelier.mean() > calibrate_scores(scores, simulated).mean() + 0.03
    scores, simulated, _ = _scores(share=0.02, overlap=0.0)
    alone = calibrate_scores(scores, simulated)
    np.testing.assert_array_equal(calibrate_scores(scores, simulated, model_rate=0.5), alone)


@settings(deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 30), each=st.integers(1, 4))
def test_chances_are_in_range_and_never_rise_with_the_score(seed: int, count: int, each: int) -> None:
    random = np.random.default_rng(seed)
    scores, simulated = (random.integers(-3, 3, count) * 1.0, random.integers(-5, 2, (count, each)) * 1.0)
    chances = calibrate_scores(scores, simulated)
    assert ((chances >= 0) & (chances <= 1)).all()
    assert (np.diff(chances[np.argsort(scores, kind="stable")]) <= 1e-12).all()


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
