"""When one method finds clearly less than the best of several, on the few classes of a trial.

A bootstrap over classes tells what other classes might give only where there are many: of few, its draws spread too
little, and the best of several rivals is partly the best by chance. So the interval is widened as Student's t is wider
than the normal, and by the number of rivals (Bonferroni), for one trial of twenty to be wrong at most where all methods
are equal. Measured on drawn hits of equal methods, four rivals, 2,000 trials each: 3 to 5 of 100 are called clearly
behind at 5 to 40 classes, by the plain interval of 95 %, 20 at 5 classes, 14 at 9 and 10 at 40.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from scipy.special import stdtrit

from index.evaluation.comparison import PairedDifference

LEAST_CLASSES = 5  # below which nothing is clear
_WRONG = 0.05  # of all trials of equal methods
_SHOWN = NormalDist().inv_cdf(0.975)  # standard deviations to either bound of the interval of 95 %


def widen_interval(difference: PairedDifference, *, classes: int, rivals: int) -> tuple[float, float] | None:
    """The interval beyond which a method finds more, or less, than the best of its rivals by more than chance.

    None on fewer than `LEAST_CLASSES`, which tell nothing.

    Args:
        difference: its own minus the best one's, with the interval of 95 % over classes.
        classes: that were drawn from.
        rivals: of which the best one was picked.
    """
    if classes < LEAST_CLASSES:
        return None
    reach = float(stdtrit(classes - 1, 1 - _WRONG / rivals)) * math.sqrt(classes / (classes - 1)) / _SHOWN
    mean = difference.mean
    return mean - reach * (mean - difference.low), mean + reach * (difference.high - mean)
