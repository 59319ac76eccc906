"""What a person decided: read strictly, matched by content and label."""

from pathlib import Path

import pytest

from index.errors import InputError
from index.labels.decisions import CHANGE, DROP, KEEP, LabelDecision, check_label, check_label_decision, read_decisions

KNOWN = {("x", "cat"), ("y", "dog")}
HEADER = "path,sha256,label,decision,new_label\n"


def _write(folder: Path, text: str) -> Path:
    path = folder / "decisions.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def test_the_three_decisions_are_read(tmp_path: Path) -> None:
    lines = "x.png,x,cat,change,dog\r\ny.png,y,dog,drop,\r\nz.png,z,owl,change,owl\r\n"
    found = read_decisions(_write(tmp_path, "\ufeff" + HEADER + lines), known=KNOWN | {("z", "owl")})
    assert {key: (d.decision, d.new_label) for key, d in found.items()} == {
        ("x", "cat"): (CHANGE, "dog"),
        ("y", "dog"): (DROP, None),
        ("z", "owl"): (KEEP, None),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nx.png,cat\n", "lacks sha256,decision,new_label"),
        (HEADER + "x.png,x,cat,keep,\ny.png,y,dog,delete,\n", "line 3: the decision must be one of .* 'delete'"),
        (HEADER + "x.png,x,cat\n", "line 2: the decision must be one of"),
        (HEADER + "x.png,x,cat,change,\n", "line 2: change needs a new_label"),
        (HEADER + '"a\nb.png",x,cat,keep,\n"a\nb.png",x,cat,drop,\n', r"line 5: a\\nb.png .*decided otherwise"),
    ],
)
def test_a_file_that_says_nothing_clear_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_decisions(_write(tmp_path, text), known=KNOWN)
    with pytest.raises(InputError, match="no such decisions file"):
        read_decisions(tmp_path / "none.csv", known=KNOWN)


def test_decisions_of_another_run_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = "x.png,x,bird,keep,\nz.png,z,cat,keep,\nx.png,x,cat,keep,\n"
    assert set(read_decisions(_write(tmp_path, HEADER + lines), known=KNOWN)) == {("x", "cat")}
    assert "2 decisions, the first in" in caplog.text
    assert "line 2" in caplog.text


A = "a" * 64


def test_a_change_to_the_label_that_is_given_already_keeps_it() -> None:
    checked = check_label_decision(LabelDecision(A, "shoe", "change", " shoe "))
    assert (checked.decision, checked.new_label) == ("keep", None)
    assert check_label_decision(LabelDecision(A, "shoe", "change", " boot\t")).new_label == "boot"


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (LabelDecision(A, "shoe", "change", "  "), "empty"),
        (LabelDecision(A, "shoe", "keep", "boot"), "only 'change' takes a new label"),
        (LabelDecision(A, "shoe", "burn"), "one of keep, change, set_aside, drop, open"),
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
