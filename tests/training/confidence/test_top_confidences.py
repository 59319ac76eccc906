"""The largest confidences of many: exact where they are all, near where the others are small."""

from __future__ import annotations

import pytest
import torch

from tests.training.losses.draws import draw, value_and_gradients
from training.confidence import top_confidences
from training.confidence.top_confidences import KEPT, TopConfidences
from training.losses.smooth_proxy_anchor import smooth_proxy_anchor_loss


def _softmax(count: int, classes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.softmax(4 * torch.randn(count, classes, generator=generator), dim=1)


def test_the_largest_are_kept_and_the_others_have_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_confidences, "KEPT", 2)
    found = TopConfidences.of([torch.tensor([[0.5, 0.1, 0.3, 0.0]]), torch.tensor([[0.0, 0.2, 0.2, 0.6]])])
    first, second = found.columns(0, 4)
    torch.testing.assert_close(first, torch.tensor([0.5, 0.05, 0.3, 0.05]))
    assert second[3] == torch.tensor(0.6)
    torch.testing.assert_close(second.sum(), torch.tensor(1.0))


def test_of_few_classes_nothing_is_lost() -> None:
    whole = _softmax(20, KEPT)
    found = TopConfidences.of(whole.split(7))
    assert torch.equal(torch.cat([found.columns(0, 10), found.columns(10, KEPT)], dim=1), whole)
    rows = torch.tensor([3, 3, 19])
    assert torch.equal(found.take(rows).columns(5, 9), whole[rows, 5:9])


def test_the_loss_of_the_largest_is_that_of_all_within_what_the_others_can_weigh() -> None:
    classes, drawn = 500, draw(1, batch=12, classes=500, width=8)
    whole = _softmax(12, classes)
    inputs = (drawn.embeddings, drawn.proxies)
    exact = value_and_gradients(smooth_proxy_anchor_loss, inputs, whole)
    near = value_and_gradients(smooth_proxy_anchor_loss, inputs, TopConfidences.of([whole]))
    for got, wanted in zip(near, exact, strict=True):
        assert float((got - wanted).norm() / wanted.norm()) < 2e-4


def test_they_are_placed_among_more_images_and_more_classes() -> None:
    whole = _softmax(3, 4)
    placed = TopConfidences.of([whole]).place(torch.tensor([5, 0, 2]), torch.tensor([1, 3, 6, 8]), count=6)
    expected = torch.zeros(6, 9)
    expected[torch.tensor([5, 0, 2])[:, None], torch.tensor([1, 3, 6, 8])] = whole
    torch.testing.assert_close(placed.columns(0, 9), expected, rtol=0, atol=1e-7)
