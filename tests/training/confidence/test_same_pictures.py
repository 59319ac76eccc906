"""Who shows the same picture."""

from __future__ import annotations

import numpy as np

from index.arrays import NO_ID
from training.confidence.same_pictures import find_duplicates


def _features(count: int, *, seed: int = 0) -> np.ndarray:
    """Rows of unlike pictures: positive, with much in common."""
    return np.abs(np.random.default_rng(seed).normal(loc=0.5, size=(count, 200))).astype(np.float32)


def _find(features: np.ndarray, labels: list[int], hashes: list[str] | None = None) -> tuple[list[int], list[int]]:
    names = hashes or [str(i) for i in range(len(labels))]
    found = find_duplicates(features, np.array(labels, dtype=np.int64), hashes=names)
    return found.other_label.tolist(), found.groups.tolist()


def test_unlike_pictures_are_nobodys_copies() -> None:
    other, groups = _find(_features(8), [0, 0, 0, 0, 1, 1, 1, 1])
    assert other == [NO_ID] * 8
    assert groups == list(range(8))


def test_a_picture_saved_again_with_another_label_is_told_on_both_sides() -> None:
    features = _features(8)
    features[6] = features[1] + 0.01 * _features(1, seed=9)[0]
    other, groups = _find(features, [0, 0, 0, 0, 1, 1, 1, 1])
    assert other == [NO_ID, 6, NO_ID, NO_ID, NO_ID, NO_ID, 1, NO_ID]
    assert groups == [0, 1, 2, 3, 4, 5, 1, 7]


def test_copies_with_the_same_label_are_one_group_and_no_conflict() -> None:
    features = _features(6)
    features[2] = features[0]
    other, groups = _find(features, [0, 0, 0, 1, 1, 1])
    assert other == [NO_ID] * 6
    assert groups == [0, 1, 0, 3, 4, 5]


def test_the_same_bytes_are_copies_and_every_one_meets_the_other_label() -> None:
    features = _features(6)
    features[[1, 4]] = features[0]
    other, groups = _find(features, [0, 0, 0, 1, 1, 1], ["x", "x", "c", "d", "x", "f"])
    assert other == [4, 4, NO_ID, NO_ID, 0, NO_ID]
    assert groups == [0, 0, 2, 3, 0, 5]


def test_features_that_differ_little_do_not_make_everything_a_copy() -> None:
    features = 100 + _features(8)
    assert _find(features, [0, 0, 0, 0, 1, 1, 1, 1])[0] == [NO_ID] * 8


def test_two_kinds_of_image_are_not_two_pictures() -> None:
    features = _features(8)
    features[:4, 0] += 30
    features[4:, 1] += 30
    assert _find(features, [0, 1, 0, 1, 0, 1, 0, 1])[0] == [NO_ID] * 8
