"""When the loop of the network stage gives up."""

from __future__ import annotations

import pytest

from training.run.network.fit import EpochScore, FittedWeights


def _fitted(*found: float) -> FittedWeights:
    """After the start and some epochs that found this much."""
    fitted = FittedWeights({}, {}, {}, {})
    for epoch, score in enumerate(found):
        fitted.note(EpochScore(epoch, {"unseen": score}))
    return fitted


@pytest.mark.parametrize(
    ("found", "waited"),
    [
        ((0.5, 0.3, 0.2, 0.1), -2),  # rates are high: worse than the start for now
        ((0.5, 0.3, 0.2, 0.1, 0.1, 0.1), 0),
        ((0.5, 0.3, 0.2, 0.1, 0.1, 0.1, 0.4, 0.4), 2),
        ((0.5, 0.6, 0.2, 0.1, 0.1, 0.1, 0.4, 0.4), 2),
        ((0.5, 0.3, 0.2, 0.1, 0.1, 0.1, 0.4, 0.6, 0.5), 1),
    ],
)
def test_patience_is_counted_from_the_best_epoch_or_half_of_all(found: tuple[float, ...], waited: int) -> None:
    assert _fitted(*found).waited(10) == waited
