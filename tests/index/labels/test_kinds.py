"""One rule, one kind of trouble."""

from __future__ import annotations

import numpy as np
import pytest

from index.labels.kinds import find_mixed_labels, has_copy_with_another_label, tell_kind


@pytest.mark.parametrize(
    ("wrong", "best_other", "is_unlike", "has_copy", "expected"),
    [
        (0.9, 0.9, False, False, "wrong"),
        (0.76, 0.7, False, False, "wrong"),
        (0.7, 0.6, False, False, "several"),
        (0.3, 0.25, False, False, "several"),
        (0.3, 0.2, False, False, "wrong"),  # nothing but its own label is likely
        (0.9, 0.9, True, False, "unlike"),
        (0.5, 0.5, True, False, "unlike"),
        (0.01, 0.01, False, True, "copies"),
        (0.9, 0.9, True, True, "copies"),
    ],
)
def test_every_rule_tells_its_kind(
    wrong: float, best_other: float, is_unlike: bool, has_copy: bool, expected: str
) -> None:
    assert tell_kind(wrong=wrong, best_other=best_other, is_unlike=is_unlike, has_copy=has_copy) == expected


def test_copies_are_told_on_every_side_where_their_labels_differ() -> None:
    labels, groups = np.array([0, 1, 2, 2, 3, 0]), np.array([7, 7, 8, 8, 9, 7])
    assert has_copy_with_another_label(labels, groups).tolist() == [True, True, False, False, False, True]


def test_labels_are_mixed_up_where_each_is_given_for_the_other() -> None:
    labels = np.repeat([0, 1, 2, 3], 40)
    pairs = ((0, 1, 4.0), (1, 0, 6.0), (2, 3, 20.0), (3, 2, 0.5), (0, 2, 2.0), (2, 0, 0.9))
    assert find_mixed_labels(pairs, labels, count=4) == [(0, 1, 10.0)]  # 2 is never given for 3
