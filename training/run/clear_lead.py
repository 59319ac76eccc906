"""When one method finds clearly less than the best of several, on the few classes of a trial.

A bootstrap over classes tells what other classes might give only where there are many: of few, its draws spread too
little, and the best of several rivals is partly the best by chance. So the interval is widened as Student's t is wider
than the normal, and by the number of comparisons (Bonferroni): the rivals, on each part of the holdout. Then one trial
of twenty at most is wrong where all methods are equal. Measured on drawn hits of equal methods, four rivals, two parts,
2,000 trials each: 4 to 5 of 100 are called clear on either part at 5 to 40 classes; 8 to 9 without counting the parts.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from scipy.special import stdtrit

from index.evaluation.comparison import PairedDifference

LEAST_CLASSES = 5  # below which nothing is clear
_WRONG = 0.05  # of all trials of equal methods
_SHOWN = NormalDist().inv_cdf(0.975)  # standard deviations to either bound of the interval of 95 %


def widen_interval(difference: PairedDifference, *, classes: int, comparisons: int) -> tuple[float, float] | None:
    """The interval beyond which a method finds more, or less, than the best of its rivals by more than chance.

    None on fewer than `LEAST_CLASSES`, which tell nothing.

    Args:
        difference: its own minus the best one's, with the interval of 95 % over classes.
        classes: that were drawn from.
        comparisons: of which any one could be called clear: the rivals, in every part of the holdout.
    """
    if classes < LEAST_CLASSES:
        return None
    reach = float(stdtrit(classes - 1, 1 - _WRONG / comparisons)) * math.sqrt(classes / (classes - 1)) / _SHOWN
    mean = difference.mean
    return mean - reach * (mean - difference.low), mean + reach * (difference.high - mean)
