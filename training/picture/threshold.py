"""From which cosine on two pictures are copies."""

from __future__ import annotations

import numpy as np

from index.arrays import Floats

PRECISION = 0.99  # of the pairs that are called copies


def choose_threshold(copies: Floats, others: Floats, *, precision: float = PRECISION) -> float:
    """The least cosine from which on at least so many of the pairs found are of copies; 1 where there is none.

    Args:
        copies: (n,) cosines of a picture and its copy.
        others: (m,) cosines of a picture and the most alike of others.
    """
    candidates = np.sort(np.unique(copies))
    found = len(copies) - np.searchsorted(np.sort(copies), candidates)
    wrong = len(others) - np.searchsorted(np.sort(others), candidates)
    holds = found >= precision * (found + wrong)
    fails = np.flatnonzero(~holds)
    first = 0 if not len(fails) else int(fails[-1]) + 1
    return min(1.0, float(candidates[first])) if first < len(candidates) else 1.0  # rounding makes cosines above 1
