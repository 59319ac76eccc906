"""What the network stage keeps of the confidences, whole or the largest, and that a checkpoint gives it again."""

from __future__ import annotations

import pytest
import torch

from training.confidence import confidences
from training.confidence.confidences import Beliefs, FixedConfidences
from training.confidence.top_confidences import TopConfidences
from training.losses.pairs import read_columns
from training.options.losses import LossConfig
from training.run.network.beliefs import NetworkBeliefs

VALUES = torch.softmax(torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), dim=1)


def _beliefs() -> Beliefs:
    return Beliefs.of(FixedConfidences(VALUES), torch.arange(9) % 5)


@pytest.mark.parametrize(("most", "kind"), [(45, torch.Tensor), (44, TopConfidences)])
def test_confidences_that_do_not_fit_into_memory_are_kept_as_the_largest(
    most: int, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confidences, "_FIXED_VALUES", most)
    kept = NetworkBeliefs.of(_beliefs(), LossConfig("spa"))
    assert isinstance(kept.confidences, kind)
    again = NetworkBeliefs.unpack(kept.pack())
    assert isinstance(again.confidences, kind)
    rows = torch.tensor([8, 1, 1])
    for found in (kept, again):
        batch = found.batch(rows, rows % 5)
        assert torch.equal(read_columns(batch.confidences, 1, 4), VALUES[rows, 1:4])


def test_a_loss_without_confidences_keeps_none() -> None:
    assert NetworkBeliefs.of(_beliefs(), LossConfig("proxy-anchor")).pack() == {}
