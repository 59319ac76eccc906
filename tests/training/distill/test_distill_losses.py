"""What the student learns by from its teacher, against loops over the equations, and at its limits."""

from __future__ import annotations

import math

import pytest
import torch

from tests.training.unit_rows import softmax, unit_rows
from training.distill.losses import match_neighbours, regress_embeddings


def test_neighbours_are_matched_by_the_divergence_of_their_softmaxes() -> None:
    student, targets, bank = unit_rows(3, seed=1), unit_rows(3, seed=2), unit_rows(5, seed=3)
    expected = 0.0
    for row in range(3):
        p, q = (softmax((bank @ one[row] / 0.2).tolist()) for one in (targets, student))
        expected += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 3
    assert match_neighbours(student, targets, bank, temperature=0.2).item() == pytest.approx(expected, rel=1e-10)


def test_a_student_is_drawn_to_its_teacher_by_half_the_squared_distance() -> None:
    student, targets = unit_rows(3, seed=1), unit_rows(3, seed=2)
    expected = sum(math.dist(*pair) ** 2 / 2 for pair in zip(student.tolist(), targets.tolist(), strict=True)) / 3
    assert regress_embeddings(student, targets).item() == pytest.approx(expected, rel=1e-10)


def test_a_student_that_is_its_teacher_has_nothing_to_learn() -> None:
    targets = unit_rows(3)
    neighbours = match_neighbours(targets, targets, unit_rows(5, seed=3), temperature=0.05)
    assert neighbours.item() == pytest.approx(0, abs=1e-12)
    assert regress_embeddings(targets, targets).item() == pytest.approx(0, abs=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    rows, bank, targets = unit_rows(3).requires_grad_(), unit_rows(5, seed=3), unit_rows(3, seed=2)
    assert torch.autograd.gradcheck(lambda x: match_neighbours(x, targets, bank, temperature=0.3), rows)
    assert torch.autograd.gradcheck(lambda x: regress_embeddings(x, targets), rows)
