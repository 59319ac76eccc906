"""The tables and the label file that an audit writes, and what a decision changes."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.labels.decisions import CHANGE, DROP, KEEP, LabelDecision
from index.labels.issue_tables import read_issues
from index.labels.issues import LabelIssue
from index.sources.table_rows import read_labels
from tests.training.audits import audit_of, audited
from tests.training.conftest import make_config
from tests.training.runs import read_csv
from training.audit.run_audit import check_label_target, choose_labels, write_audit_tables, write_cleaned_labels
from training.run.run_folder import RunFolder

ODD = os.fsdecode(b'caf\xe9, "quoted"\nline.png')


def test_images_are_listed_by_suspicion_with_all_that_is_known_and_the_summary_counts(tmp_path: Path) -> None:
    kept = LabelDecision("hash of c.png", "dog", KEEP)
    images = [
        audited("a.png", "cat", agreeing=((1, 0.5),), disagreeing=((2, 0.25, "dog"),)),
        audited(ODD, "cat", verdict=DROP, duplicate_of=2),
        audited(
            "c.png",
            "dog",
            p_error=0.9,
            confidence=0.2,
            verdict=CHANGE,
            decision=kept,
            duplicate_of=1,
            p_none=0.1,
            suggestions=(("cat", 0.7), ("owl", 0.1)),
        ),
    ]
    classes = (("dog", 1, 0.6), ("cat", 2, 0.1))
    report = audit_of(images, noise_rate=0.2667, classes=classes, pairs=(("dog", "cat", 0.6),))
    written = write_audit_tables(report, tmp_path, run=Path("run"))
    assert sorted(written) == sorted(tmp_path.iterdir())
    rows = read_csv(tmp_path / "audit.csv")
    assert [row["path"] for row in rows] == ["/photos/c.png", "/photos/a.png", f"/photos/{ODD}"]
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert {name: value for name, value in rows[0].items() if value} == {
        "rank": "1",
        "path": "/photos/c.png",
        "sha256": "hash of c.png",
        "label": "dog",
        "p_error": "0.9",
        "p_none": "0.1",
        "suggested": "cat",
        "p_suggested": "0.7",
        "suggestion_1": "cat",
        "suggestion_probability_1": "0.7",
        "suggestion_2": "owl",
        "suggestion_probability_2": "0.1",
        "verdict": "change",
        "decision": "keep",
        "p_right": "1.0",
        "confidence": "0.2",
        "duplicate_of": f"/photos/{ODD}",
    }
    assert (rows[1]["agreeing_1"], rows[1]["agreeing_cosine_1"]) == (f"/photos/{ODD}", "0.5")
    assert (rows[1]["disagreeing_1"], rows[1]["disagreeing_cosine_1"]) == ("/photos/c.png", "0.25")
    read = read_issues(tmp_path / "audit.csv")
    assert [one.path for one in read.items] == [images[2].path, images[0].path, images[1].path]
    assert read.items[0].suggestions == images[2].suggestions
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdicts"] == {"keep": 2, "change": 0, "set_aside": 0, "drop": 1}
    assert (summary["images"], summary["noise_rate"]) == (3, 0.2667)
    assert summary["pairs"] == [{"label": "dog", "suggested": "cat", "noise_rate": 0.6, "images": 0.6}]


def change(name: str, label: str, new_label: str, **more: Any) -> LabelIssue:
    return audited(name, label, verdict=CHANGE, suggestions=((new_label, 0.8),), **more)


def test_verdicts_keep_change_and_leave_out() -> None:
    images = [audited("a", "cat"), change("b", "cat", "dog"), audited("c", "cat", verdict=DROP)]
    assert choose_labels(images) == ["cat", "dog", None]


def test_what_a_person_decided_about_one_copy_settles_the_others() -> None:
    def decide(decision: str, new_label: str | None = None) -> LabelIssue:
        return audited("0", "cat", duplicate_of=1, decision=LabelDecision("x", "cat", decision, new_label))

    first, second = (
        audited(name, label, confidence=confidence, duplicate_of=other)
        for name, label, confidence, other in (("0", "cat", 0.2, 1), ("1", "dog", 0.7, 0))
    )
    both = replace(second, decision=LabelDecision("y", "dog", KEEP))
    more = [audited(f"{number}", "cat") for number in range(2, 6)]
    for images, expected in (
        ([decide(KEEP), second], ["cat", None]),
        ([decide(CHANGE, "dog"), second], ["dog", "dog"]),
        ([decide(DROP), second], [None, "dog"]),
        ([decide(KEEP), both], ["cat", "dog"]),
        ([first, second], ["cat", "dog"]),  # both labels are rare
        ([first, second, *more], [None, "dog"]),
    ):
        assert choose_labels(images)[:2] == expected


def test_paths_are_relative_and_hostile_names_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["plain.png", 'quo"te, and\nlines\r.png', " spaces .png", "emoji 🐈.png", os.fsdecode(b"caf\xe9.png")]
    photos = tmp_path / "photos"
    images = [replace(audited(name, "cat"), path=str(photos / name)) for name in (*names, "last.png")]
    (tmp_path / "lists").mkdir()
    file = tmp_path / "lists" / "cleaned.csv"
    cleaned = write_cleaned_labels(audit_of(images), file)
    assert (cleaned.images, cleaned.relabelled, cleaned.left_out) == (5, 0, 1)
    assert read_labels(file) == {str(photos / name): "cat" for name in (*names[:-1], "last.png")}
    assert "1 images, the first is" in caplog.text
    assert "caf\\udce9.png" in caplog.text
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "lists").rename(tmp_path / "moved" / "lists") / "cleaned.csv"
    assert set(read_labels(moved)) == {str(tmp_path / "moved/photos" / name) for name in (*names[:-1], "last.png")}


def test_classes_too_small_to_train_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = [
        *(audited("a", "cat"), audited("b", "cat"), audited("c", "dog"), audited("d", "dog", verdict=DROP)),
        audited("e", "owl", verdict=DROP),
    ]
    classes = tuple((label, 2, 0.0) for label in ("cat", "dog", "owl"))
    write_cleaned_labels(audit_of(images, classes=classes), tmp_path / "cleaned.csv")
    assert "class 'dog' keeps 1 image;" in caplog.text
    assert "class 'owl' keeps no image;" in caplog.text
    assert "'cat'" not in caplog.text


def test_only_what_an_audit_wrote_is_replaced_and_never_what_the_run_was_trained_from(tmp_path: Path) -> None:
    labels, mine, ours = (tmp_path / f"{name}.csv" for name in ("labels", "mine", "ours"))
    labels.write_text("path,label,given,p_right,verdict\n")  # even where an audit wrote it
    (tmp_path / "link.csv").symlink_to(labels)
    (tmp_path / "folder.csv").mkdir()
    mine.write_text("path,label\na.png,cat\n")
    run = RunFolder.create(tmp_path / "run", config=make_config(), data=labels)
    for path, said in (
        (labels, "the run was trained from this file"),
        (run.path / "../labels.csv", "the run was trained from this file"),
        (tmp_path / "link.csv", "the run was trained from this file"),
        (mine, "no audit wrote it"),
        (tmp_path / "cleaned.parquet", r"name a file that ends in \.csv"),
        (tmp_path / "nowhere" / "cleaned.csv", "no such folder"),
        (tmp_path / "folder.csv", "exists already"),
    ):
        with pytest.raises(InputError, match=said):
            check_label_target(path, run=run)
    check_label_target(ours, run=run)
    write_cleaned_labels(audit_of([audited("a", "cat")]), ours)
    check_label_target(ours, run=run)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    other = RunFolder.create(tmp_path / "other", config=make_config(), data=tmp_path / "photos")
    with pytest.raises(InputError, match=r"--apply .* lies inside the images"):
        check_label_target(tmp_path / "photos" / "cat" / "cleaned.csv", run=other)


def test_decisions_take_the_place_of_verdicts_for_every_duplicate_with_that_label() -> None:
    images = (
        change("a", "cat", "dog", sha256="x"),
        audited("b", "cat", sha256="x"),
        change("c", "dog", "cat", sha256="x"),
    )
    decided = audit_of(images).with_decisions({("x", "cat"): LabelDecision("x", "cat", DROP)})
    assert [(i.outcome, i.new_label) for i in decided.items] == [(DROP, None), (DROP, None), (CHANGE, "cat")]
