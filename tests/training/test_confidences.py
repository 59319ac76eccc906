"""The confidences that phase 2 reads, and the images that are trusted by them."""

from __future__ import annotations

import pytest
import torch

from training import confidences
from training.confidences import (
    FixedConfidences,
    ViewConfidences,
    compute_confidences,
    make_confidences,
    rows_to_trust,
)
from training.model import ConfidenceModule
from training.sources import CachedSource


def _module(feature_dim: int = 6, class_count: int = 4) -> ConfidenceModule:
    generator = torch.Generator().manual_seed(0)
    module = ConfidenceModule(feature_dim, hidden=5, class_count=class_count, generator=generator)
    return module.eval().requires_grad_(False)


def _source(count: int = 30, *, views: int = 1) -> CachedSource:
    return CachedSource(torch.randn(count, views, 6, generator=torch.Generator().manual_seed(1)))


def test_fixed_confidences_are_those_of_the_view_where_there_is_one() -> None:
    module, source = _module(), _source()
    fixed, asked = FixedConfidences(compute_confidences(module, source.centre)), ViewConfidences(module)
    rows = torch.tensor([7, 3, 3, 29])
    features = source.batch(rows, generator=torch.Generator())
    torch.testing.assert_close(fixed.batch(rows, features), asked.batch(rows, features), rtol=0, atol=1e-6)
    torch.testing.assert_close(asked.batch(rows, features), module(source.centre[rows]))


def test_confidences_computed_in_blocks_are_those_computed_at_once() -> None:
    module, source = _module(), _source(4096 + 50)
    torch.testing.assert_close(
        compute_confidences(module, source.centre), module(source.centre), rtol=0, atol=1e-6
    )


def test_images_of_one_view_are_asked_once_and_others_view_by_view() -> None:
    module = _module()
    assert isinstance(make_confidences(module, _source()), FixedConfidences)
    assert isinstance(make_confidences(module, _source(views=2)), ViewConfidences)
    live = _source()
    live.views = None  # as where every view is new
    assert isinstance(make_confidences(module, live), ViewConfidences)


def test_confidences_that_do_not_fit_into_memory_are_not_kept_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confidences, "_FIXED_VALUES", 30 * 4)
    assert isinstance(make_confidences(_module(), _source(30)), FixedConfidences)
    assert isinstance(make_confidences(_module(), _source(31)), ViewConfidences)


def test_the_confidences_of_a_step_are_those_of_its_own_view() -> None:
    module, source = _module(), _source(views=2)
    found = make_confidences(module, source)
    rows = torch.arange(5)
    first, second = _source(views=2)._views[:5].unbind(dim=1)
    assert not torch.allclose(found.batch(rows, first), found.batch(rows, second))
    torch.testing.assert_close(found.batch(rows, second), module(second))


@pytest.mark.parametrize("views", [1, 2])
def test_confidences_can_take_part_in_a_loss_and_carry_no_gradient(views: int) -> None:
    source = _source(views=views)
    rows = torch.arange(5)
    weight = torch.ones(4, requires_grad=True)
    batch = make_confidences(_module(), source).batch(rows, source.centre[rows])
    (batch * weight).sum().backward()
    assert not batch.requires_grad
    torch.testing.assert_close(weight.grad, batch.sum(dim=0))


def test_images_are_trusted_from_the_smallest_confidence_on() -> None:
    own = torch.tensor([0.05, 0.1, 0.5, 0.0999, 1.0, 0.0])
    assert rows_to_trust(own, min_confidence=0.1).tolist() == [1, 2, 4]
    assert rows_to_trust(own, min_confidence=0.1).dtype == torch.int64
    assert rows_to_trust(own, min_confidence=1.5).tolist() == []
