"""The tables that an audit writes, row by row."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from index.labels.decisions import CHANGE, DROP
from tests.training.audits import audited
from training.audit.audit_files import write_audit_tables
from training.audit.report import AuditReport, ClassNoise, Neighbour, PairNoise

ODD = os.fsdecode(b'caf\xe9, "quoted"\nline.png')


@pytest.fixture
def report() -> AuditReport:
    """Three images, the last one the most suspicious."""
    images = (
        audited("a.png", "cat", agreeing=(Neighbour(1, 0.5),), disagreeing=(Neighbour(2, 0.25),)),
        audited(ODD, "cat", wrong=0.1, verdict=DROP, duplicate_of=2),
        audited("c.png", "dog", wrong=0.9, confidence=0.2, verdict=CHANGE, new_label="cat", duplicate_of=1,
                suggestions=(("cat", 0.7), ("dog", 0.2))),
    )  # fmt: skip
    classes = (ClassNoise("dog", 1, 0.6), ClassNoise("cat", 2, 0.1))
    return AuditReport(Path("run"), images, classes, (PairNoise("dog", "cat", 0.6, 0.6),), 0.2667)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def test_images_are_listed_by_suspicion_with_all_that_is_known(report: AuditReport, tmp_path: Path) -> None:
    write_audit_tables(report, tmp_path)
    rows = _read(tmp_path / "audit.csv")
    assert [row["path"] for row in rows] == ["/photos/c.png", "/photos/a.png", f"/photos/{ODD}"]
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    filled = {name: value for name, value in rows[0].items() if value}
    assert filled == {
        "rank": "1", "path": "/photos/c.png", "sha256": "hash of c.png", "label": "dog", "wrong": "0.9",
        "confidence": "0.2", "suggestion_1": "cat", "suggestion_confidence_1": "0.7", "suggestion_2": "dog",
        "suggestion_confidence_2": "0.2", "verdict": "change", "new_label": "cat", "duplicate_of": f"/photos/{ODD}",
    }  # fmt: skip
    assert (rows[1]["agreeing_1"], rows[1]["agreeing_cosine_1"]) == (f"/photos/{ODD}", "0.5")
    assert (rows[1]["disagreeing_1"], rows[1]["disagreeing_cosine_1"]) == ("/photos/c.png", "0.25")


def test_the_parquet_table_says_the_same_with_odd_bytes_shown(report: AuditReport, tmp_path: Path) -> None:
    assert tmp_path / "audit.parquet" in write_audit_tables(report, tmp_path)
    table = pyarrow.parquet.read_table(tmp_path / "audit.parquet")
    rows = _read(tmp_path / "audit.csv")
    assert table.column_names == list(rows[0])
    for found, row in zip(table.to_pylist(), rows, strict=True):
        for name, value in found.items():
            text = "" if value is None else str(value)
            assert text == row[name].replace("\udce9", "\\xe9")


def test_noise_has_a_row_a_class_and_a_row_a_pair(report: AuditReport, tmp_path: Path) -> None:
    write_audit_tables(report, tmp_path)
    assert [tuple(row.values()) for row in _read(tmp_path / "noise.csv")] == [
        ("dog", "", "1", "0.6"), ("cat", "", "2", "0.1"), ("dog", "cat", "0.6", "0.6"),
    ]  # fmt: skip


def test_the_summary_counts_every_verdict(report: AuditReport, tmp_path: Path) -> None:
    write_audit_tables(report, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdicts"] == {"keep": 1, "change": 1, "drop": 1}
    assert (summary["images"], summary["noise_rate"]) == (3, 0.2667)
    assert summary["pairs"] == [{"label": "dog", "suggested": "cat", "noise_rate": 0.6, "images": 0.6}]


def test_without_pyarrow_no_stale_parquet_stays(
    report: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_audit_tables(report, tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    written = write_audit_tables(report, tmp_path)
    assert {path.name for path in written} == {"audit.csv", "noise.csv", "summary.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.csv", "noise.csv", "summary.json"]
