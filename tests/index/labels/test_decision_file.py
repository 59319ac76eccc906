"""What a person decided: read strictly, matched by content and label."""

from pathlib import Path

import pytest

from index.errors import InputError
from index.labels.decision_files import match_decisions
from index.labels.decisions import CHANGE, DROP, ImageRef, LabelDecision, check_label, check_label_decision

A, B = "a" * 64, "b" * 64
KNOWN = [ImageRef(1, A, "cat", "/photos/x.png"), ImageRef(2, B, "dog", "/photos/y.png")]
HEADER = "path,sha256,label,decision,new_label\n"


def _write(folder: Path, text: str) -> Path:
    path = folder / "decisions.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def test_decisions_of_a_page_are_read_and_those_of_another_run_are_left_out(tmp_path: Path) -> None:
    lines = f"x.png,{A},cat,change,dog\r\ny.png,{B},dog,drop,\r\nz.png,{A},bird,keep,\r\nw.png,{B[1:]},dog,keep,\r\n"
    found, unknown = match_decisions(_write(tmp_path, "\ufeff" + HEADER + lines), KNOWN, of_page=True)
    assert [(d.key, d.decision, d.new_label, d.p_right) for d in found] == [
        ((A, "cat"), CHANGE, "dog", 1),
        ((B, "dog"), DROP, None, 1),
    ]
    assert unknown == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nx.png,cat\n", "expected the columns path or sha256, label and decision, found label, path"),
        (f"{HEADER}x.png,{A},cat,keep,\ny.png,{B},dog,delete,\n", "line 3: the decision must be one of .* 'delete'"),
        (f"{HEADER}x.png,{A},cat,change,\n", "line 2: the new label is empty"),
        (f'{HEADER}"a\nb.png",{A},cat,keep,\n"a\nb.png",{A},cat,drop,\n', "line 5: .*decided otherwise"),
    ],
)
def test_a_file_that_says_nothing_clear_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        match_decisions(_write(tmp_path, text), KNOWN, of_page=True)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        match_decisions(tmp_path / "none.csv", KNOWN, of_page=True)


def test_a_change_to_the_label_that_is_given_already_keeps_it() -> None:
    checked = check_label_decision(LabelDecision(A, "shoe", "change", " shoe "))
    assert (checked.decision, checked.new_label) == ("keep", None)
    assert check_label_decision(LabelDecision(A, "shoe", "change", " boot\t")).new_label == "boot"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((A, "shoe", "change", "  "), "empty"),
        ((A, "shoe", "keep", "boot"), "only 'change' takes a new label"),
        ((A, "shoe", "burn"), "one of keep, change, set_aside, drop, open"),
        (("x' OR 1=1 --", "shoe", "keep"), "64 hexadecimal digits"),
    ],
)
def test_a_decision_that_says_nothing_clear_is_refused(values: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_label_decision(LabelDecision(*values))


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\ud800", "a\x1b[31m", "x" * 201])
def test_a_label_that_no_file_or_terminal_should_hold_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        check_label(text)
