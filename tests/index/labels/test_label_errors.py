"""Label-error detection: weights of the second pass, what it finds, and the same result in blocks."""

import numpy as np
import pytest

from index.arrays import NO_ID
from index.labels.gaussian_classes import GaussianClasses
from index.labels.label_errors import (
    BALANCE,
    RIDGES,
    find_label_errors,
    join_confidences,
    pool_label_errors,
    two_pass_confidences,
)
from index.labels.leave_one_out import LeaveOneOut
from index.labels.simulated_noise import estimate_p_error
from tests.index.vector_sources import VectorSource


def blobs(*, sizes: tuple[int, ...], width: int = 12, spread: float = 1.2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.arange(len(sizes)).repeat(sizes)
    centres = random.normal(size=(len(sizes), width))
    return (centres[labels] + spread * random.normal(size=(len(labels), width))).astype(np.float32), labels


def collect(classes: GaussianClasses, count: int, labels: int) -> np.ndarray:
    """(count, labels) confidences of all rows in their own order."""
    found = np.full((count, labels), np.nan)
    for rows, shares in classes.blocks():
        found[rows] = shares
    return found


def plant(*, share: float = 0.2, count: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Vectors, labels of which a share is wrong, the right ones, and how many there are."""
    vectors, right = VectorSource(width=24).draw(count, seed=3)
    right = np.unique(right, return_inverse=True)[1]
    classes = int(right.max()) + 1
    random = np.random.default_rng(0)
    labels = right.copy()
    wrong = random.permutation(count)[: int(share * count)]
    labels[wrong] = (labels[wrong] + random.integers(1, classes, len(wrong))) % classes
    return vectors, labels, right, classes


def test_both_looks_balance_labels_and_the_second_weighs_by_belief_and_is_averaged_with_the_first() -> None:
    features, labels = blobs(sizes=(40, 10))
    labels[:4] = 1
    rows = np.arange(50)
    shares = np.bincount(labels)[labels] ** (BALANCE - 1)
    look = LeaveOneOut(features, labels, count=2, ridges=RIDGES, weights=shares)
    classes = GaussianClasses(features, labels, count=2, prior=BALANCE, groups=None, tell=lambda _: None)
    regressed = look.confidences(rows)
    first = join_confidences(regressed, collect(classes, 50, 2))
    believed = np.maximum(0.05, 1 - estimate_p_error(first, labels)[0].p_error)
    weights = believed.copy()
    for label in range(2):
        of_label = labels == label
        weights[of_label] *= of_label.sum() ** BALANCE / weights[of_label].sum()
    again = LeaveOneOut(features, labels, count=2, ridges=(look.ridge,), weights=weights).confidences(rows)
    classes.weigh(believed)
    expected = join_confidences((regressed + again) / 2, collect(classes, 50, 2))
    np.testing.assert_allclose(two_pass_confidences(features, labels, count=2), expected, atol=1e-5)


def test_what_two_classifiers_say_is_joined_between_their_mean_and_their_product() -> None:
    one, other = np.array([[0.9, 0.1]], dtype=np.float32), np.array([[0.1, 0.9]], dtype=np.float32)
    np.testing.assert_allclose(join_confidences(one, one), one, atol=1e-6)
    np.testing.assert_allclose(join_confidences(one, other), [[0.5, 0.5]], atol=1e-6)
    sure = np.array([[1.0, 0.0]], dtype=np.float32)
    assert join_confidences(sure, other)[0, 1] == pytest.approx(0.9 / (0.9 + (1 + 0.1**0.5) ** 2), abs=1e-6)


def test_every_pair_of_labels_is_looked_at_up_to_the_number_that_is_given() -> None:
    vectors, labels, _, classes = plant(count=300)
    fewer, all_of_them, more = (
        find_label_errors(vectors, labels, count=classes, most_labels=most).p_error
        for most in (classes - 1, classes, 1 << 14)
    )
    np.testing.assert_array_equal(all_of_them, more)
    assert (fewer != all_of_them).any()


@pytest.mark.parametrize("count", [0, 3])
def test_a_label_without_rows_is_survived(count: int) -> None:
    features, labels = blobs(sizes=(6, count, 6))
    assert np.isfinite(two_pass_confidences(features, labels, count=3)).all()


def test_wrong_labels_rank_above_right_ones_and_what_is_shown_is_named() -> None:
    vectors, labels, right, classes = plant()
    judged = find_label_errors(vectors, labels, count=classes)
    is_wrong = labels != right
    assert (judged.p_error[is_wrong, None] > judged.p_error[~is_wrong]).mean() > 0.9
    first = [judged.others(row, label=int(labels[row]))[0][0] for row in np.flatnonzero(is_wrong)]
    assert (np.array(first) == right[is_wrong]).mean() > 0.7
    assert all(label not in dict(judged.others(row, label=label)) for row, label in enumerate(labels.tolist()))


@pytest.mark.parametrize(("share", "held"), [(0.0, True), (0.1, False), (0.3, True)])
def test_the_share_of_wrong_labels_is_estimated(share: float, held: bool) -> None:
    vectors, labels, _, classes = plant(share=share)
    judged = find_label_errors(vectors, labels, count=classes, most_values=1 << 26 if held else 0)
    assert 0.6 * share < judged.p_error.mean() + 1e-9 < 1.2 * share + 0.02


@pytest.mark.parametrize("held", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_after_decisions_about_the_lowest_scores_the_rest_keeps_its_calibration(held: bool) -> None:
    features, labels, right, count = plant()
    values = {} if held else {"most_values": 0}
    first = find_label_errors(features, labels, count=count, **values)
    seen = np.zeros(len(labels), dtype=bool)
    seen[np.argsort(-first.p_error, kind="stable")[:200]] = True
    now = np.where(seen, right, labels)
    looked = np.where(seen, 1.0, np.nan)
    again = find_label_errors(features, now, count=count, p_right=looked, before=first.calibration, **values)
    left = int((now != right)[~seen].sum())
    assert left > 100
    assert again.p_error[~seen].sum() == pytest.approx(left, rel=0.25)
    afresh = find_label_errors(features, now, count=count, **values)
    assert abs(afresh.p_error[~seen].sum() - left) > abs(again.p_error[~seen].sum() - left)
    wrong, kept = (again.p_error[~seen & is_wrong] for is_wrong in (now != right, now == right))
    assert (wrong[:, None] > kept).mean() > 0.9


@pytest.mark.parametrize("most_values", [1 << 26, 1])
def test_proposed_labels_of_hidden_ones_are_as_often_right_as_their_probabilities_say(most_values: int) -> None:
    vectors, labels, _, classes = plant(share=0.0)
    hidden = np.random.default_rng(1).random(len(labels)) < 0.4
    found = find_label_errors(
        vectors[~hidden], labels[~hidden], count=classes, unlabelled=vectors[hidden], most_values=most_values
    )
    top, is_right = found.p_proposed[:, 0], found.proposed[:, 0] == labels[hidden]
    assert top.mean() == pytest.approx(is_right.mean(), abs=0.05)
    assert is_right.mean() > 3 / classes
    assert (np.diff(found.p_proposed, axis=1) <= 0).all()
    assert found.p_proposed.sum(axis=1).max() <= 1 + 1e-6


def test_pooled_label_errors_are_the_mean_of_both_distributions() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    means = random.normal(size=(6, 16))
    noisy = np.where(random.random(120) < 0.2, random.integers(6, size=120), labels)
    one, other = (
        find_label_errors((means[labels] + spread * random.normal(size=(120, 16))).astype(np.float32), noisy, count=6)
        for spread in (1.0, 2.0)
    )
    pooled = pool_label_errors(one, other, noisy)
    for row in range(120):
        halves: dict[int, float] = {}
        for found in (one, other):
            for label, probability in zip(found.best[row].tolist(), found.probabilities[row].tolist(), strict=True):
                if label != NO_ID:
                    halves[label] = halves.get(label, 0.0) + probability / 2
        others = {label: p for label, p in halves.items() if label != noisy[row]}
        best = max(others.values())
        assert pooled.p_error[row] == pytest.approx((one.p_error[row] + other.p_error[row]) / 2)
        assert pooled.none[row] == pytest.approx((one.none[row] + other.none[row]) / 2)
        assert pooled.p_suggested[row] == pytest.approx(best)
        assert best == 0 or others[int(pooled.suggested[row])] == pytest.approx(best)
        assert pooled.suggested[row] != noisy[row]
        shown = [
            p
            for label, p in zip(pooled.best[row].tolist(), pooled.probabilities[row].tolist(), strict=True)
            if label != NO_ID
        ]
        assert shown == pytest.approx(sorted(halves.values(), reverse=True)[: len(shown)])
    both = {(label, shown): images for label, shown, images in pooled.pairs}
    assert sum(both.values()) == pytest.approx(sum(n for found in (one, other) for *_, n in found.pairs) / 2)
