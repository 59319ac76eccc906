"""Each kind of label issue by its rule; labels of two classes are found to split, clean classes are not."""

import numpy as np
import pytest

from index.labels.kinds import (
    RARE,
    IssueKinds,
    find_confused_classes,
    has_conflicting_duplicate,
    has_rare_class,
    is_outlier,
)
from index.labels.label_errors import LabelErrors
from index.labels.list_issues import find_split_classes
from index.labels.simulated_noise import ErrorCalibration


def _errors(
    best: np.ndarray,
    chances: np.ndarray,
    wrong: np.ndarray,
    none: np.ndarray,
    pairs: tuple[tuple[int, int, float], ...] = (),
) -> LabelErrors:
    """Label errors with (N, s) most probable classes, the first of which is suggested."""
    confident = np.full(len(wrong), 0.7, dtype=np.float32)
    calibration = ErrorCalibration(np.zeros(len(wrong)), wrong, confident, np.zeros(len(wrong)))
    rates = np.zeros(best.max() + 1)
    return LabelErrors(calibration, wrong, best[:, 0], chances[:, 0], none, best, chances, rates, pairs, confident)


@pytest.mark.parametrize(
    ("wrong", "best_other", "flags", "expected"),
    [
        (0.9, 0.9, "", "wrong_label"),
        (0.7, 0.6, "", "ambiguous"),
        (0.3, 0.25, "", "ambiguous"),
        (0.3, 0.2, "", "wrong_label"),  # nothing but its own label is likely
        (0.9, 0.9, "is_mixed", "confused_classes"),
        (0.9, 0.9, "is_rare is_mixed", "rare_class"),
        (0.9, 0.9, "is_outlier", "outlier"),
        (0.5, 0.5, "is_outlier is_rare is_mixed", "outlier"),
        (0.01, 0.01, "has_twin", "conflicting_duplicates"),
        (0.9, 0.9, "is_outlier has_twin is_rare", "conflicting_duplicates"),
    ],
)
def test_every_rule_tells_its_kind(wrong: float, best_other: float, flags: str, expected: str) -> None:
    labels = np.repeat([0, 1], 10)
    best, chances = np.tile([1, 0], (20, 1)), np.tile([best_other, 1 - wrong], (20, 1))
    pairs = ((0, 1, 9.0), (1, 0, 9.0)) if "is_mixed" in flags else ()
    found = _errors(best, chances, np.full(20, wrong), np.zeros(20), pairs=pairs)
    kinds = IssueKinds(found, labels, np.arange(20), count=2)
    for name, rows in (
        ("is_rare", kinds.rare_class),
        ("is_outlier", kinds.outliers),
        ("has_twin", kinds.conflicting_duplicates),
    ):
        rows[0] = name in flags
    assert kinds.kind_of(0) == expected


def test_a_label_is_rare_by_the_images_that_are_no_copies_of_each_other() -> None:
    labels = np.array([0] * RARE + [1] * RARE + [2])
    groups = np.arange(len(labels))
    groups[RARE : RARE + 2] = RARE  # two of the second label are one image
    assert has_rare_class(labels, groups).tolist() == [False] * RARE + [True] * RARE + [True]


def test_copies_are_told_on_every_side_where_their_labels_differ() -> None:
    labels, groups = np.array([0, 1, 2, 2, 3, 0]), np.array([7, 7, 8, 8, 9, 7])
    assert has_conflicting_duplicate(labels, groups).tolist() == [True, True, False, False, False, True]


def test_labels_are_mixed_up_where_each_is_given_for_the_other() -> None:
    labels = np.repeat([0, 1, 2, 3], 40)
    pairs = ((0, 1, 4.0), (1, 0, 6.0), (2, 3, 20.0), (3, 2, 0.5), (0, 2, 2.0), (2, 0, 0.9))
    assert find_confused_classes(pairs, labels, count=4) == [(0, 1, 10.0)]  # 2 is never given for 3


def test_an_outlier_shows_none_of_the_labels_with_one_half_or_more_and_with_more_than_any_of_them() -> None:
    chances = np.array([[0.3, 0.2], [0.3, 0.2], [0.5, 0.3]])
    found = _errors(np.tile([1, 0], (3, 1)), chances, np.full(3, 0.7), np.array([0.5, 0.49, 0.1]))
    assert is_outlier(found).tolist() == [True, False, False]


def draw(*, classes: int = 12, images: int = 20, width: int = 32) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.arange(classes).repeat(images)
    centres = random.normal(size=(classes, width))
    return (centres[labels] + 0.6 * random.normal(size=(len(labels), width))).astype(np.float32), labels


def test_only_a_label_of_two_classes_is_found_by_its_smaller_part() -> None:
    vectors, classes = draw()
    alone = np.arange(len(classes))
    assert not find_split_classes(vectors, classes, alone, count=12).any()
    means = np.stack([vectors[classes == label].mean(axis=0) for label in range(12)])
    far = int((means @ means[0]).argmin())
    smaller = np.flatnonzero(classes == far)[:14]
    kept = np.concatenate([np.flatnonzero(classes != far), smaller])
    labels = np.where(classes == far, 0, classes)[kept]
    found = find_split_classes(vectors[kept], labels, alone[kept], count=12)
    assert set(kept[found]) == set(smaller)
    copies = alone[kept].copy()
    copies[np.isin(kept, smaller)] = -1  # one image, saved often, is no class
    assert not find_split_classes(vectors[kept], labels, copies, count=12).any()
