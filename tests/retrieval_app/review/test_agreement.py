"""How far people who decided about the same labels agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.labels.decisions import CHANGE, DROP, KEEP, OPEN, LabelDecision
from retrieval_app.review.agreement import Agreement
from retrieval_app.review.review_store import ReviewStore


@pytest.fixture
def store(tmp_path: Path) -> ReviewStore:
    return ReviewStore(tmp_path / "decisions.db")


def decide(store: ReviewStore, by: str | None, image: str, decision: str, label: str | None = None) -> None:
    store.decide([LabelDecision(image * 64, "shoe", decision, label)], by=by)


def test_two_people_are_compared_by_the_last_decision_of_each(store: ReviewStore) -> None:
    decide(store, "ann", "a", KEEP)
    decide(store, "bob", "a", CHANGE, "hat")
    decide(store, "bob", "a", KEEP)
    decide(store, "ann", "b", CHANGE, "hat")
    decide(store, "bob", "b", CHANGE, "boot")
    decide(store, "ann", "c", DROP)
    decide(store, "cem", "c", DROP)
    assert store.agreement() == (Agreement(("ann", "bob"), 2, 1), Agreement(("ann", "cem"), 1, 1))


def test_what_was_taken_back_and_what_nobody_is_named_for_does_not_count(store: ReviewStore) -> None:
    assert store.agreement() == ()
    decide(store, "ann", "a", KEEP)
    decide(store, None, "a", KEEP)
    decide(store, "bob", "b", KEEP)
    decide(store, "ann", "b", KEEP)
    decide(store, "ann", "b", OPEN)
    assert store.agreement() == ()
    store.undo()  # ann's taking back
    assert store.agreement() == (Agreement(("ann", "bob"), 1, 1),)
