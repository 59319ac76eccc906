"""Disks that are full, files that vanish or change meanwhile, writers that die: a clear error, and nothing is lost."""

import hashlib
import importlib
import os
import resource
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from index.errors import GalleryError, RetrievalError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.writing.build import build_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.copying import tune_gallery
from tests.conftest import draw_folder, draw_image, mostly_slow
from tests.forked import run
from tests.index.galleries import SMALL, build, build_ann, few_for_an_index, rows


def write_on_a_full_disk() -> None:
    """Run a command; from one moment on, or during it, no file may grow beyond a limit. All is told in `sys.argv`.

    What is written fails as on a full disk, also in SQLite and faiss.
    """
    command, model, folder, out = sys.argv[1], *map(Path, sys.argv[2:5])
    limit, moment, then = int(sys.argv[5]), sys.argv[6], sys.argv[7]
    *path, name = moment.split(".")
    owner: Any = importlib.import_module(".".join(path[:3]))
    for part in path[3:]:
        owner = getattr(owner, part)
    reached = getattr(owner, name)

    def limited(*args: Any, **options: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            return reached(*args, **options)
        finally:
            if then == "room":
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    setattr(owner, name, limited)
    try:
        with few_for_an_index():
            if command == "build":
                index = {"index_type": "hnsw"}
                build_gallery(model_path=model, sources=[folder], out=out, config=SMALL, index=index)
            elif command == "update":
                update_gallery(out, config=SMALL)
            else:
                tune_gallery(out, changes={"index_type": "ivf"})
        sys.stdout.write("it was written\n")
    except RetrievalError as error:
        sys.stdout.write(f"{type(error).__name__} {error}\n")


ADVICE = "run the same command again"


@dataclass(frozen=True)
class Full:
    """From which call on no file may be larger than the limit, and whether there is `room` again after it."""

    moment: str
    limit: int
    then: str = "room"


def run_limited(command: str, model: Path, folder: Path, out: Path, *, full: Full) -> str:
    """Run a command in a process whose disk is full from a moment on; the error it gave."""
    words = [command, model, folder, out, full.limit, full.moment, full.then]
    ran = run(words, function=write_on_a_full_disk)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


def contents(gallery: Path) -> dict[str, tuple[str | None, bytes | None]]:
    """Path, hash and vector of every item, of a gallery that is sound."""
    assert verify_gallery(gallery, sample=0).problems == []
    opened = Gallery.open(gallery)
    return {
        row.path: (row.sha256, opened.vector(row.id).tobytes() if row.status == "indexed" else None)
        for row in rows(gallery)
    }


START = "index.writing.workspace.Workspace.open"
WRITTEN_BY_ALL = {
    "the catalogue": Full(START, 20_000),
    "a finished catalogue": Full("index.catalog.writer.CatalogWriter.write_finished", 5_000),
    "the manifest": Full("index.writing.publishing._describe", 100, then="full"),
    "CURRENT": Full("index.versions.versions.set_current", 10),
}
WRITTEN = {
    **WRITTEN_BY_ALL,
    "the model": Full(START, 100),
    "a checkpoint": Full("index.writing.pending.write_checkpoint", 500),
    "its rows": Full("index.catalog.writer.CatalogWriter.record_outcomes", 5_000),
    "the ids": Full("index.vectors.files.write_shards", 150),
    "the vectors": Full("index.vectors.files.write_shards", 300),
    "the index": Full("index.vectors.ann_building.write_ann", 500),
}


@pytest.mark.parametrize("written", mostly_slow(WRITTEN, fast=("the catalogue", "a checkpoint", "the manifest")))
def test_a_build_on_a_full_disk_goes_on_later(tmp_path: Path, tiny_model: Path, written: str) -> None:
    folder = draw_folder(tmp_path / "images", per_class=7)
    told = run_limited("build", tiny_model, folder, tmp_path / "g", full=WRITTEN[written])
    assert told.startswith("GalleryError")
    assert ADVICE in told
    assert not (tmp_path / "g" / "CURRENT").exists()
    assert build_ann(folder, tmp_path / "g", tiny_model).indexed == 21
    build(folder, tmp_path / "whole", tiny_model)
    assert contents(tmp_path / "g") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("update", "CURRENT"),
        ("tune", "the index"),
        *(pytest.param("update", name, marks=pytest.mark.slow) for name in WRITTEN_BY_ALL if name != "CURRENT"),
        pytest.param("tune", "the vectors", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_keeps_the_old_version(tmp_path: Path, tiny_model: Path, command: str, written: str) -> None:
    folder = draw_folder(tmp_path / "images", per_class=7)
    build_ann(folder, tmp_path / "g", tiny_model)
    before = contents(tmp_path / "g")
    draw_image((1, 2, 3), seed=7).save(folder / "new.png")
    told = run_limited(command, tiny_model, folder, tmp_path / "g", full=WRITTEN[written])
    assert told.startswith("GalleryError")
    assert ADVICE in told
    assert contents(tmp_path / "g") == before
    assert Gallery.open(tmp_path / "g").manifest.index["type"] == "hnsw"
    with few_for_an_index():
        assert update_gallery(tmp_path / "g", config=SMALL).indexed == 22
    assert Gallery.open(tmp_path / "g").manifest.index["type"] == ("ivf" if command == "tune" else "hnsw")
    assert contents(tmp_path / "g").items() > before.items()


def change_after(count: int, change: Callable[[], None]) -> Callable[[int, int], None]:
    """A progress callback that changes something once so many images are done."""
    pending = [change]

    def progress(done: int, total: int) -> None:
        if done >= count and pending:
            pending.pop()()

    return progress


def test_files_that_vanish_or_change_during_a_build(tmp_path: Path, tiny_model: Path) -> None:
    folder = draw_folder(tmp_path / "images", per_class=20)
    last = sorted((folder / "red").iterdir())[-2:]  # read long after the first batch is done

    def change() -> None:
        last[0].unlink()
        draw_image((9, 9, 9), seed=99).save(last[1])

    report = build(folder, tmp_path / "g", tiny_model, progress=change_after(4, change))
    assert (report.indexed, report.skipped_by_reason) == (59, {"unreadable": 1})
    by_path = {row.path: row for row in rows(tmp_path / "g")}
    assert by_path[f"red/{last[0].name}"].reason == "unreadable"
    assert by_path[f"red/{last[1].name}"].sha256 == hashlib.sha256(last[1].read_bytes()).hexdigest()
    again = build(folder, tmp_path / "g", tiny_model)
    assert (again.indexed, again.skipped, again.new_images) == (59, 0, 0)
    build(folder, tmp_path / "whole", tiny_model)
    assert contents(tmp_path / "g") == contents(tmp_path / "whole")


def test_the_next_update_sees_changes_after_reading(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    first = image_folder / "blue" / "0.jpg"
    changing = change_after(4, lambda: draw_image((9, 9, 9), seed=99).save(first))
    build(image_folder, tmp_path / "g", tiny_model, progress=changing)
    old = {row.path: row for row in rows(tmp_path / "g")}["blue/0.jpg"]
    assert old.sha256 != hashlib.sha256(first.read_bytes()).hexdigest()
    assert update_gallery(tmp_path / "g", config=SMALL).new_images == 1
    build(image_folder, tmp_path / "whole", tiny_model)
    assert contents(tmp_path / "g") == contents(tmp_path / "whole")


def test_an_archive_swapped_during_a_build_gives_no_wrong_vectors(tmp_path: Path, tiny_model: Path) -> None:
    folder = draw_folder(tmp_path / "images", per_class=10)
    archive = tmp_path / "more.zip"

    def pack(seed: int) -> None:
        with zipfile.ZipFile(tmp_path / "next.zip", "w") as packed:
            for number in range(4):
                image = tmp_path / "member.png"
                draw_image((90, 90, 200), seed=seed + number).save(image)
                packed.write(image, f"{number}.png")
        (tmp_path / "next.zip").replace(archive)

    pack(100)
    swapping = {"config": SMALL, "progress": change_after(4, lambda: pack(200))}
    report = build_gallery(model_path=tiny_model, sources=[folder, archive], out=tmp_path / "g", **swapping)
    assert (report.indexed, report.skipped_by_reason) == (30, {"unreadable": 4})
    assert update_gallery(tmp_path / "g", config=SMALL).indexed == 34
    build_gallery(model_path=tiny_model, sources=[folder, archive], out=tmp_path / "whole", config=SMALL)
    assert contents(tmp_path / "g") == contents(tmp_path / "whole")


def test_an_image_swapped_for_a_pipe_or_a_folder_is_skipped(tmp_path: Path, tiny_model: Path) -> None:
    folder = draw_folder(tmp_path / "images", per_class=20)
    last = sorted((folder / "red").iterdir())[-2:]

    def swap() -> None:
        for path in last:
            path.unlink()
        os.mkfifo(last[0])
        last[1].mkdir()

    report = build(folder, tmp_path / "g", tiny_model, progress=change_after(4, swap))
    assert (report.indexed, report.skipped_by_reason) == (58, {"not-a-file": 1, "unreadable": 1})
    again = update_gallery(tmp_path / "g", config=SMALL)
    assert (again.indexed, again.skipped_by_reason) == (58, {"not-a-file": 1})


def test_workers_never_outlive_a_command_that_fails(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()

    def fail(*args: object, **options: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("index.writing.pending.write_checkpoint", fail)
        with pytest.raises(GalleryError, match=f"Input/output error.*{ADVICE}"):
            build(image_folder, tmp_path / "g", tiny_model)
    assert threading.active_count() == before
    again = BuildConfig(workers=1)
    assert build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g", config=again).indexed == 15
