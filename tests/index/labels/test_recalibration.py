"""Recalibration of probabilities by what people found: its limits, its order, its interval."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from index.labels.recalibration import Recalibration

NOTHING = np.empty(0), np.empty(0, dtype=bool)


def test_without_looks_nothing_changes_but_the_share_is_uncertain() -> None:
    usual, p = Recalibration.fit(*NOTHING), np.array([0.0, 1e-4, 0.02, 0.5, 0.97, 1.0])
    np.testing.assert_allclose(usual.apply(p), p)
    share, low, high = usual.estimate_share(p)
    assert share == np.mean(p)
    assert low < share - 0.05
    assert high > share + 0.05


def test_many_looks_find_the_true_map() -> None:
    random = np.random.default_rng(0)
    p = random.random(20_000)
    found = random.random(20_000) < expit(-1.5 + 0.7 * logit(p))
    fitted = Recalibration.fit(p, found)
    np.testing.assert_allclose([fitted.intercept, fitted.slope], [-1.5, 0.7], atol=0.06)


def test_probabilities_that_are_much_too_high_are_lowered() -> None:
    random = np.random.default_rng(0)
    p, found = random.uniform(0.97, 0.9999, 300), random.random(300) < 0.2
    assert abs(Recalibration.fit(p, found).apply(p).mean() - found.mean()) < 0.06
    p = np.where(np.arange(1000) < 500, 0.002, 0.9)
    found = random.random(1000) < np.where(p > 0.5, 0.15, 0.05)
    assert abs(Recalibration.fit(p, found).apply(p).mean() - found.mean()) < 0.03


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60))
def test_the_order_stays_and_probabilities_are_probabilities(looks: list[tuple[float, bool]]) -> None:
    p, found = (np.array(part) for part in zip(*looks, strict=True)) if looks else NOTHING
    moved = Recalibration.fit(p, found.astype(bool)).apply(np.linspace(0, 1, 101))
    assert (np.diff(moved) >= 0).all()
    assert 0 <= moved.min() <= moved.max() <= 1


def test_the_interval_holds_the_share_of_those_that_nobody_looked_at() -> None:
    """Of data sets whose maps vary as the prior says."""
    held, audits = 0, 200
    for seed in range(audits):
        random = np.random.default_rng(seed)
        p = random.beta(0.2, 1.5, 2000)
        intercept, slope = random.normal(0, 0.75), random.normal(1, 0.25)
        wrong = random.random(2000) < expit(intercept + slope * logit(p.clip(1e-4, 1 - 1e-4)))
        looks = np.argsort(-p)[:60]  # the most probable errors, as people do
        _, low, high = Recalibration.fit(p[looks], wrong[looks]).estimate_share(np.delete(p, looks))
        held += low <= np.delete(wrong, looks).mean() <= high
    assert held >= 0.9 * audits
