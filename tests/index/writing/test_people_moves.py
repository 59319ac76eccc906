from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from index.errors import GalleryError
from index.versions.gallery_lock import lock_gallery
from index.versions.people import added_folder, decisions_file
from index.writing.people_moves import bring_people, move_people, try_bring_people
from tests.conftest import draw_folder
from tests.index.galleries import ROOT, build

SENT = {"a": b"first", "cat/b": b"second", "c": b"third"}
DECIDED = 400
MOVE_AND_DIE = """
import os, sys
from pathlib import Path
from index.writing.people_moves import bring_people
left = int(sys.argv[2])
def count(event, _):
    global left
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "sqlite3.connect"):
        left -= 1
        if left < 0:
            os._exit(9)
sys.addaudithook(count)
bring_people(Path(sys.argv[1]))
"""
DIE_WHILE_WRITING = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 2")
connection.execute("BEGIN")
connection.execute("UPDATE decided SET what = 'spoilt' || hex(randomblob(200))")
os._exit(9)
"""
HOLD_A_SECOND = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO decided VALUES (-1, 'in time')")
print("begun", flush=True)
time.sleep(1)
connection.execute("COMMIT")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build(draw_folder(folder / "images", per_class=2), folder / "gallery", tiny_model)
    return folder / "gallery"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "gallery")


def name_of(name: str) -> str:
    folder = os.path.dirname(name)
    return os.path.join(folder, f"{hashlib.sha256(SENT[name]).hexdigest()}.jpg")


def fill_old(gallery: Path) -> Path:
    for name in SENT:
        path = gallery / "added" / name_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(SENT[name])
    with closing(sqlite3.connect(gallery / "review.sqlite", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE decided (number INTEGER PRIMARY KEY, what TEXT)")
        connection.executemany(
            "INSERT INTO decided VALUES (?, ?)", ((number, f"label {number} " * 20) for number in range(DECIDED))
        )
    (gallery / "incoming").mkdir()
    return gallery


def sent_files(gallery: Path) -> dict[str, bytes]:
    folder = added_folder(gallery)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def decided(path: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT number, what FROM decided ORDER BY number").fetchall()


def check_moved(gallery: Path) -> None:
    assert sent_files(gallery) == {name_of(name): data for name, data in SENT.items()}
    assert decided(decisions_file(gallery)) == [(number, f"label {number} " * 20) for number in range(DECIDED)]
    assert sorted(os.listdir(gallery)) == [".lock", "CURRENT", "gallery.json", "people", "versions"]
    assert sorted(os.listdir(gallery / "people")) == ["added", "review.sqlite"]


def test_a_move_killed_at_any_step_ends_when_it_is_done_again(gallery: Path, tmp_path: Path) -> None:
    fill_old(gallery)
    for steps in range(100):
        twin = shutil.copytree(gallery, tmp_path / f"twin{steps}")
        command = [sys.executable, "-c", MOVE_AND_DIE, str(twin), str(steps)]
        ended = subprocess.run(command, cwd=ROOT, check=False).returncode
        files = {path for path in twin.rglob("*") if path.is_file() and path.suffix == ".jpg"}
        assert len(files) == len(SENT)
        bring_people(twin)
        check_moved(twin)
        if ended == 0:
            break
    assert steps >= 4


def test_a_journal_that_a_killed_process_left_goes_into_its_database_before_that_is_moved(gallery: Path) -> None:
    fill_old(gallery)
    subprocess.run(
        [sys.executable, "-c", DIE_WHILE_WRITING, str(gallery / "review.sqlite")], check=False, cwd=gallery
    )
    assert (gallery / "review.sqlite-journal").stat().st_size > 0
    assert b"spoilt" in (gallery / "review.sqlite").read_bytes()
    bring_people(gallery)
    check_moved(gallery)


def test_a_write_ahead_log_goes_into_its_database_before_that_is_moved(gallery: Path, tmp_path: Path) -> None:
    fill_old(gallery)
    with closing(sqlite3.connect(gallery / "review.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO decided VALUES (-1, 'in the log')")
        killed = shutil.copytree(gallery, tmp_path / "killed")
    assert (killed / "review.sqlite-wal").stat().st_size > 0
    bring_people(killed)
    assert decided(decisions_file(killed))[0] == (-1, "in the log")
    assert sorted(os.listdir(killed / "people")) == ["added", "review.sqlite"]
    assert sorted(os.listdir(killed)) == [".lock", "CURRENT", "gallery.json", "people", "versions"]


@pytest.mark.parametrize("relative", [True, False])
def test_a_linked_folder_is_linked_from_its_new_place(gallery: Path, tmp_path: Path, relative: bool) -> None:
    fill_old(gallery)
    (gallery / "added").rename(tmp_path / "uploads")
    (gallery / "added").symlink_to("../uploads" if relative else tmp_path / "uploads")
    bring_people(gallery)
    check_moved(gallery)
    assert added_folder(gallery) == tmp_path / "uploads"


def test_files_that_an_earlier_program_sent_after_the_move_join_the_others(gallery: Path) -> None:
    fill_old(gallery)
    bring_people(gallery)
    late = gallery / "added" / "dog" / f"{hashlib.sha256(b'late').hexdigest()}.png"
    again = gallery / "added" / name_of("a")
    for path, data in ((late, b"late"), (again, SENT["a"])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    bring_people(gallery)
    assert not (gallery / "added").exists()
    assert sent_files(gallery) == {
        **{name_of(name): data for name, data in SENT.items()},
        f"dog/{late.name}": b"late",
    }


def test_a_folder_that_only_has_the_name_is_left_alone(gallery: Path) -> None:
    (gallery / "added").mkdir()
    (gallery / "added" / "holiday.jpg").write_bytes(b"mine")
    (gallery / "incoming").mkdir()
    (gallery / "incoming" / "letter.txt").write_bytes(b"mine too")
    bring_people(gallery)
    assert (gallery / "added" / "holiday.jpg").read_bytes() == b"mine"
    assert (gallery / "incoming" / "letter.txt").read_bytes() == b"mine too"
    assert not (gallery / "people").exists()


def test_a_folder_that_is_no_gallery_is_left_alone(tmp_path: Path) -> None:
    fill_old(tmp_path)
    before = sorted(os.listdir(tmp_path))
    bring_people(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


def test_decisions_that_are_no_database_stay_where_they_are(
    gallery: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (gallery / "review.sqlite").write_bytes(b"no database at all" * 100)
    bring_people(gallery)
    assert (gallery / "review.sqlite").read_bytes() == b"no database at all" * 100
    assert "the decisions cannot be moved" in caplog.text


def test_what_another_process_writes_is_not_moved_under_it(gallery: Path) -> None:
    fill_old(gallery)
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; from pathlib import Path; from index.versions.gallery_lock import *\n"
         "with lock_gallery(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)", str(gallery)],
        stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(GalleryError, match="another process"):
            bring_people(gallery, wait_s=0)
        try_bring_people(gallery)
        assert (gallery / "added").exists()
        holder.kill()
    with lock_gallery(gallery):
        move_people(gallery)
    check_moved(gallery)


def test_a_transaction_that_is_open_ends_before_the_database_is_moved(gallery: Path) -> None:
    fill_old(gallery)
    command = [sys.executable, "-c", HOLD_A_SECOND, str(gallery / "review.sqlite")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        bring_people(gallery)
    assert decided(decisions_file(gallery))[0] == (-1, "in time")
