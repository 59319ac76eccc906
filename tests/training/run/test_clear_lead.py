"""What is called clearly behind: seldom what is equal, mostly what is worse, never on a handful of classes."""

from __future__ import annotations

import numpy as np
import pytest

from index.evaluation.comparison import paired_bootstrap
from training.run.clear_lead import widen_interval

RIVALS, IMAGES = 4, 20


def _called_behind(classes: int, *, worse: float = 0.0, trials: int = 400) -> tuple[float, float]:
    """Shares of trials in which a method is, and in which its interval of 95 % lies, below the best of four others."""
    generator, labels = np.random.default_rng(classes), np.repeat(np.arange(classes), IMAGES)
    clearly = by_interval = 0
    for _ in range(trials):
        things = generator.normal(size=len(labels)) + 0.7 * generator.normal(size=classes)[labels]
        methods = 0.35 * generator.normal(size=(1 + RIVALS, classes))[:, labels]
        methods += 0.5 * generator.normal(size=(1 + RIVALS, len(labels)))
        methods[0] -= worse
        hits = (things + methods > 0).astype(np.float64)
        best = 1 + hits[1:].mean(axis=1).argmax()
        difference = paired_bootstrap(hits[0], hits[best], seed=0, resamples=400, clusters=labels)
        interval = widen_interval(difference, classes=classes, rivals=RIVALS)
        clearly += interval is not None and interval[1] < 0
        by_interval += difference.high < 0
    return clearly / trials, by_interval / trials


@pytest.mark.slow
@pytest.mark.parametrize("classes", [5, 9, 20])
def test_of_equal_methods_about_one_in_twenty_is_called_behind_the_best_of_four(classes: int) -> None:
    clearly, by_interval = _called_behind(classes)
    assert clearly < 0.07
    assert by_interval > 0.07, "which is what the wider one mends"


def test_what_is_worse_is_called_so_given_classes_enough() -> None:
    assert _called_behind(20, worse=1.0, trials=50)[0] > 0.95
    assert _called_behind(5, worse=2.0, trials=50)[0] > 0.7
    assert _called_behind(4, worse=2.0, trials=50)[0] == 0
    assert _called_behind(1, worse=2.0, trials=5)[0] == 0
