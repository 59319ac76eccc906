"""The second look: what is weighed, and that it sees more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from training.leave_one_out import LeaveOneOut
from training.second_look import BALANCE, CALIBRATION, RIDGE, judge_twice


def _blobs(*, sizes: tuple[int, ...], width: int = 12, spread: float = 1.2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), width, generator=generator)
    return centres[labels] + spread * torch.randn(len(labels), width, generator=generator), labels


def test_weighted_leave_one_out_is_a_weighted_regression_fitted_again_without_the_image() -> None:
    features, labels = _blobs(sizes=(9, 7, 8), width=5)
    weights = torch.rand(24, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    groups = torch.arange(24)
    groups[5] = groups[12] = 2  # three that are left out together
    judge = LeaveOneOut(features, labels, class_count=3, groups=groups, weights=weights, ridge=0.7)
    rows, parts, targets = normalize(features).double(), weights / weights.mean(), one_hot(labels, 3).double()
    centred = rows - (parts @ rows) / 24
    penalty = 0.7 * (parts @ centred.square()).sum() / 5 * torch.eye(5, dtype=torch.float64)
    expected = torch.zeros(24, 3, dtype=torch.float64)
    for row in range(24):
        others = groups != groups[row]
        w, x, y = parts[others], rows[others], targets[others]
        mean, share = (w @ x) / w.sum(), (w @ y) / w.sum()
        known = (x - mean) * w[:, None]
        solved = torch.linalg.solve(known.T @ (x - mean) + penalty, known.T @ (y - share))
        expected[row] = (rows[row] - mean) @ solved + share
    expected = torch.softmax(judge.temperature * expected, dim=1)
    torch.testing.assert_close(judge.confidences(torch.arange(24)).double(), expected, atol=1e-6, rtol=0)


def test_the_second_look_weighs_by_belief_with_classes_balanced_and_is_averaged_with_the_first() -> None:
    features, labels = _blobs(sizes=(40, 10))
    labels[:4] = 1
    first = LeaveOneOut(features, labels, class_count=2, ridge=RIDGE).confidences(torch.arange(50))
    weights = torch.zeros(50, dtype=torch.float64)
    for row in range(50):
        own, other = first[row, labels[row]], first[row, 1 - labels[row]]
        weights[row] = max(0.05, float(own / (own + other)))
    for label in range(2):
        of_label = labels == label
        weights[of_label] *= int(of_label.sum()) ** BALANCE / weights[of_label].sum()
    second = LeaveOneOut(features, labels, class_count=2, ridge=RIDGE, weights=weights).confidences(
        torch.arange(50)
    )
    found = judge_twice(features, labels, class_count=2)
    expected = (first + second) / 2
    expected = expected * ((torch.bincount(labels) / 50) / expected.mean(dim=0)) ** CALIBRATION
    torch.testing.assert_close(found, expected / expected.sum(dim=1, keepdim=True), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(50))


def test_images_of_a_small_class_are_not_taken_for_the_large_one_they_resemble() -> None:
    features, labels = _blobs(sizes=(400, 25), spread=1.6)
    first = LeaveOneOut(features, labels, class_count=2, ridge=RIDGE).own[labels == 1].mean()
    both = judge_twice(features, labels, class_count=2)[labels == 1, 1].mean()
    assert both > first + 0.02


@pytest.mark.parametrize("count", [0, 3])
def test_a_class_without_images_is_survived(count: int) -> None:
    features, labels = _blobs(sizes=(6, count, 6))
    assert torch.isfinite(judge_twice(features, labels, class_count=3)).all()
