from __future__ import annotations

import json
from pathlib import Path

import pytest

from index.errors import InputError
from index.labels.decisions import LabelDecision
from retrieval_app.review.database import Database
from retrieval_app.review.decision_lines import read_step, write_lines
from retrieval_app.review.duplicate_decisions import DuplicateDecision, GroupImage
from retrieval_app.review.history import DecidedStep, Merged, merge_history, read_history
from retrieval_app.review.review_store import ReviewStore

A, B, C = "a" * 64, "b" * 64, "c" * 64
GROUP = (GroupImage(A, 1, "/x/1\udce9.jpg"), GroupImage(B, 2, "/x/2.jpg"))
EARLY, LATE, LATER = (f"2026-0{month}-01T10:00:00+00:00" for month in (1, 2, 3))


def label(sha256: str, decision: str = "keep", new_label: str | None = None) -> LabelDecision:
    return LabelDecision(sha256, "shoe", decision, new_label, 7, path="/x/caf\udce9.jpg")


def store_with(path: Path, *steps: DecidedStep) -> ReviewStore:
    merge_history(Database(path), steps)
    return ReviewStore(path)


def held(store: ReviewStore) -> dict[str, str]:
    return {sha256: d.new_label or d.decision for (sha256, _), d in store.label_decisions().items()}


def test_steps_are_read_as_they_were_decided_and_come_back_through_lines(tmp_path: Path) -> None:
    store = ReviewStore(tmp_path / "one.sqlite")
    store.decide([label(A), label(B, "change", "boot")])
    store.decide_duplicates([DuplicateDecision(GROUP, "copies", (1,))])
    store.decide([label(A, "open")])
    steps = read_history(Database(store.path))
    assert [len(step.by_subject()) for step in steps] == [2, 1, 1]
    lines = list(write_lines(steps))
    assert [read_step(json.loads(line)) for line in lines] == steps
    other = store_with(tmp_path / "two.sqlite", *steps)
    assert read_history(Database(other.path)) == steps
    assert other.label_decisions() == store.label_decisions()
    assert other.duplicate_decisions() == store.duplicate_decisions()
    assert other.undo() is not None
    assert held(other) == {A: "keep", B: "boot"}


def test_of_two_decisions_the_later_holds_and_can_be_undone(tmp_path: Path) -> None:
    store = store_with(tmp_path / "here.sqlite", DecidedStep(LATE, (label(A), label(B, "drop"))))
    brought = [
        DecidedStep(EARLY, (label(A, "drop"), label(C, "drop"))),
        DecidedStep(LATER, (label(B, "change", "boot"),)),
    ]
    assert merge_history(Database(store.path), brought) == Merged(restored=2, present=0, older=1)
    assert held(store) == {A: "keep", B: "boot", C: "drop"}
    assert store.undo() is not None
    assert held(store) == {A: "keep", B: "drop", C: "drop"}


def test_what_was_taken_back_later_stays_taken_back(tmp_path: Path) -> None:
    store = store_with(
        tmp_path / "here.sqlite", DecidedStep(EARLY, (label(A),)), DecidedStep(LATER, (label(A, "open"),))
    )
    assert merge_history(Database(store.path), [DecidedStep(LATE, (label(A, "drop"),))]).older == 1
    assert held(store) == {}


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    steps = [
        DecidedStep(EARLY, (label(A), label(B))),
        DecidedStep(LATE, (), (DuplicateDecision(GROUP, "different"),)),
    ]
    store = store_with(tmp_path / "here.sqlite", *steps)
    before = read_history(Database(store.path))
    assert merge_history(Database(store.path), steps) == Merged(restored=0, present=3, older=0)
    assert read_history(Database(store.path)) == before


def test_a_merge_that_fails_leaves_all_as_it_was(tmp_path: Path) -> None:
    store = store_with(tmp_path / "here.sqlite", DecidedStep(EARLY, (label(A),)))
    spoilt = LabelDecision(B, "shoe", "no such word", None, 7, path="")
    with pytest.raises(Exception, match="CHECK"):
        merge_history(Database(store.path), [DecidedStep(LATE, (label(C),)), DecidedStep(LATER, (spoilt,))])
    assert held(store) == {A: "keep"}


GOOD = {"sha256": A, "label": "x", "decision": "keep", "new_label": None, "image_id": 1, "path": "/x"}


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"decided_at": LATE, "labels": [], "duplicates": []},
        {"decided_at": "yesterday", "labels": [GOOD], "duplicates": []},
        {"decided_at": "2026-01-01T10:00:00", "labels": [GOOD], "duplicates": []},
        *({"decided_at": LATE, "labels": [{**GOOD, **wrong}], "duplicates": []} for wrong in (
            {"sha256": "A" * 64}, {"sha256": 5}, {"label": "\ud800"}, {"decision": "destroy"}, {"image_id": -1},
            {"image_id": True}, {"image_id": 1 << 70}, {"path": "\ud800"}, {"decision": "change"},
        )),
        *({"decided_at": LATE, "labels": [], "duplicates": [group]} for group in (
            None, {"decision": "copies", "keep": [9], "images": [[A, 1, "x"], [B, 2, "y"]]},
            {"decision": "copies", "keep": [1], "images": [[A, 1, "x"]]},
            {"decision": "copies", "keep": "1", "images": [[A, 1, "x"], [B, 2, "y"]]},
            {"decision": "different", "keep": [], "images": [[A, 1, "x"], [B, "2", "y"]]},
        )),
    ],
)  # fmt: skip
def test_a_line_that_is_no_step_is_refused(line: dict[str, object]) -> None:
    with pytest.raises(InputError):
        read_step(line)


def test_who_decided_is_kept_and_goes_into_backups_and_back(tmp_path: Path) -> None:
    store = store_with(tmp_path / "here.sqlite")
    store.decide([label(A)], by="anna")
    store.decide([label(B)])
    steps = read_history(Database(store.path))
    assert [step.decided_by for step in steps] == ["anna", None]
    lines = [json.loads(line) for line in write_lines(steps)]
    assert list(map(read_step, lines)) == steps
    brought = store_with(tmp_path / "there.sqlite")
    merge_history(Database(brought.path), map(read_step, lines))
    assert [step.decided_by for step in read_history(Database(brought.path))] == ["anna", None]
    assert steps[0].keep({f"{A}/shoe"}).decided_by == "anna"
