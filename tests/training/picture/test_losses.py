"""What the output `picture` learns by, against loops over the equations, and at its limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from tests.training.unit_rows import softmax, unit_rows
from training.picture.fit import contrast_copies, spread_pictures

PICTURES = torch.tensor([0, 1, 2, 0, 1, 3])


def test_copies_are_contrasted_with_all_others_of_the_batch() -> None:
    rows = unit_rows(len(PICTURES))
    losses = []
    for i, own in enumerate(PICTURES.tolist()):
        others = [k for k in range(len(rows)) if k != i]
        shares = dict(zip(others, softmax([float(rows[i] @ rows[k]) / 0.1 for k in others]), strict=True))
        losses += [-math.log(shares[j]) for j in others if PICTURES[j] == own]
    assert len(losses) == 4
    found = contrast_copies(rows, PICTURES, temperature=0.1)
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-10)


def test_pictures_are_spread_by_the_distance_to_the_nearest_other_one() -> None:
    rows = unit_rows(len(PICTURES))
    expected = [
        -math.log(
            min(math.dist(rows[i].tolist(), rows[j].tolist()) for j in range(len(rows)) if PICTURES[j] != own)
        )
        for i, own in enumerate(PICTURES.tolist())
    ]
    assert spread_pictures(rows, PICTURES).item() == pytest.approx(sum(expected) / len(expected), rel=1e-6)


def test_the_further_pictures_are_apart_the_less_there_is_to_lose() -> None:
    near = normalize(torch.tensor([[1.0, 0.1], [1.0, 0.0]], dtype=torch.float64))
    far = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    pictures = torch.arange(2)
    assert spread_pictures(far, pictures) < spread_pictures(near, pictures)
    assert spread_pictures(far, pictures).item() == pytest.approx(-math.log(2))


def test_gradients_agree_with_finite_differences() -> None:
    rows = unit_rows(len(PICTURES)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: contrast_copies(x, PICTURES, temperature=0.3), rows)
    assert torch.autograd.gradcheck(lambda x: spread_pictures(x, PICTURES), rows)


def test_without_copies_or_without_others_the_losses_are_zero_and_finite() -> None:
    rows = unit_rows(3).requires_grad_()
    for loss in (contrast_copies(rows, torch.arange(3), temperature=0.1), spread_pictures(rows, torch.zeros(3))):
        (gradient,) = torch.autograd.grad(loss, rows)
        assert loss.item() == 0
        assert not gradient.any()


def test_pictures_that_look_the_same_give_finite_gradients() -> None:
    rows = normalize(torch.ones(2, 4)).requires_grad_()
    loss = spread_pictures(rows, torch.arange(2))
    loss.backward()
    assert rows.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(rows.grad).all()
