"""Batches hold pictures that are alike, each picture once."""

from __future__ import annotations

import numpy as np
import pytest

from training.picture.fit import order_alike

PAIRS = np.array([[1, 2], [0, 3], [3, 0], [2, 1]])


@pytest.mark.parametrize("together", [1, 2, 3, 9])
def test_every_picture_comes_once(together: int) -> None:
    alike = np.random.default_rng(0).integers(50, size=(50, 5))
    order = order_alike(alike, np.random.default_rng(1), together=together)
    assert sorted(order.tolist()) == list(range(50))


def test_a_picture_is_followed_by_the_one_most_alike() -> None:
    for seed in range(8):
        order = order_alike(PAIRS, np.random.default_rng(seed), together=2).tolist()
        assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 1}), frozenset({2, 3})}


def test_alone_the_order_is_any() -> None:
    orders = {tuple(order_alike(PAIRS, np.random.default_rng(seed), together=1)) for seed in range(200)}
    assert len(orders) == 24


def test_who_has_nobody_alike_comes_alone() -> None:
    nobody = np.full((3, 2), -1)
    assert sorted(order_alike(nobody, np.random.default_rng(0), together=4).tolist()) == [0, 1, 2]
