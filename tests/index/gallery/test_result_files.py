import csv
import os
from pathlib import Path

import pytest

from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.gallery.ranking import Hit
from index.gallery.result_files import COLUMNS, check_results_path, open_results


def make_row(number: int, path: str, label: str | None, metadata: str | None = None, given: str = "") -> CatalogRow:
    own = (None, None, 1, 1, None, None, "indexed", None, None, None)
    return CatalogRow(number, 1, path, *own, label, metadata, (), given or label)


ROWS = [
    ("a,b.jpg", Hit(1, 7, 0.5, make_row(7, 'red/say "no"\r.png', "red", '{"price": 3, "name": "Zoë"}', "blue"), "/a")),
    ("a,b.jpg", Hit(2, 2**40, 0.25, make_row(2**40, "line\nbreak.png", None), "/b, c")),
    (os.fsdecode(b"caf\xe9.jpg"), Hit(1, 9, -1.0, make_row(9, os.fsdecode(b"\xff/1.png"), "=1+1"), "/a")),
]


def read(path: Path) -> list[dict[str, object]]:
    with path.open(newline="", encoding="utf-8") as file:
        kinds = {"rank": int, "id": int, "score": float}
        return [
            {name: kinds.get(name, str)(text) if text else None for name, text in row.items()}
            for row in csv.DictReader(file)
        ]


def test_a_file_holds_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
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
    with open_results(path):
        pass
    assert read(path) == []


def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
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
def test_a_full_device_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_full(folder: Path, **_: object) -> Path:
        path = folder / "full"
        path.symlink_to("/dev/full")
        return path

    monkeypatch.setattr("index.durable.make_temporary", make_full)
    with pytest.raises(InputError, match="No space left"), open_results(tmp_path / "r.csv") as write:
        write(ROWS * 1000)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_caller_passes_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="query"), open_results(tmp_path / "r.csv"):
        (tmp_path / "query").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_bad_results_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name, problem in (
        ("results.txt", "ends in .csv"),
        ("folder.csv", "a folder has this name"),
        ("none/r.csv", "its folder does not exist"),
    ):
        with pytest.raises(InputError, match=problem):
            check_results_path(tmp_path / name)
    check_results_path(tmp_path / "R.CSV")
