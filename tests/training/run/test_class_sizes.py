"""Recall@1 by class size against counting."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from training.run.class_sizes import BANDS, band_by_size


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=12), st.integers(0, 99))
def test_bands_part_the_classes_by_size_and_average_over_classes(
    classes: list[tuple[int, int]], seed: int
) -> None:
    labels = np.repeat(3 * np.arange(len(classes)), [queries for _, queries in classes])
    sizes = np.repeat([images for images, _ in classes], [queries for _, queries in classes])
    hits = np.random.default_rng(seed).integers(0, 2, len(labels)).astype(np.float64)
    bands = band_by_size(sizes, labels, {"a": hits})
    assert 1 <= len(bands) <= BANDS
    assert sum(band.classes for band in bands) == len(classes)
    assert sum(band.queries for band in bands) == len(labels)
    for larger, smaller in itertools.pairwise(bands):
        assert larger.least > smaller.most, "the largest classes come first, and none of one size are parted"
    for band in bands:
        members = [n for n, (images, _) in enumerate(classes) if band.least <= images <= band.most]
        assert len(members) == band.classes
        expected = np.mean([hits[labels == 3 * n].mean() for n in members])
        np.testing.assert_allclose(band.recall["a"], expected)
