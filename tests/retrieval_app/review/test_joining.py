from __future__ import annotations

from pathlib import Path

import pytest

from index.labels.decisions import LabelDecision
from index.versions.people import decisions_file, former_decisions_file
from retrieval_app.review.joining import join_decisions
from retrieval_app.review.review_store import ReviewStore

A, B = "a" * 64, "b" * 64


def decide(path: Path, *shas: str) -> None:
    path.parent.mkdir(exist_ok=True)
    store = ReviewStore(path)
    store.decide([LabelDecision(sha256, "x", "keep") for sha256 in shas])
    store.close()


def test_decisions_that_an_earlier_program_made_since_are_taken_over(tmp_path: Path) -> None:
    decide(decisions_file(tmp_path), A)
    decide(former_decisions_file(tmp_path), B)
    join_decisions(tmp_path)
    assert {sha256 for sha256, _ in ReviewStore.of_gallery(tmp_path).label_decisions()} == {A, B}
    assert not former_decisions_file(tmp_path).exists()


def test_decisions_in_one_place_are_left_alone(tmp_path: Path) -> None:
    decide(former_decisions_file(tmp_path), B)
    join_decisions(tmp_path)
    assert former_decisions_file(tmp_path).exists()
    assert not decisions_file(tmp_path).exists()


def test_damaged_decisions_in_the_former_place_stay_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decide(decisions_file(tmp_path), A)
    former_decisions_file(tmp_path).write_bytes(b"no database" * 100)
    join_decisions(tmp_path)
    assert former_decisions_file(tmp_path).read_bytes() == b"no database" * 100
    assert len(ReviewStore.of_gallery(tmp_path).label_decisions()) == 1
    assert "not brought together" in caplog.text
