"""Long tails: how many images are left of every class, and Recall@1 by class size."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.noise.shapes import BANDS, LEAST_IMAGES, recall_by_size, tail_factor, thin_classes
from index.errors import InputError


def test_a_tail_falls_exponentially_from_all_images_to_the_least() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(11), 200))
    sizes = np.bincount(labels[thin_classes(labels, shape="longtail:50", seed=0)])
    expected = [max(LEAST_IMAGES, round(200 / 50 ** (rank / 10))) for rank in range(11)]
    assert sorted(sizes, reverse=True) == expected
    assert (expected[0], expected[-1]) == (200, 4)


def test_no_class_is_left_with_fewer_than_three_images_unless_it_had_fewer() -> None:
    labels = np.repeat(np.arange(4), [100, 2, 20, 100])
    for seed in range(5):
        sizes = np.bincount(labels[thin_classes(labels, shape="longtail:1000", seed=seed)])
        assert sizes[1] == 2
        assert min(sizes[[0, 2, 3]]) >= LEAST_IMAGES


def test_the_seed_draws_the_order_of_the_classes_and_their_images() -> None:
    labels = np.repeat(np.arange(6), 30)
    first, again, other = (thin_classes(labels, shape="longtail:10", seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert np.bincount(labels[first]).tolist() != np.bincount(labels[other]).tolist()
    assert np.array_equal(first, np.unique(first))


def test_all_images_train_in_full_shape() -> None:
    assert thin_classes(np.zeros(7, dtype=np.int64), shape="full", seed=3).tolist() == list(range(7))


@pytest.mark.parametrize("shape", ["longtail", "longtail:1", "longtail:-3", "short", "longtail:0.5"])
def test_another_shape_is_refused(shape: str) -> None:
    with pytest.raises(InputError, match="a shape is full or longtail:FACTOR"):
        tail_factor(shape)


def test_recall_by_size_counts_every_query_in_the_third_of_its_class() -> None:
    sizes = np.array([50, 3, 20, 4, 60, 10])  # rare: 1, 3; middle: 5, 2; frequent: 0, 4
    queries = np.array([0, 0, 1, 3, 3, 4, 5, 2])
    hits = np.array([1, 0, 1, 0, 0, 1, 1, 0], dtype=bool)
    found = recall_by_size(hits, queries, class_sizes=sizes)
    assert found == pytest.approx({"rare": 1 / 3, "middle": 1 / 2, "frequent": 2 / 3})
    assert recall_by_size(hits[:2], queries[:2], class_sizes=sizes) == dict(
        zip(BANDS, (None, None, 0.5), strict=True)
    )
