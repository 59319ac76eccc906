from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from index.errors import InputError, MissingDependencyError
from index.gallery.hits import Hit
from index.gallery.result_files import COLUMNS, ResultRow, check_results_path, open_results

SUFFIXES = (".csv", ".jsonl", ".parquet")
ROWS = [
    ResultRow("a,b.jpg", Hit(1, 7, 0.5, 'red/say "no"\r.png', "red", "/a", '{"price": 3, "name": "Zoë"}', "blue")),
    ResultRow("a,b.jpg", Hit(2, 2**40, 0.25, "line\nbreak.png", None, "/b, c")),
    ResultRow(os.fsdecode(b"caf\xe9.jpg"), Hit(1, 9, -1.0, os.fsdecode(b"\xff/1.png"), "=1+1", "/a")),
]


def read(path: Path) -> list[dict[str, object]]:
    """The rows of a file, with the types of Parquet."""
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [
            {**row, "metadata": json.dumps(row["metadata"], ensure_ascii=False) if row["metadata"] else None}
            for row in rows
        ]
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {
                **row,
                "rank": int(row["rank"]),
                "id": int(row["id"]),
                "score": float(row["score"]),
                "label": row["label"] or None,
                "given_label": row["given_label"] or None,
                "metadata": row["metadata"] or None,
            }
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_file_holds_the_same_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"results{suffix}"
    with open_results(path) as write:
        write(ROWS[:2])
        write([])
        write(ROWS[2:])
    rows = read(path)
    assert [tuple(row) for row in rows] == [COLUMNS] * 3
    assert [tuple(row.values()) for row in rows] == [
        ("a,b.jpg", 1, 7, 0.5, "red", "blue", 'red/say "no"\r.png', "/a", '{"price": 3, "name": "Zoë"}'),
        ("a,b.jpg", 2, 2**40, 0.25, None, None, "line\nbreak.png", "/b, c", None),
        (r"caf\xe9.jpg", 1, 9, -1.0, "=1+1", None, r"\xff/1.png", "/a", None),
    ]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_without_results_can_be_read(tmp_path: Path, suffix: str) -> None:
    with open_results(tmp_path / f"r{suffix}"):
        pass
    assert read(tmp_path / f"r{suffix}") == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"r{suffix}"
    path.write_text("earlier")

    def stop_midway() -> None:
        with open_results(path) as write:
            write(ROWS)
            assert path.read_text() == "earlier"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_midway()
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]
    with open_results(path) as write:
        write(ROWS)
    assert len(read(path)) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_writing_to_a_device_that_is_full_is_an_error_too(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_full(folder: Path) -> Path:
        path = folder / "full"
        path.symlink_to("/dev/full")
        return path

    monkeypatch.setattr("index.gallery.result_files.make_temporary", make_full)
    with pytest.raises(InputError, match="No space left"), open_results(tmp_path / f"r{suffix}") as write:
        write(ROWS * 1000)
    assert list(tmp_path.iterdir()) == []


def test_parquet_is_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.gallery.result_files._GROUP_ROWS", 4)
    with open_results(tmp_path / "r.parquet") as write:
        for _ in range(3):
            write(ROWS)
    assert parquet.ParquetFile(tmp_path / "r.parquet").num_row_groups == 2
    assert len(read(tmp_path / "r.parquet")) == 9


def test_places_that_cannot_hold_results_are_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name, problem in (
        ("results.txt", "expected one of .csv, .jsonl, .parquet"),
        ("results", "the suffix says what is written"),
        ("folder.csv", "a folder has this name"),
        ("none/r.csv", "its folder does not exist"),
    ):
        with pytest.raises(InputError, match=problem):
            check_results_path(tmp_path / name)
    check_results_path(tmp_path / "R.CSV")


def test_parquet_without_pyarrow_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="writing Parquet"):
        check_results_path(tmp_path / "r.parquet")
    check_results_path(tmp_path / "r.csv")
