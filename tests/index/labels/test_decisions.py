"""What can be decided about a label."""

from __future__ import annotations

import pytest

from index.errors import InputError
from index.labels.decisions import LabelDecision, check_label, check_label_decision

A = "a" * 64


def test_a_change_to_the_label_that_is_given_already_keeps_it() -> None:
    checked = check_label_decision(LabelDecision(A, "shoe", "change", " shoe "))
    assert (checked.decision, checked.new_label) == ("keep", None)


def test_white_space_around_a_new_label_is_taken_away() -> None:
    assert check_label_decision(LabelDecision(A, "shoe", "change", " boot\t")).new_label == "boot"


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (LabelDecision(A, "shoe", "change"), "empty"),
        (LabelDecision(A, "shoe", "change", "  "), "empty"),
        (LabelDecision(A, "shoe", "keep", "boot"), "only 'change' takes a new label"),
        (LabelDecision(A, "shoe", "burn"), "one of keep, change, drop, open"),
        (LabelDecision("x' OR 1=1 --", "shoe", "keep"), "64 hexadecimal digits"),
    ],
)
def test_a_decision_that_says_nothing_clear_is_refused(decision: LabelDecision, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_label_decision(decision)


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\ud800", "a\x1b[31m", "x" * 201])
def test_a_label_that_no_file_or_terminal_should_hold_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        check_label(text)
