"""What is called clear: seldom what is equal, mostly what is worse, never on a handful of classes."""

from __future__ import annotations

import numpy as np
import pytest

from training.run.trial import Trial
from training.run.verdict import TRAINED, compare

METHODS, IMAGES = (TRAINED, "raw", "pca", "pca-whitened", "class-whitened"), 20


def _clear_outcomes(classes: int, *, worse: float = 0.0, trials: int) -> list[str]:
    """What decided the trials in which something was clear: both parts are drawn alike, and apart from each other."""
    generator, labels = np.random.default_rng(classes), np.repeat(np.arange(classes), IMAGES)
    winners = []
    for _ in range(trials):
        parts = []
        for _ in range(2):
            things = generator.normal(size=len(labels)) + 0.7 * generator.normal(size=classes)[labels]
            methods = 0.35 * generator.normal(size=(len(METHODS), classes))[:, labels]
            methods += 0.5 * generator.normal(size=(len(METHODS), len(labels)))
            methods[0] -= worse
            hits = dict(zip(METHODS, (things + methods > 0).astype(np.float64), strict=True))
            parts.append(compare(hits, labels, seed=0, parts=2))
        trial = Trial(1, *parts, {})
        assert trial.deciding is not None
        winner = trial.parts[trial.deciding].winner
        winners += [] if winner is None or trial.contradicted_on else [winner]
    return winners


@pytest.mark.slow
@pytest.mark.parametrize("classes", [5, 9, 20])
def test_equal_methods_are_called_clear_on_one_of_two_parts_in_about_one_of_twenty_trials(classes: int) -> None:
    assert len(_clear_outcomes(classes, trials=400)) / 400 <= 0.06


def test_what_is_worse_is_called_so_given_classes_enough() -> None:
    for classes, worse, least in ((20, 1.0, 0.95), (5, 2.0, 0.7)):
        outcomes = _clear_outcomes(classes, worse=worse, trials=50)
        assert TRAINED not in outcomes
        assert len(outcomes) / 50 > least
    assert _clear_outcomes(4, worse=2.0, trials=50) == []
    assert _clear_outcomes(1, worse=2.0, trials=5) == []
