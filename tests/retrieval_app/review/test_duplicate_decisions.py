from __future__ import annotations

from dataclasses import replace

import pytest

from index.errors import InputError
from retrieval_app.review.duplicate_decisions import (
    DuplicateDecision,
    GroupImage,
    check_duplicate_decision,
    name_group,
)

A, B = "a" * 64, "b" * 64
GROUP = (GroupImage(A, 1, "/x/1.jpg"), GroupImage(A, 2, "/x/2.jpg"), GroupImage(B, 3, "/x/3.jpg"))


def test_a_group_has_the_same_name_in_any_order_and_another_with_one_more_copy() -> None:
    assert name_group([A, B, A]) == name_group([B, A, A]) != name_group([A, B])


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (DuplicateDecision(GROUP, "copies"), "at least one is kept"),
        (DuplicateDecision(GROUP, "copies", (1, 9)), r"\[9\] are not among \[1, 2, 3\]"),
        (DuplicateDecision(GROUP, "different", (1,)), "only 'copies'"),
        (DuplicateDecision(GROUP[:1], "different"), "at least two images"),
        (DuplicateDecision(GROUP[:1] * 2, "different"), "at least two images"),
        (DuplicateDecision((*GROUP, GROUP[0]), "different"), "at least two images"),
        (DuplicateDecision(GROUP, "merge", (1,)), "one of copies, different, open"),
    ],
)
def test_a_duplicate_decision_that_says_nothing_clear_is_refused(decision: DuplicateDecision, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_duplicate_decision(decision)


def test_kept_images_are_found_by_path_where_a_new_gallery_gave_them_other_ids() -> None:
    decision = DuplicateDecision(GROUP, "copies", (2, 3))
    renumbered = [replace(image, image_id=4 - image.image_id) for image in GROUP]  # 1 and 3 swap their ids
    assert decision.find_kept(renumbered) == (1, 2)


def test_another_of_the_same_bytes_stands_for_a_kept_image_that_is_not_found() -> None:
    decision = DuplicateDecision(GROUP, "copies", (1, 2))
    moved = [GroupImage(A, 11, "/y/1"), GroupImage(A, 12, "/y/2"), GroupImage(B, 13, "/y/3")]
    assert decision.find_kept(moved) == (11, 12)
