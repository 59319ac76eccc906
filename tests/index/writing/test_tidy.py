"""Image files moved out of their sources and back: on one disk, to another one and to the trash; killed and refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from index.commands.index_group import index_group
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.writing import tidy
from index.writing.build import build_gallery
from index.writing.tidy import JOURNAL, Moves, move_images, plan_moves, undo_moves
from tests.conftest import draw_folder, draw_image
from tests.forked import run
from tests.index.galleries import SMALL, build, invoke, rows

NOT_UTF8 = os.fsdecode(b"red/caf\xe9.jpg")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Fifteen drawn images, and three copies of one of them."""
    folder = draw_folder(tmp_path / "photos")
    for name in ("red/copy.jpg", "green/copy.jpg", NOT_UTF8):
        shutil.copy(folder / "red" / "0.jpg", folder / name)
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Another file system, of 16 kB."""
    (folder := tmp_path / "disk").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plan(gallery: Path, *names: str, kept: str | None = "red/0.jpg") -> Moves:
    ids = {row.path: row.id for row in rows(gallery)}
    return plan_moves(Gallery.open(gallery), {ids[name]: () if kept is None else (ids[kept],) for name in names})


def move(gallery: Path, folder: Path, *names: str, kept: str | None = "red/0.jpg") -> Moves:
    return move_images(plan(gallery, *names, kept=kept), folder=folder, journal=folder / JOURNAL)


COPIES = ("red/copy.jpg", "green/copy.jpg", NOT_UTF8)


def test_moved_images_come_back_and_replace_nothing(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    build(photos, tmp_path / "g", tiny_model)
    before, times = snapshot(photos), (photos / "red" / "copy.jpg").stat().st_mtime_ns
    done, out = move(tmp_path / "g", tmp_path / "out", *COPIES), tmp_path / "out"
    assert (len(done.files), done.staying, done.size_bytes) == (3, (), 3 * len(before["red/0.jpg"]))
    assert snapshot(photos).keys() == before.keys() - set(COPIES)
    assert snapshot(out).keys() == {*COPIES, JOURNAL}
    assert plan(tmp_path / "g", *COPIES).reasons == {"it is not there any more": 3}
    (photos / "green" / "copy.jpg").write_bytes(b"another one")
    (photos / "red" / "copy.jpg").symlink_to(out / "red" / "copy.jpg")  # which has the same bytes
    restored, staying = undo_moves(out / JOURNAL)
    assert restored == 1
    assert all(reason.startswith("another file is there now") for _, reason in staying)
    assert snapshot(out).keys() == {"red/copy.jpg", "green/copy.jpg", JOURNAL}
    (photos / "green" / "copy.jpg").unlink()
    (photos / "red" / "copy.jpg").unlink()
    assert undo_moves(out / JOURNAL) == (2, [])
    assert undo_moves(out / JOURNAL) == (0, [])
    assert snapshot(photos) == before
    assert (photos / "red" / "copy.jpg").stat().st_mtime_ns == times
    assert len(move(tmp_path / "g", out, *COPIES).files) == 3  # a second time
    (out / "red" / "copy.jpg").write_bytes(b"another one")
    assert {name for name, _ in undo_moves(out / JOURNAL)[1]} == {str(photos / "red" / "copy.jpg")}
    assert not (photos / "red" / "copy.jpg").exists()
    (out / "red" / "copy.jpg").write_bytes(before["red/copy.jpg"])
    damaged = (out / JOURNAL).read_bytes().split(b"\n")
    damaged[1:1] = [b"\0" * 9, b'{"from": "/a", "to": "../b", "sha256": "0", "size_bytes": 1}']
    (out / JOURNAL).write_bytes(b"\n".join(damaged))
    restored, staying = undo_moves(out / JOURNAL)
    assert (restored, [reason for _, reason in staying]) == (1, [f"line {n} cannot be read" for n in (2, 3)])
    assert snapshot(photos) == before


def test_what_must_stay_says_why(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    os.link(photos / "red" / "0.jpg", photos / "red" / "hard.jpg")
    (photos / "red" / "soft.jpg").symlink_to("copy.jpg")
    shutil.make_archive(str(photos / "more"), "zip", photos / "blue")
    build(photos, tmp_path / "g", tiny_model)
    assert plan(tmp_path / "g", "red/hard.jpg", "red/soft.jpg", "red/copy.jpg", "more.zip/0.jpg").reasons == {
        "it is the same file as an image that stays (a link)": 2,
        "it is a symbolic link": 1,
        "it is inside an archive or a table": 1,
    }
    assert "its kept copy is to be moved too" in plan(tmp_path / "g", "red/0.jpg", "green/copy.jpg").reasons
    (photos / "red" / "hard.jpg").unlink()
    planned = plan(tmp_path / "g", "green/copy.jpg", NOT_UTF8)
    draw_image((9, 9, 9), seed=1).save(photos / "red" / "0.jpg")
    out = tmp_path / "out"
    done = move_images(planned, folder=out, journal=out / JOURNAL)
    assert (done.files, done.reasons) == ((), {"its kept copy is missing or changed (changed)": 2})
    draw_image((9, 9, 9), seed=1).save(photos / "green" / "copy.jpg")
    shutil.copy(photos / NOT_UTF8, photos / "red" / "0.jpg")
    (out / "red").mkdir(parents=True)
    (out / NOT_UTF8).write_bytes(b"mine")
    done = move(tmp_path / "g", out, "green/copy.jpg", NOT_UTF8)
    assert set(done.reasons) == {"it is missing or changed (changed)", "the folder has another file of this name"}
    (photos / "red" / "0.jpg").unlink()
    assert plan(tmp_path / "g", NOT_UTF8).reasons == {"its kept copy is not there any more": 1}


def move_and_die() -> None:
    """Move copies, and be killed at the second call of a function of `index.writing.tidy`, or after it."""
    gallery, out, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    place, name = moment.split()
    owner: Any = tidy.os if name in ("link", "fsync") else tidy
    reached, calls = getattr(owner, name), []

    def dying(*args: Any, **options: Any) -> Any:
        calls.append(args)
        result = None if place == "before" and len(calls) == 2 else reached(*args, **options)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)
    move(gallery, out, *COPIES)


@pytest.mark.parametrize("moment", ["before move_file", "after link", "after move_file", "before _move_listed"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["undone", "goes on"])
def test_a_killed_move_loses_nothing(
    tmp_path: Path, tiny_model: Path, photos: Path, moment: str, goes_on: bool
) -> None:
    build(photos, tmp_path / "g", tiny_model)
    before, out = snapshot(photos), tmp_path / "out"
    assert run([tmp_path / "g", out, moment], function=move_and_die).returncode == -signal.SIGKILL
    with (out / JOURNAL).open("ab") as journal:
        journal.write(b'{"from": "/cut o')  # as of a kill while it was written
    if goes_on:
        move(tmp_path / "g", out, *COPIES)
        assert snapshot(photos).keys() == before.keys() - set(COPIES)
        assert snapshot(out).keys() == {*COPIES, JOURNAL}
    assert undo_moves(out / JOURNAL)[1] == []
    assert snapshot(photos) == before
    assert snapshot(out).keys() == {JOURNAL}


def test_a_full_disk_keeps_what_was_moved(tmp_path: Path, tiny_model: Path, photos: Path, small_disk: Path) -> None:
    for number in range(9):
        draw_image((200, 0, 0), seed=number, size=(96, 64)).save(photos / "red" / f"large{number}.png")
    build(photos, tmp_path / "g", tiny_model)
    before, out = snapshot(photos), small_disk / "out"
    names = [f"red/large{number}.png" for number in range(9)]
    with pytest.raises(InputError, match=r"No space left on device; nothing is lost, .* moved before"):
        move(tmp_path / "g", out, "red/copy.jpg", *names, kept=None)
    assert not (photos / "red" / "copy.jpg").exists()
    assert len(snapshot(photos)) + len(snapshot(out)) == len(before) + 1
    assert undo_moves(out / JOURNAL)[1] == []
    assert snapshot(photos) == before


def test_images_of_a_read_only_disk_stay(tmp_path: Path, tiny_model: Path, small_disk: Path) -> None:
    draw_image((200, 0, 0), seed=1).save(small_disk / "a.jpg")
    build(small_disk, tmp_path / "g", tiny_model)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert plan(tmp_path / "g", "a.jpg", kept=None).reasons == {"its folder is read-only": 1}


def test_images_go_to_the_trash_and_come_back(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    pytest.importorskip("send2trash")
    build(photos, tmp_path / "g", tiny_model)
    before, env = snapshot(photos), {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    run(["labels", "set", tmp_path / "g", "--where", "label = 'blue'", "--drop"], env=env)
    moved = run(["index", "tidy", tmp_path / "g", "--dropped", "--trash", "--yes", "--json"], env=env)
    document = json.loads(moved.stdout)
    assert (document["images"], Path(document["journal"])) == (5, tmp_path / "g-moved.jsonl")
    assert snapshot(photos).keys() == {name for name in before if not name.startswith("blue/")}
    back = run(["index", "tidy", "--undo", tmp_path / "g-moved.jsonl", "--json"], env=env)
    assert json.loads(back.stdout) == {"restored": 5, "staying": []}
    assert snapshot(photos) == before
    assert not any(path.is_file() for path in (tmp_path / "data").rglob("*"))


def test_the_command_only_shows_and_refuses_folders_of_images(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    build(photos, tmp_path / "g", tiny_model)
    before = snapshot(photos)
    run(["labels", "set", tmp_path / "g", "--where", "label = 'blue'", "--drop"])
    shown = invoke(index_group, "tidy", tmp_path / "g", "--dropped", "--move-to", tmp_path / "out")
    assert "5 images" in shown.stdout
    assert "nothing was moved" in shown.stdout
    for folder in (photos / "out", tmp_path, tmp_path / "g" / "out"):
        refused = invoke(index_group, "tidy", tmp_path / "g", "--dropped", "--move-to", folder, "--yes")
        assert "would be indexed again" in str(refused.exception)
    build_gallery(model_path=tiny_model, sources=[photos / "**" / "*.png"], out=tmp_path / "h", config=SMALL)
    run(["labels", "set", tmp_path / "h", "--where", "label = 'blue'", "--drop"])
    for folder, is_refused in ((photos / "out", True), (tmp_path / "out", False)):
        answer = invoke(index_group, "tidy", tmp_path / "h", "--dropped", "--move-to", folder)
        assert ("would be indexed again" in str(answer.exception)) is is_refused
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "some.txt").write_text(f"../photos/blue\n{photos}/red/0.jpg")
    build_gallery(model_path=tiny_model, sources=[tmp_path / "lists" / "some.txt"], out=tmp_path / "i", config=SMALL)
    run(["labels", "set", tmp_path / "i", "--where", "path LIKE '%blue/1.png'", "--drop"])
    (tmp_path / "link").symlink_to(photos)
    for folder, is_refused in (
        (photos / "blue" / "out", True),
        (tmp_path / "link" / "blue", True),
        (photos / "red", False),
    ):
        answer = invoke(index_group, "tidy", tmp_path / "i", "--dropped", "--move-to", folder)
        assert ("would be indexed again" in str(answer.exception)) is is_refused
    assert "1 image" in answer.stdout
    assert snapshot(photos) == before
    journal = tmp_path / "foreign.jsonl"
    entry = {"from": str(tmp_path / "new"), "to": "../photos/red/0.jpg", "sha256": "0" * 64, "size_bytes": 1}
    journal.write_text(json.dumps(entry) + "\n")
    assert "line 1" in str(invoke(index_group, "tidy", "--undo", journal).exception)
    assert snapshot(photos) == before
