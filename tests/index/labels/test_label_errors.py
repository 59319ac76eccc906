"""Gaussian classes against densities written down in a loop; label-error detection: weights, findings, and blocks."""

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
    second_pass,
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
    for rows, fitted in classes.blocks():
        found[rows] = classes.confidences(rows, fitted)
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
    passes = second_pass(features, labels, count=2)
    np.testing.assert_allclose(passes.hold(passes.blocks()), expected, atol=1e-5)


def test_what_two_classifiers_say_is_joined_between_their_mean_and_their_product() -> None:
    one, other = np.array([[0.9, 0.1]], dtype=np.float32), np.array([[0.1, 0.9]], dtype=np.float32)
    np.testing.assert_allclose(join_confidences(one, one), one, atol=1e-6)
    np.testing.assert_allclose(join_confidences(one, other), [[0.5, 0.5]], atol=1e-6)
    sure = np.array([[1.0, 0.0]], dtype=np.float32)
    assert join_confidences(sure, other)[0, 1] == pytest.approx(0.9 / (0.9 + (1 + 0.1**0.5) ** 2), abs=1e-6)


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
        assert pooled.p_no_class[row] == pytest.approx((one.p_no_class[row] + other.p_no_class[row]) / 2)
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


def _judge(
    features: np.ndarray, labels: np.ndarray, *, count: int, groups: np.ndarray | None = None
) -> GaussianClasses:
    return GaussianClasses(features, labels, count=count, prior=0.5, groups=groups, tell=lambda _: None)


def _folds_of(classes: GaussianClasses) -> list[np.ndarray]:
    return [classes._fold_of == fold for fold in range(classes._folds)]


def test_confidences_are_the_densities_of_the_rows_under_what_the_other_folds_say_of_each_label() -> None:
    features, labels = blobs(sizes=(40, 25, 30), width=6)
    judged = _judge(features, labels, count=3)
    weights = np.random.default_rng(0).uniform(0.2, 1, len(labels))
    judged.weigh(weights)
    found = collect(judged, len(labels), 3)
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    for fold in _folds_of(judged):
        rows, given, part = units[~fold].astype(np.float64), labels[~fold], weights[~fold]
        counts = np.array([part[given == c].sum() for c in range(3)])
        means = np.array([part[given == c] @ rows[given == c] / counts[c] for c in range(3)])
        within = sum(w * np.outer(x - means[c], x - means[c]) for x, c, w in zip(rows, given, part, strict=True))
        within /= counts.sum() - 3
        noise = within.copy()
        within += judged.shrinkage * np.trace(within) / 6 * np.eye(6)
        middle = means.mean(axis=0)
        between = (means - middle).T @ (means - middle) / 3 - noise * np.mean(1 / counts)
        # In the basis in which `within` is 1 and the scatter of the means is diagonal, negative variances are cut off.
        root = np.linalg.inv(np.linalg.cholesky(within))
        axes = root.T @ np.linalg.eigh(root @ (means - middle).T @ (means - middle) @ root.T)[1]
        psi = np.diag(axes.T @ between @ axes).clip(min=0)
        for row in np.flatnonzero(fold):
            along, logs = axes.T @ (units[row] - middle), np.zeros(3)
            for c in range(3):
                known = counts[c] * psi / (counts[c] * psi + 1)
                variance = 1 + psi / (counts[c] * psi + 1)
                distance = np.square(along - known * (axes.T @ (means[c] - middle))) / variance
                logs[c] = -0.5 * (distance + np.log(variance)).sum()
            chances = np.exp(judged.temperature * (logs - logs.max())) * np.bincount(labels) ** 0.5
            np.testing.assert_allclose(found[row], chances / chances.sum(), atol=2e-4)


def test_rows_of_a_group_never_speak_for_each_other() -> None:
    features, labels = blobs(sizes=(30, 30))
    groups = np.arange(60)
    groups[:30] = 0
    judged = _judge(features, labels, count=2, groups=groups)
    assert len({fold.tobytes() for fold in _folds_of(judged) if fold[:30].any()}) == 1
    found = collect(judged, 60, 2)
    assert (found[:30, 0] == 0).all()  # of the label without the group nothing is known
    assert (found[30:, 1] > 0).all()


@pytest.mark.parametrize(
    ("sizes", "groups"), [((1, 1), None), ((3, 3), np.zeros(6, dtype=np.int64)), ((2, 0, 2), None)]
)
def test_tiny_collections_have_finite_confidences(sizes: tuple[int, ...], groups: np.ndarray | None) -> None:
    features, labels = blobs(sizes=sizes)
    found = collect(_judge(features, labels, count=len(sizes), groups=groups), len(labels), len(sizes))
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_equal_images_and_more_directions_than_rows_are_survived() -> None:
    equal = np.ones((20, 5), dtype=np.float32)
    wide = np.random.default_rng(0).normal(size=(24, 700)).astype(np.float32)
    for features in (equal, wide):
        labels = np.arange(len(features)) % 2
        assert np.isfinite(collect(_judge(features, labels, count=2), len(features), 2)).all()
