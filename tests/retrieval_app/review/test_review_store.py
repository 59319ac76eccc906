"""Decisions of people: kept, taken back and merged."""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.labels.decisions import PRESENT, DuplicateDecision, ImageRef, LabelDecision, LabelKey, Mark, tag_field
from index.labels.steps import SavedSearch, Step, read_held
from index.versions.annotations import DECISIONS as FILE_NAME
from retrieval_app.review.database import DecidedSinceError, ReviewError
from retrieval_app.review.review_store import ReviewStore

ROOT = Path(__file__).parents[3]
A, B, C = "a" * 64, "b" * 64, "c" * 64
GROUP = (ImageRef(1, A, None, "/x/1\udce9.jpg"), ImageRef(2, B, None, "/x/2.jpg"))
DECIDE_FOR_EVER = """
import sys
from pathlib import Path
from index.labels.decisions import LabelDecision
from retrieval_app.review.review_store import ReviewStore
store = ReviewStore(Path(sys.argv[1]))
for number in range(1_000_000):
    store.decide([LabelDecision(f"{number:064x}", "shoe", "change", f"label {number}")])
    print(number, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> ReviewStore:
    return ReviewStore(tmp_path / FILE_NAME)


def meaning(decisions: Mapping[LabelKey, LabelDecision]) -> list[LabelDecision]:
    return [replace(decision, decided_at="") for decision in decisions.values()]


def test_nothing_is_made_before_something_is_decided(store: ReviewStore) -> None:
    assert (store.label_decisions(), store.duplicate_decisions()) == ({}, {})
    assert (store.undo(), store.can_undo()) == (None, False)
    with pytest.raises(InputError):
        store.decide([LabelDecision(A, "x", "drop"), LabelDecision(B, "x", "burn")])
    with pytest.raises(InputError, match="got 0"):
        store.decide([])
    assert not store.path.exists()


def test_decisions_are_read_back_by_another_store_as_they_were_made(store: ReviewStore) -> None:
    made = [
        LabelDecision(A, "shoe", "change", "boot", 7, path="/x/caf\udce9\n'; DROP TABLE steps; --.jpg"),
        LabelDecision(B, None, "drop", image_id=8),
        LabelDecision(C, 'O\'Neill "x"', "keep"),
    ]
    step = store.decide(made)
    assert (step.image_ids, len(step.decisions)) == ((7, 8), 3)
    read = ReviewStore(store.path).label_decisions()
    assert set(meaning(read)) == set(made)
    assert all(decision.decided_at.endswith("+00:00") for decision in read.values())


def test_undo_goes_back_step_by_step_to_exactly_what_was(store: ReviewStore) -> None:
    chance = random.Random(0)
    states = [meaning(store.label_decisions())]

    def choose(sha256: str) -> LabelDecision:
        if chance.random() < 0.4:
            return LabelDecision(sha256, "x", chance.choice(["keep", "drop", "open"]))
        given, image_id = chance.choice(["x", "y", None]), chance.randint(1, 9)
        return LabelDecision(sha256, given, "change", f"new {chance.random()}", image_id)

    for _ in range(40):
        shas = chance.sample([A, B, C, "d" * 64], k=chance.randint(1, 3))
        store.decide([choose(sha256) for sha256 in shas])
        states.append(meaning(store.label_decisions()))
    assert len(states[-1]) > 4
    for before in reversed(states[:-1]):
        assert store.undo() is not None
        assert meaning(store.label_decisions()) == before
    assert store.undo() is None
    assert not store.can_undo()


def test_of_two_reviewers_nobody_undoes_what_the_other_decided(store: ReviewStore) -> None:
    other = ReviewStore(store.path)
    mine = store.decide([LabelDecision(A, "x", "drop", image_id=1)])
    seen = store.label_decisions()
    theirs = other.decide([LabelDecision(B, "x", "keep", image_id=2)])
    with pytest.raises(DecidedSinceError):
        store.decide([LabelDecision(B, "x", "drop", image_id=2)], seen=seen)
    with pytest.raises(DecidedSinceError):
        store.undo(mine.number)
    assert set(store.label_decisions()) == {(A, "x"), (B, "x")}
    assert other.undo(theirs.number) == theirs
    assert other.undo(theirs.number) is None  # it is gone, and the one before is somebody else's
    assert store.undo(mine.number) == mine
    assert store.undo(mine.number) is None


def test_a_step_about_labels_does_not_stand_in_the_way_of_one_about_duplicates(store: ReviewStore) -> None:
    step = store.decide([DuplicateDecision(GROUP, "different")])
    store.decide([LabelDecision(A, "x", "drop")])
    assert store.undo(step.number, about="duplicates") == step
    again = store.decide([DuplicateDecision(GROUP, "different")])
    store.decide([DuplicateDecision(GROUP, "duplicates", (1,))])
    with pytest.raises(DecidedSinceError):
        store.undo(again.number, about="duplicates")


def test_duplicate_decisions_are_read_back_and_undone(store: ReviewStore) -> None:
    first = DuplicateDecision(GROUP, "duplicates", (2,))
    store.decide([first])
    store.decide([DuplicateDecision(GROUP[::-1], "different")])
    read = ReviewStore(store.path)
    assert [decision.decision for decision in read.duplicate_decisions().values()] == ["different"]
    step = store.undo(about="duplicates")
    assert step.image_ids == (1, 2)
    again = read.duplicate_decisions()[first.group]
    assert replace(again, decided_at="") == first


def test_copies_with_one_label_are_decided_once_and_not_against_each_other(store: ReviewStore) -> None:
    step = store.decide([LabelDecision(A, "x", "drop", image_id=1), LabelDecision(A, "x", "drop", image_id=2)])
    assert (len(step.decisions), step.image_ids) == (1, (1,))
    with pytest.raises(InputError, match="contradict"):
        store.decide([LabelDecision(A, "x", "drop"), LabelDecision(A, "x", "keep")])
    with pytest.raises(InputError, match="contradict"):
        store.decide([DuplicateDecision(GROUP, "different"), DuplicateDecision(GROUP, "duplicates", (1,))])


def test_threads_that_decide_and_undo_at_once_lose_nothing(store: ReviewStore) -> None:
    def decide(number: int) -> None:
        for i in range(15):
            store.decide([LabelDecision(f"{100 * number + i:064x}", "x", "keep")])
            assert (f"{100 * number + i:064x}", "x") in store.label_decisions()

    other = ReviewStore(store.path)

    def group() -> None:
        for _ in range(10):
            other.decide([DuplicateDecision(GROUP, "different")])
            assert other.undo(about="duplicates") is not None

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(4)]
    threads.append(threading.Thread(target=group))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(other.label_decisions()) == len(store.label_decisions()) == 60
    assert not store.can_undo("duplicates")


@pytest.mark.slow
@pytest.mark.parametrize("answers", [1, 25])
def test_a_killed_process_loses_nothing_that_it_answered(store: ReviewStore, answers: int) -> None:
    command = [sys.executable, "-c", DECIDE_FOR_EVER, str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        seen = [int(process.stdout.readline()) for _ in range(answers)]
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in process.stdout.read().splitlines()]
    kept = store.label_decisions()
    assert len(kept) - len(seen) in (0, 1)  # one may have been kept whose answer was not heard
    assert all(kept[f"{number:064x}", "shoe"].new_label == f"label {number}" for number in seen)
    assert store.undo() is not None
    assert len(store.label_decisions()) == len(kept) - 1


def test_a_file_that_is_no_database_or_of_a_newer_program_is_named_and_left_alone(store: ReviewStore) -> None:
    store.path.write_bytes(b"not a database, but somebody's notes " * 30)
    for ask in (store.label_decisions, store.undo, lambda: store.decide([LabelDecision(A, "x", "keep")])):
        with pytest.raises(ReviewError, match="move the file away"):
            ask()
    assert store.path.read_bytes().startswith(b"not a database")
    newer = ReviewStore(store.path.with_name("newer"))
    with closing(sqlite3.connect(newer.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ReviewError, match="version 99"):
        newer.decide([LabelDecision(A, "x", "keep")])


def test_a_file_of_a_pre_release_is_named_and_is_to_be_kept(store: ReviewStore) -> None:
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("CREATE TABLE steps (number INTEGER PRIMARY KEY, kind, decided_at, decided_by)")
        connection.execute("CREATE TABLE label_decisions (step INTEGER, decision TEXT)")
        connection.execute("PRAGMA user_version = 1")
    for ask in (store.label_decisions, store.steps, lambda: store.decide([LabelDecision(A, "x", "keep")])):
        with pytest.raises(ReviewError, match="made by a pre-release; keep the file") as caught:
            ask()
        assert "move" not in str(caught.value)
    lacking = ReviewStore(store.path.with_name("lacking"))
    lacking.decide([LabelDecision(A, "x", "keep")])
    lacking.close()
    with closing(sqlite3.connect(lacking.path)) as connection:
        connection.execute("DROP TABLE marks")  # which is not read
    for ask in (lacking.label_decisions, lambda: lacking.decide([SavedSearch("mine", "q=1")])):
        with pytest.raises(ReviewError, match="made by a pre-release; keep the file"):
            ask()


def test_an_empty_file_that_a_killed_process_left_counts_as_none(store: ReviewStore) -> None:
    store.path.touch()
    assert (store.label_decisions(), store.can_undo()) == ({}, False)
    store.decide([LabelDecision(A, "x", "keep")])
    assert len(store.label_decisions()) == 1


EARLY, LATE, LATER = (f"2026-0{month}-01T10:00:00+00:00" for month in (1, 2, 3))


def label(sha256: str, decision: str = "keep", new_label: str | None = None) -> LabelDecision:
    return LabelDecision(sha256, "shoe", decision, new_label, 7, path="/x/caf\udce9.jpg")


def store_with(path: Path, *steps: Step) -> ReviewStore:
    store = ReviewStore(path)
    store.merge(steps)
    return store


def held(store: ReviewStore) -> dict[str, str]:
    return {sha256: d.new_label or d.decision for (sha256, _), d in store.label_decisions().items()}


def test_steps_are_read_as_they_were_decided_and_come_back(tmp_path: Path) -> None:
    store = ReviewStore(tmp_path / "one.sqlite")
    store.decide([label(A), label(B, "change", "boot")], by="anna")
    store.decide([DuplicateDecision(GROUP, "duplicates", (1,))])
    store.decide([label(A, "open")])
    steps = store.steps()
    assert [len(step.by_subject()) for step in steps] == [2, 1, 1]
    assert [step.decided_by for step in steps] == ["anna", None, None]
    other = store_with(tmp_path / "two.sqlite", *steps)
    assert other.steps() == steps
    assert other.label_decisions() == store.label_decisions()
    assert other.duplicate_decisions() == store.duplicate_decisions()
    assert other.undo() is not None
    assert held(other) == {A: "keep", B: "boot"}


def test_of_two_decisions_the_later_holds_and_can_be_undone(tmp_path: Path) -> None:
    store = store_with(tmp_path / "here.sqlite", Step(LATE, (label(A), label(B, "drop"))))
    brought = [Step(EARLY, (label(A, "drop"), label(C, "drop"))), Step(LATER, (label(B, "change", "boot"),))]
    assert store.merge(brought) == {"restored": 2, "present": 0, "older": 1}
    assert held(store) == {A: "keep", B: "boot", C: "drop"}
    assert store.undo() is not None
    assert held(store) == {A: "keep", B: "drop", C: "drop"}


def test_what_was_taken_back_later_stays_taken_back(tmp_path: Path) -> None:
    store = store_with(tmp_path / "here.sqlite", Step(EARLY, (label(A),)), Step(LATER, (label(A, "open"),)))
    assert store.merge([Step(LATE, (label(A, "drop"),))])["older"] == 1
    assert held(store) == {}


def test_a_merge_that_fails_leaves_all_as_it_was(tmp_path: Path) -> None:
    store = store_with(tmp_path / "here.sqlite", Step(EARLY, (label(A),)))
    with pytest.raises(Exception, match="NOT NULL"):
        store.merge([Step(LATE, (label(C),)), Step(None, (label(B),))])  # type: ignore[arg-type]
    assert held(store) == {A: "keep"}


BULK = LabelDecision(A, "shoe", "change", "boot", source="bulk", p_right=0.8, others_right=0.9, others_to=7)
ASIDE = LabelDecision(B, "shoe", "set_aside", source="bulk", others_right=0.9, others_to=7)
IMPORTED = LabelDecision(C, None, "change", "hat", source="import", p_right=0.25)


def test_who_decided_and_how_probably_it_is_right_comes_back_and_goes_with_an_undo(tmp_path: Path) -> None:
    store = ReviewStore(tmp_path / "one.sqlite")
    store.decide([replace(BULK, new_label="hat", p_right=0.6, others_right=0.7), IMPORTED])
    store.decide([BULK, ASIDE])
    again = ReviewStore(store.path)
    assert set(meaning(again.label_decisions())) == {BULK, ASIDE, IMPORTED}
    assert again.label_probabilities().others == (0.9, 7)
    assert again.label_probabilities().decisions == again.label_decisions()
    undone = again.undo()
    assert set(undone.labels) == {BULK, ASIDE}
    assert again.label_probabilities().others == (0.7, 7)
    assert again.label_decisions()[BULK.key].p_right == 0.6
    again.undo()
    assert (again.label_probabilities().others, again.label_decisions()) == (None, {})


@pytest.mark.parametrize("wrong", [{"p_right": -0.1}, {"p_right": 1.1}, {"p_right": float("nan")}, {"source": "me"}])
def test_a_decision_with_no_probability_or_of_nobody_is_refused(store: ReviewStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="p_right in 0"):
        store.decide([replace(BULK, **wrong)])
    assert not store.path.exists()


def marks_of(store: ReviewStore) -> dict[tuple[str, str], str | None]:
    if not store.path.exists():
        return {}
    with closing(sqlite3.connect(store.path)) as connection:
        found = read_held(connection, Mark)
    return {(mark.sha256, mark.field): mark.value for mark in found if mark.meaning is not None}


def test_marks_and_searches_are_steps_of_their_own(store: ReviewStore) -> None:
    summer = tag_field(" summer ")
    store.decide([Mark(A, summer, PRESENT), Mark(B, summer, PRESENT), Mark(A, "split", "train")], by="anna")
    assert marks_of(store) == {(A, "tag:summer"): PRESENT, (B, "tag:summer"): PRESENT, (A, "split"): "train"}
    taken = store.decide([Mark(A, summer, None), Mark(A, "split", "test")])
    assert marks_of(store) == {(B, "tag:summer"): PRESENT, (A, "split"): "test"}
    store.decide([LabelDecision(A, "x", "drop")])
    assert store.decide([SavedSearch("dark", "where=brightness<0.2")]).kind == "searches"
    assert store.undo(taken.number, about="marks") is not None  # others do not stand in its way
    assert marks_of(store)[A, "split"] == "train"
    store.decide([SavedSearch("dark", None)])
    assert store.saved_searches() == {}
    store.undo(about="searches")
    assert store.saved_searches()["dark"].query == "where=brightness<0.2"
    assert [step.kind for step in store.steps()] == ["marks", "labels", "searches"]
    other = store_with(store.path.with_name("other"), *store.steps())
    assert [replace(step, number=0) for step in other.steps()] == [replace(step, number=0) for step in store.steps()]
    assert marks_of(other) == marks_of(store)


def test_of_two_marks_the_later_holds_also_where_it_was_taken_away(tmp_path: Path) -> None:
    store = store_with(tmp_path / "here.sqlite", Step(LATE, (Mark(A, "tag:x", None), Mark(B, "split", "test"))))
    brought = [Step(EARLY, (Mark(A, "tag:x", PRESENT),)), Step(LATER, (Mark(B, "split", "train"),))]
    assert store.merge(brought) == {"restored": 1, "present": 0, "older": 1}
    assert marks_of(store) == {(B, "split"): "train"}
    assert store.merge(brought) == {"restored": 0, "present": 1, "older": 1}


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        (Mark(A, "tag:" + "x" * 300, PRESENT), "a tag has at most 200 characters, this one has 300"),
        (Mark(A, "tag:a\nb", PRESENT), "which no tag can have"),
        (Mark(A, "tag:x", "2"), "a tag is there or not"),
        (Mark(A, "colour", "red"), "a mark is tag:NAME or split"),
        (Mark("1", "split", "test"), "64 hexadecimal digits"),
    ],
)
def test_a_mark_that_is_none_is_one_clear_error(store: ReviewStore, mark: Mark, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        store.decide([mark])
    assert not store.path.exists()
