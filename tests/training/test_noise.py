"""Label noise: exact, seeded, and always wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.errors import InputError
from training.noise import add_uniform_noise


@given(
    count=st.integers(0, 200),
    class_count=st.integers(2, 12),
    rate=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_exactly_the_asked_share_changes_and_always_to_another_known_class(count, class_count, rate, seed) -> None:
    labels = np.random.default_rng(seed).integers(0, class_count, size=count)
    before = labels.copy()
    noisy = add_uniform_noise(labels, class_count=class_count, rate=rate, seed=seed)
    assert (noisy != labels).sum() == round(rate * count)
    assert noisy.dtype == np.int64
    assert ((noisy >= 0) & (noisy < class_count)).all()
    assert np.array_equal(labels, before), "the given labels are left alone"
    assert np.array_equal(noisy, add_uniform_noise(labels, class_count=class_count, rate=rate, seed=seed))


def test_another_seed_gives_other_noise() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    first, second = (add_uniform_noise(labels, class_count=10, rate=0.5, seed=seed) for seed in (0, 1))
    assert (first != second).any()


def test_wrong_labels_are_spread_evenly_over_the_other_classes() -> None:
    labels = np.full(9000, 3, dtype=np.int64)
    counts = np.bincount(add_uniform_noise(labels, class_count=10, rate=1, seed=0), minlength=10)
    assert counts[3] == 0
    others = np.delete(counts, 3)
    assert (np.abs(others - 1000) < 5 * np.sqrt(1000)).all()


def test_a_single_class_cannot_be_made_wrong() -> None:
    with pytest.raises(InputError, match="two classes, got 1"):
        add_uniform_noise(np.zeros(4, dtype=np.int64), class_count=1, rate=0.5, seed=0)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match=r"0\.\.1"):
        add_uniform_noise(np.zeros(4, dtype=np.int64), class_count=2, rate=rate, seed=0)
