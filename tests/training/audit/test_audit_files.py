"""The tables and the label file that an audit writes, and what a decision changes."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from index.errors import InputError
from index.labels.decisions import CHANGE, DROP, KEEP, LabelDecision
from index.sources.table_rows import read_label_file
from tests.training.audits import audited
from tests.training.conftest import make_config
from tests.training.runs import read_csv
from training.audit.report import (
    AuditedImage,
    AuditReport,
    ClassNoise,
    PairNoise,
    override_verdicts,
    write_audit_tables,
)
from training.audit.run_audit import check_label_target, choose_labels, write_cleaned_labels
from training.run.run_folder import RunFolder

NOBODY: frozenset[int] = frozenset()
ODD = os.fsdecode(b'caf\xe9, "quoted"\nline.png')


@pytest.fixture
def report() -> AuditReport:
    """Three images, the last one the most suspicious."""
    images = (
        audited("a.png", "cat", agreeing=((1, 0.5),), disagreeing=((2, 0.25),)),
        audited(ODD, "cat", p_error=0.1, verdict=DROP, duplicate_of=2),
        audited(
            "c.png",
            "dog",
            p_error=0.9,
            confidence=0.2,
            verdict=CHANGE,
            new_label="cat",
            duplicate_of=1,
            p_suggested=0.7,
            p_none=0.1,
            suggestions=(("cat", 0.7), ("dog", 0.2)),
        ),
    )
    classes = (ClassNoise("dog", 1, 0.6), ClassNoise("cat", 2, 0.1))
    return AuditReport(Path("run"), images, classes, (PairNoise("dog", "cat", 0.6, 0.6),), 0.2667, 0.95, None)


def test_images_are_listed_by_suspicion_with_all_that_is_known(report: AuditReport, tmp_path: Path) -> None:
    write_audit_tables(report, tmp_path)
    rows = read_csv(tmp_path / "audit.csv")
    assert [row["path"] for row in rows] == ["/photos/c.png", "/photos/a.png", f"/photos/{ODD}"]
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    filled = {name: value for name, value in rows[0].items() if value}
    assert filled == {
        "rank": "1",
        "path": "/photos/c.png",
        "sha256": "hash of c.png",
        "label": "dog",
        "p_error": "0.9",
        "p_suggested": "0.7",
        "p_none": "0.1",
        "confidence": "0.2",
        "suggestion_1": "cat",
        "suggestion_probability_1": "0.7",
        "suggestion_2": "dog",
        "suggestion_probability_2": "0.2",
        "verdict": "change",
        "new_label": "cat",
        "duplicate_of": f"/photos/{ODD}",
    }
    assert (rows[1]["agreeing_1"], rows[1]["agreeing_cosine_1"]) == (f"/photos/{ODD}", "0.5")
    assert (rows[1]["disagreeing_1"], rows[1]["disagreeing_cosine_1"]) == ("/photos/c.png", "0.25")


def test_the_parquet_table_says_the_same_with_odd_bytes_shown(report: AuditReport, tmp_path: Path) -> None:
    assert tmp_path / "audit.parquet" in write_audit_tables(report, tmp_path)
    table = pyarrow.parquet.read_table(tmp_path / "audit.parquet")
    rows = read_csv(tmp_path / "audit.csv")
    assert table.column_names == list(rows[0])
    for found, row in zip(table.to_pylist(), rows, strict=True):
        for name, value in found.items():
            text = "" if value is None else str(value)
            assert text == row[name].replace("\udce9", "\\xe9")


def test_noise_has_a_row_a_class_and_a_row_a_pair_and_the_summary_counts_verdicts(report, tmp_path) -> None:
    write_audit_tables(report, tmp_path)
    assert [tuple(row.values()) for row in read_csv(tmp_path / "noise.csv")] == [
        ("dog", "", "1", "0.6"),
        ("cat", "", "2", "0.1"),
        ("dog", "cat", "0.6", "0.6"),
    ]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdicts"] == {"keep": 1, "change": 1, "set_aside": 0, "drop": 1}
    assert (summary["images"], summary["noise_rate"]) == (3, 0.2667)


def test_without_pyarrow_no_stale_parquet_stays(report, tmp_path, monkeypatch) -> None:
    write_audit_tables(report, tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    written = write_audit_tables(report, tmp_path)
    assert sorted(written) == sorted(tmp_path.iterdir())
    assert {path.suffix for path in written} == {".csv", ".json"}


def test_verdicts_keep_change_and_leave_out() -> None:
    images = [
        audited("a", "cat"),
        audited("b", "cat", verdict=CHANGE, new_label="dog"),
        audited("c", "cat", verdict=DROP),
    ]
    assert choose_labels(images, decided=NOBODY) == ["cat", "dog", None]


def test_what_a_person_decided_about_one_copy_settles_the_others() -> None:
    first, second = (
        audited(name, label, confidence=confidence, duplicate_of=other)
        for name, label, confidence, other in (("0", "cat", 0.2, 1), ("1", "dog", 0.7, 0))
    )
    kept = audited("0", "cat", duplicate_of=1)
    moved = audited("0", "cat", verdict=CHANGE, new_label="dog", duplicate_of=1)
    dropped = audited("0", "cat", verdict=DROP, duplicate_of=1)
    more = [audited(f"{number}", "cat") for number in range(2, 6)]
    for images, decided, expected in (
        ([kept, second], {0}, ["cat", None]),
        ([moved, second], {0}, ["dog", "dog"]),
        ([dropped, second], {0}, [None, "dog"]),
        ([kept, audited("1", "dog", duplicate_of=0)], {0, 1}, ["cat", "dog"]),
        ([first, second], {}, ["cat", "dog"]),  # both labels are rare
        ([first, second, *more], {}, [None, "dog"]),
    ):
        assert choose_labels(images, decided=frozenset(decided))[:2] == expected


def _report(images: list[AuditedImage]) -> AuditReport:
    return AuditReport(Path("run"), tuple(images), (), (), 0.0, 0.95, None)


def test_paths_are_relative_and_hostile_names_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["plain.png", 'quo"te, and\nlines\r.png', " spaces .png", "emoji 🐈.png", os.fsdecode(b"caf\xe9.png")]
    photos = tmp_path / "photos"
    images = [replace(audited(name, "cat"), path=photos / name) for name in (*names, "last.png")]
    (tmp_path / "lists").mkdir()
    file = tmp_path / "lists" / "cleaned.csv"
    cleaned = write_cleaned_labels(_report(images), file, decided=NOBODY)
    assert (cleaned.images, cleaned.relabelled, cleaned.left_out) == (5, 0, 1)
    assert read_label_file(file) == {photos / name: "cat" for name in (*names[:-1], "last.png")}
    assert "1 images, the first is" in caplog.text
    assert "caf\\udce9.png" in caplog.text
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "lists").rename(tmp_path / "moved" / "lists") / "cleaned.csv"
    assert set(read_label_file(moved)) == {tmp_path / "moved/photos" / name for name in (*names[:-1], "last.png")}


def test_classes_too_small_to_train_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = [
        audited("a", "cat"),
        audited("b", "cat"),
        audited("c", "dog"),
        audited("d", "dog", verdict=DROP),
        audited("e", "owl", verdict=DROP),
    ]
    write_cleaned_labels(_report(images), tmp_path / "cleaned.csv", decided=NOBODY)
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
    write_cleaned_labels(_report([audited("a", "cat")]), ours, decided=NOBODY)
    check_label_target(ours, run=run)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    other = RunFolder.create(tmp_path / "other", config=make_config(), data=tmp_path / "photos")
    with pytest.raises(InputError, match=r"--apply .* lies inside the images"):
        check_label_target(tmp_path / "photos" / "cat" / "cleaned.csv", run=other)


def test_decisions_take_the_place_of_verdicts_for_every_duplicate_with_that_label() -> None:
    images = (
        audited("a", "cat", sha256="x", verdict=CHANGE, new_label="dog"),
        audited("b", "cat", sha256="x"),
        audited("c", "dog", sha256="x"),
    )
    report = AuditReport(Path("run"), images, (), (), 0.1, 0.95, None)
    decisions = {("x", "cat"): LabelDecision("x", "cat", DROP)}
    changed, decided = override_verdicts(report, decisions)
    assert [(i.verdict, i.new_label) for i in changed.images] == [(DROP, None), (DROP, None), (KEEP, None)]
    assert decided == {0, 1}
