"""The confidences that phase 2 reads, and the images that are trusted by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from index.labels.leave_one_out import LeaveOneOut
from training.backbone.feature_sources import CachedSource
from training.confidence import confidences
from training.confidence.confidences import (
    FixedConfidences,
    LeaveOneOutConfidences,
    ViewConfidences,
    believe_module,
    believe_others,
    compute_confidences,
    make_confidences,
    rows_to_trust,
)
from training.confidence.module import ConfidenceModule
from training.losses.pairs import read_columns


def _module(feature_dim: int = 6, class_count: int = 4) -> ConfidenceModule:
    generator = torch.Generator().manual_seed(0)
    module = ConfidenceModule(feature_dim, hidden=5, class_count=class_count, generator=generator)
    return module.eval().requires_grad_(False)


def _source(count: int = 30, *, views: int = 1) -> CachedSource:
    return CachedSource(torch.randn(count, views, 6, generator=torch.Generator().manual_seed(1)))


def _read(found: Any, class_count: int = 4) -> torch.Tensor:
    """What a batch has, at once or by columns, in two parts."""
    return torch.cat([read_columns(found, 0, 3), read_columns(found, 3, class_count)], dim=1)


def test_fixed_confidences_are_those_of_the_view_where_there_is_one() -> None:
    module, source = _module(), _source()
    fixed, asked = (
        FixedConfidences(compute_confidences(module, source.centre)),
        ViewConfidences(module, source.centre),
    )
    rows = torch.tensor([7, 3, 3, 29])
    features = source.batch(rows, generator=torch.Generator())
    by_columns = _read(asked.batch(rows, features))
    torch.testing.assert_close(fixed.batch(rows, features), by_columns, rtol=0, atol=1e-6)
    torch.testing.assert_close(by_columns, module(source.centre[rows]))


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


def test_blocks_of_confidences_hold_fewer_images_where_classes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert confidences.rows_at_once(10) == 4096
    assert confidences.rows_at_once(100_000) == 167
    module, source = _module(), _source(30, views=2)
    monkeypatch.setattr(confidences, "_BLOCK_VALUES", 7 * 4)
    blocks = list(make_confidences(module, source).blocks())
    assert [len(rows) for rows, _ in blocks] == [7, 7, 7, 7, 2]
    torch.testing.assert_close(torch.cat([c for _, c in blocks]), module(source.centre), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        compute_confidences(module, source.centre), module(source.centre), rtol=0, atol=1e-6
    )


def test_the_confidences_of_a_step_are_those_of_its_own_view() -> None:
    module, source = _module(), _source(views=2)
    found = make_confidences(module, source)
    rows = torch.arange(5)
    first, second = _source(views=2)._views[:5].unbind(dim=1)
    assert not torch.allclose(_read(found.batch(rows, first)), _read(found.batch(rows, second)))
    torch.testing.assert_close(_read(found.batch(rows, second)), module(second))


def test_images_are_trusted_from_the_smallest_confidence_on() -> None:
    own = torch.tensor([0.05, 0.1, 0.5, 0.0999, 1.0, 0.0])
    assert rows_to_trust(own, min_confidence=0.1).tolist() == [1, 2, 4]
    assert rows_to_trust(own, min_confidence=0.1).dtype == torch.int64
    assert rows_to_trust(own, min_confidence=1.5).tolist() == []


def _labels(count: int = 30) -> torch.Tensor:
    return torch.arange(count) % 4


def test_the_beliefs_of_a_module_are_its_confidences_of_the_centre_crops() -> None:
    module, source = _module(), _source(4096 + 50, views=2)
    beliefs = believe_module(module, source, _labels(4096 + 50))
    expected = module(source.centre)
    blocks = list(beliefs.confidences.blocks())
    assert torch.equal(torch.cat([rows for rows, _ in blocks]), torch.arange(4096 + 50))
    torch.testing.assert_close(torch.cat([c for _, c in blocks]), expected, rtol=0, atol=1e-6)
    own = expected.gather(1, _labels(4096 + 50)[:, None])[:, 0]
    torch.testing.assert_close(beliefs.own, own, rtol=0, atol=1e-6)
    assert torch.equal(beliefs.weights, beliefs.own)
    assert isinstance(beliefs.confidences, ViewConfidences), "another view is asked for again"


@pytest.mark.parametrize("groups", [None, torch.arange(30) // 3])
def test_the_beliefs_of_the_others_are_those_of_leave_one_out(groups: torch.Tensor | None) -> None:
    source = _source()
    beliefs = believe_others(source, _labels(), class_count=4, groups=groups)
    left_out = None if groups is None else groups.numpy()
    judge = LeaveOneOut(source.centre.numpy(), _labels().numpy(), count=4, groups=left_out)
    expected = torch.from_numpy(judge.confidences(np.arange(30)))
    torch.testing.assert_close(beliefs.own, expected[torch.arange(30), _labels()])
    torch.testing.assert_close(_read(beliefs.confidences.batch(torch.arange(30), source.centre)), expected)
    torch.testing.assert_close(torch.cat([c for _, c in beliefs.confidences.blocks()]), expected)
    others = expected.clone()
    others[torch.arange(30), _labels()] = 0
    against = beliefs.own / (beliefs.own + others.max(dim=1).values)
    torch.testing.assert_close(beliefs.weights, against**2)


def test_leave_one_out_in_memory_and_asked_for_again_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source, rows = _source(views=3), torch.tensor([3, 0, 29, 3])
    monkeypatch.setattr(confidences, "_FIXED_VALUES", 30 * 4)
    fixed = believe_others(source, _labels(), class_count=4, groups=None).confidences
    monkeypatch.setattr(confidences, "_FIXED_VALUES", 30 * 4 - 1)
    asked = believe_others(source, _labels(), class_count=4, groups=None).confidences
    assert isinstance(fixed, FixedConfidences)
    assert isinstance(asked, LeaveOneOutConfidences)
    view = source._views[rows, 1]
    torch.testing.assert_close(fixed.batch(rows, view), _read(asked.batch(rows, view)), rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat([c for _, c in asked.blocks()]), fixed.values)
    assert torch.equal(_read(asked.batch(rows, view)), _read(asked.batch(rows, 7 * view))), "no view matters"
