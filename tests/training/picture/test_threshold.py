"""From which cosine on two pictures are copies: by the share of wrong pairs among those found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from training.run.picture_stage import choose_threshold

cosines = arrays(np.float32, st.integers(1, 40), elements=st.floats(-1, 1, width=32))


@given(cosines, cosines, st.sampled_from([0.5, 0.9, 0.99]))
def test_from_the_threshold_on_enough_pairs_are_copies_and_no_lower_one_would_do(
    copies: np.ndarray, others: np.ndarray, precision: float
) -> None:
    threshold = choose_threshold(copies, others, precision=precision)

    def holds(at: float) -> bool:
        found, wrong = (copies >= at).sum(), (others >= at).sum()
        return bool(found >= precision * (found + wrong))

    above = [float(at) for at in np.unique(copies) if at >= threshold]
    assert threshold == 1 or all(map(holds, above))
    below = [float(at) for at in np.unique(copies) if at < threshold]
    assert not below or not holds(max(below))


def test_without_a_cosine_that_tells_copies_nothing_is_one() -> None:
    assert choose_threshold(np.array([0.1, 0.2], dtype=np.float32), np.array([0.9, 0.8], dtype=np.float32)) == 1


@pytest.mark.parametrize(("precision", "expected"), [(0.99, 0.9), (0.75, 0.5)])
def test_a_lower_precision_finds_more(precision: float, expected: float) -> None:
    copies, others = np.array([0.5, 0.7, 0.9, 0.95]), np.array([0.3, 0.7])
    assert choose_threshold(copies, others, precision=precision) == expected


def test_a_cosine_that_rounding_put_above_one_makes_a_threshold_of_one() -> None:
    above = np.nextafter(np.float32(1), np.float32(2))
    assert choose_threshold(np.array([above, above]), np.array([0.5, 0.6], dtype=np.float32)) == 1.0
