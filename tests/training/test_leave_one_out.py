"""Leave-one-out confidences against regressions that are really fitted again without the image."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from training.leave_one_out import _BLOCK, RIDGES, TEMPERATURES, LeaveOneOut


def _refit_without_each(judge: LeaveOneOut, features: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
    """(N, C) float64 confidences: for every image, ridge regression with intercept on the images of other groups."""
    rows = normalize(features.float()).double()
    centred = rows - rows.mean(dim=0)
    penalty = judge.ridge * centred.square().sum() / rows.shape[1] * torch.eye(rows.shape[1], dtype=torch.float64)
    targets = one_hot(labels, judge.confidences(torch.arange(1)).shape[1]).double()
    outputs = torch.zeros_like(targets)
    for row in range(len(rows)):
        others = groups != groups[row]
        mean, intercept = rows[others].mean(dim=0), targets[others].mean(dim=0)
        known = rows[others] - mean
        weights = torch.linalg.solve(known.T @ known + penalty, known.T @ (targets[others] - intercept))
        outputs[row] = (rows[row] - mean) @ weights + intercept
    return torch.softmax(judge.temperature * outputs, dim=1)


def _blobs(*, seed: int, per_class: int, classes: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.randn(classes, width, generator=generator)
    return centres[labels] + 0.5 * torch.randn(len(labels), width, generator=generator), labels


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 3), min_size=3, max_size=15),
    width=st.integers(2, 30),
    classes=st.integers(2, 5),
)
def test_every_image_is_judged_as_if_its_group_had_never_been_there(
    seed: int, sizes: list[int], width: int, classes: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    features = torch.randn(count, width, generator=generator) + 1
    labels = torch.randint(0, classes, (count,), generator=generator)
    numbers = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    groups = 7 * numbers[torch.randperm(count, generator=generator)]  # with gaps, in no order
    judge = LeaveOneOut(features, labels, class_count=classes, groups=groups)
    expected = _refit_without_each(judge, features, labels, groups)
    found = judge.confidences(torch.arange(count))
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def test_without_groups_every_image_is_alone() -> None:
    features, labels = _blobs(seed=0, per_class=8, classes=3, width=5)
    alone = LeaveOneOut(features, labels, class_count=3, groups=torch.arange(len(labels)))
    judge = LeaveOneOut(features, labels, class_count=3)
    expected = _refit_without_each(judge, features, labels, torch.arange(len(labels)))
    torch.testing.assert_close(judge.confidences(torch.arange(24)).double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(judge.own, alone.own, atol=0, rtol=0)


def test_a_wrong_label_cannot_vouch_for_itself() -> None:
    features, labels = _blobs(
        seed=1, per_class=10, classes=3, width=60
    )  # enough width to learn any label by heart
    wrong = labels.clone()
    wrong[0] = 1
    judge = LeaveOneOut(features, wrong, class_count=3)
    confidences = judge.confidences(torch.tensor([0]))[0]
    assert confidences.argmax() == 0
    assert judge.own[0] < 0.2
    assert judge.own[1:].min() > 0.5


def test_two_copies_with_the_same_wrong_label_vouch_for_each_other_unless_grouped() -> None:
    features, labels = _blobs(seed=2, per_class=10, classes=3, width=60)
    features[1] = features[0]
    labels[:2] = 1
    groups = torch.arange(len(labels))
    groups[1] = groups[0]
    alone = LeaveOneOut(features, labels, class_count=3)
    grouped = LeaveOneOut(features, labels, class_count=3, groups=groups)
    assert alone.own[0] > 0.5
    assert grouped.own[:2].max() < 0.2


def test_blocks_confidences_and_own_agree_and_rows_sum_to_one() -> None:
    features, labels = _blobs(seed=4, per_class=_BLOCK // 3 + 100, classes=3, width=4)
    groups = torch.arange(len(labels))
    groups[-1] = groups[0]  # in another block
    judge = LeaveOneOut(features, labels, class_count=3, groups=groups)
    blocks = list(judge.blocks())
    rows, confidences = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    assert len(blocks) == 2
    torch.testing.assert_close(rows, torch.arange(len(labels)))
    assert (confidences.shape, confidences.dtype) == ((len(labels), 3), torch.float32)
    torch.testing.assert_close(confidences.sum(dim=1), torch.ones(len(labels)))
    torch.testing.assert_close(judge.own, confidences[rows, labels], atol=0, rtol=0)
    asked = torch.tensor([len(labels) - 1, 5, 0])
    torch.testing.assert_close(judge.confidences(asked), confidences[asked], atol=1e-6, rtol=0)


def test_ridge_and_temperature_make_the_given_labels_likeliest() -> None:
    features, labels = _blobs(seed=5, per_class=20, classes=3, width=10)
    judge = LeaveOneOut(features, labels, class_count=3)
    assert judge.ridge in RIDGES
    assert judge.temperature in TEMPERATURES
    chosen = judge.own.log().mean()
    for ridge in RIDGES:
        judge._solve(ridge)
        for temperature in TEMPERATURES:
            judge.temperature = temperature
            own = judge.confidences(torch.arange(60))[torch.arange(60), labels]
            assert own.log().mean() <= chosen + 1e-6


def test_labels_that_features_tell_apart_are_believed_and_random_ones_are_not() -> None:
    features, labels = _blobs(seed=6, per_class=30, classes=3, width=10)
    shuffled = labels[torch.randperm(90, generator=torch.Generator().manual_seed(0))]
    assert LeaveOneOut(features, labels, class_count=3).own.mean() > 0.9
    assert LeaveOneOut(features, shuffled, class_count=3).own.mean() < 0.4


def test_the_only_image_of_a_class_is_never_believed_and_a_class_without_images_is_survived() -> None:
    features, labels = _blobs(seed=7, per_class=10, classes=2, width=5)
    labels[0] = 2
    judge = LeaveOneOut(features, labels, class_count=4)
    confidences = judge.confidences(torch.arange(20))
    assert confidences[0, 2] == pytest.approx(float(confidences[0, 3]), abs=1e-6)  # as if there were no such class
    assert (confidences[:, 3] < 0.1).all()
    torch.testing.assert_close(confidences.sum(dim=1), torch.ones(20))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_features_that_say_nothing_leave_the_shares_of_the_labels(value: float) -> None:
    labels = torch.tensor([0] * 9 + [1] * 3)
    judge = LeaveOneOut(torch.full((12, 4), value), labels, class_count=2)
    output = torch.tensor([[8 / 11, 3 / 11], [9 / 11, 2 / 11]])[labels]  # the image itself does not count
    torch.testing.assert_close(
        judge.confidences(torch.arange(12)), torch.softmax(judge.temperature * output, dim=1)
    )


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_where_nothing_else_is_left_no_class_is_likelier(count: int) -> None:
    features, labels = torch.randn(count, 3, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 2
    judge = LeaveOneOut(features, labels, class_count=2, groups=torch.zeros(count, dtype=torch.int64))
    torch.testing.assert_close(judge.own, torch.full((count,), 0.5))
