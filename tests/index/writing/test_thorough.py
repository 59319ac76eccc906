"""Files that changed behind an equal size and time: what reads bytes sees them."""

import os
import shutil
from pathlib import Path

import pytest

from index.commands.inspect_commands import verify
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.writing.build import update_gallery
from tests.conftest import draw_image
from tests.index.galleries import SMALL, build, invoke, rows, run

MEMBERS = ("a.bmp", "b.bmp", "c.bmp")


def write(path: Path, seed: int) -> None:
    draw_image((30 * seed, 200, 255 - 30 * seed), seed=seed).save(path)  # all of one size, being BMP


def swap(one: Path, other: Path) -> None:
    """Let two files have each other's bytes, and their own times."""
    times = [(path, path.stat().st_atime_ns, path.stat().st_mtime_ns) for path in (one, other)]
    assert one.stat().st_size == other.stat().st_size
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    for path, *both in times:
        os.utime(path, ns=(both[0], both[1]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "x").mkdir(parents=True)
    for seed, name in enumerate(MEMBERS):
        write(folder / "x" / name, seed)
    return folder


def test_a_swap_of_equal_size_and_time_is_seen(folder: Path, tmp_path: Path, tiny_model: Path) -> None:
    gallery = tmp_path / "gallery"
    build(folder, gallery, tiny_model)
    before = {row.path: (row.id, row.sha256) for row in rows(gallery)}
    vectors = {sha256: Gallery.open(gallery).vector(number) for number, sha256 in before.values()}
    swap(folder / "x" / "a.bmp", folder / "x" / "b.bmp")
    assert not update_gallery(gallery, config=SMALL).changed
    assert verify_gallery(gallery, sample=0).notes == []
    report = verify_gallery(gallery, sample=0, read_images=True)
    assert (report.read, report.problems) == (3, [])
    assert [Path(note.partition(":")[0]).name for note in report.notes] == ["a.bmp", "b.bmp"]
    assert run(verify, gallery, "--read-images")[-1].endswith(f"retrieval index update {gallery} --thorough")
    updated = update_gallery(gallery, thorough=True, config=SMALL)
    assert (updated.changed, updated.indexed, updated.new_images) == (True, 3, 2)
    after = {row.path: (row.id, row.sha256) for row in rows(gallery)}
    assert after["x/c.bmp"] == before["x/c.bmp"]
    assert after["x/a.bmp"][1] == before["x/b.bmp"][1]
    ids = {number for number, _ in after.values()}
    assert len(ids) == 3
    for number, sha256 in after.values():  # an id stands for the same bytes for ever
        assert (number, sha256) in before.values() or number not in {old for old, _ in before.values()}
        assert Gallery.open(gallery).vector(number) == pytest.approx(vectors[sha256], abs=1e-5)
    assert verify_gallery(gallery, read_images=True).notes == []


@pytest.mark.parametrize("dedup", ["off", "near"])
def test_a_thorough_update_of_no_changes(folder: Path, tmp_path: Path, tiny_model: Path, dedup: str) -> None:
    shutil.copy(folder / "x" / "a.bmp", folder / "x" / "z.bmp")
    build(folder, tmp_path / "gallery", tiny_model, dedup=dedup)
    before = rows(tmp_path / "gallery")
    report = update_gallery(tmp_path / "gallery", thorough=True, config=SMALL)
    assert (report.changed, report.new_images) == (False, 0)
    assert rows(tmp_path / "gallery") == before


def test_a_file_spoilt_in_place_is_damage(folder: Path, tmp_path: Path, tiny_model: Path) -> None:
    gallery, spoilt = tmp_path / "gallery", folder / "x" / "b.bmp"
    build(folder, gallery, tiny_model)
    status = spoilt.stat()
    spoilt.write_bytes(b"\0" * status.st_size)
    os.utime(spoilt, ns=(status.st_atime_ns, status.st_mtime_ns))
    swapped = folder / "x" / "a.bmp"
    write(swapped, 5)
    for options in (("--sample", 0, "--read-images"), ("--sample", 3)):
        told = invoke(verify, gallery, *options)
        assert told.exit_code == 1
        _, of_spoilt, advice, *notes = told.stdout.splitlines()
        assert of_spoilt.startswith(f"{spoilt}: was changed since it was indexed, and is no usable image any more: ")
        assert "restore these files from a copy; retrieval index update" in advice
        assert "would remove them" in advice
        assert notes[0] == f"note: {swapped}: was changed since it was indexed"
        assert len(notes) == 2
    report = verify_gallery(gallery, read_images=True)
    assert (report.problems, len(report.spoilt), len(report.notes)) == ([], 1, 1)
    assert update_gallery(gallery, thorough=True, config=SMALL).indexed == 2
