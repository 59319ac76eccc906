"""Changing a gallery: several sources that overlap, parts of them, archives, disks that are not there, duplicates."""

import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from index.commands.inspect_commands import verify
from index.errors import GalleryError, GalleryMismatchError, ImageError, InputError
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.gallery.info import read_info
from index.gallery.verify import verify_gallery
from index.items import Place
from index.sources import local_source
from index.sources.folder_walk import walk_folder
from index.sources.reading import read_place
from index.versions.versions import find_version
from index.writing import pending
from index.writing.build import add_to_gallery, build_gallery, update_gallery
from index.writing.copying import copy_gallery, tune_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build, build_ann, flip, invoke, rows, run, stopped_at, vectors
from tests.models import write_tiny_model


def members(gallery: Path) -> dict[tuple[int, str], str | None]:
    """(source, path) to label, of what is indexed, in a gallery that is sound."""
    assert verify_gallery(gallery, sample=0).problems == []
    return {(row.source, row.path): row.label for row in rows(gallery) if row.status == "indexed"}


def pack(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname=".")
    return archive


def test_an_item_of_several_sources_is_indexed_once(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label,price\nimages/red/0.jpg,special,3\nimages/red/2.jpg,special,4\n")
    sources = [tmp_path / "t.csv", image_folder, image_folder / "blue", tmp_path / "images" / "*" / "1.png"]
    report = build_gallery(model_path=tiny_model, sources=sources, out=tmp_path / "g", config=SMALL)
    assert (report.found, report.indexed) == (15, 15)
    found = members(tmp_path / "g")
    assert found[1, "images/red/0.jpg"] == "special"
    assert sum(source == 2 for source, _ in found) == 13
    assert [row.metadata for row in rows(tmp_path / "g") if row.source == 1] == [{"price": 3}, {"price": 4}]
    assert not update_gallery(tmp_path / "g").changed


def test_a_part_of_a_source_stays_a_part_of_it(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\nimages/red/0.jpg,special\n")
    build_gallery(model_path=tiny_model, sources=[tmp_path / "t.csv", image_folder], out=tmp_path / "g", config=SMALL)
    draw_image((9, 9, 9), seed=77).save(image_folder / "red" / "new.png")
    draw_image((9, 9, 9), seed=78).save(image_folder / "blue" / "not asked for.png")
    report = add_to_gallery(tmp_path / "g", [image_folder / "red", image_folder / "red" / "new.png"])
    assert (report.new_images, report.indexed) == (1, 16)
    found = members(tmp_path / "g")
    assert found[2, "red/new.png"] == "red"
    assert found[1, "images/red/0.jpg"] == "special"
    assert (2, "red/0.jpg") not in found
    assert len(Gallery.open(tmp_path / "g").sources) == 2
    assert update_gallery(tmp_path / "g").new_images == 1


def test_an_archive_of_unchanged_time_is_not_read_again(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    pack(image_folder, folder / "0.tar")
    build(folder, tmp_path / "g", tiny_model)
    read: list[str] = []
    real = local_source.scan_archive

    def record(file: Path, *, archive: str) -> object:
        read.append(archive)
        return real(file, archive=archive)

    monkeypatch.setattr(local_source, "scan_archive", record)
    assert not update_gallery(tmp_path / "g").changed
    assert read == []
    os.utime(folder / "0.tar", ns=(1, 1))
    report = update_gallery(tmp_path / "g")
    assert (read, report.new_images, report.changed) == (["0.tar"], 0, True)
    draw_image((1, 2, 3), seed=5).save(image_folder / "new.png")
    pack(image_folder, folder / "0.tar")
    report = update_gallery(tmp_path / "g")
    assert (report.new_images, report.indexed) == (1, 16)
    gallery = Gallery.open(tmp_path / "g")
    for row in rows(tmp_path / "g"):
        assert read_place(gallery.place(row.id)) == (image_folder / row.path.removeprefix("0.tar/")).read_bytes()


def test_a_missing_disk_loses_nothing(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    other = draw_folder(tmp_path / "other", per_class=2)
    build_gallery(model_path=tiny_model, sources=[image_folder, other], out=tmp_path / "g", config=SMALL)
    other.rename(tmp_path / "elsewhere")
    advice = r".*--root.*mount.*remove /.* --source /.*/other$"
    with pytest.raises(InputError, match=f"other: no such folder or file; {advice}"):
        update_gallery(tmp_path / "g")
    other.mkdir()
    with pytest.raises(InputError, match=f"other: nothing is left in it; {advice}"):
        update_gallery(tmp_path / "g")
    assert not (tmp_path / "g" / "building").exists()
    assert Gallery.open(tmp_path / "g").count == 21
    other.rmdir()
    (tmp_path / "elsewhere").rename(other)
    assert not update_gallery(tmp_path / "g").changed


def test_what_lies_in_a_folder_that_cannot_be_listed_for_a_moment_stays(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    real = os.listdir

    def fail(path: str) -> list[str]:
        if str(path).endswith("/red"):
            raise OSError(5, "Input/output error")
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr("index.images.image_files.os.listdir", fail)
        assert {found.problem.reason for found in walk_folder(image_folder) if found.problem} == {"unreadable"}
        report = update_gallery(tmp_path / "g")
    assert (report.indexed, report.vanished, report.skipped_by_reason) == (15, 0, {"unreadable": 1})
    assert (update_gallery(tmp_path / "g").skipped, Gallery.open(tmp_path / "g").count) == (0, 15)


def test_sources_may_swap_but_not_share_places(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    other = draw_folder(tmp_path / "other", per_class=1)
    build_gallery(model_path=tiny_model, sources=[image_folder, other], out=tmp_path / "g", config=SMALL)
    first, second = str(image_folder), str(other)
    for roots, problem in (
        ({first: other}, "already a source"),
        ({first: tmp_path, second: tmp_path}, "cannot be moved to one place"),
        ({None: tmp_path}, "several sources; say which one moved"),
    ):
        with pytest.raises(InputError, match=problem):
            update_gallery(tmp_path / "g", roots=roots)
    image_folder.rename(tmp_path / "x")
    other.rename(image_folder)
    (tmp_path / "x").rename(other)
    report = update_gallery(tmp_path / "g", roots={first: other, second: image_folder})
    assert (report.new_images, report.moved, report.indexed) == (0, 0, 18)


def test_a_reader_of_the_unfinished_catalogue_cannot_spoil_what_is_published(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    draw_folder(tmp_path / "more", per_class=2)
    held: list[sqlite3.Connection] = []
    real = pending._embed

    def hold(work: object, *words: object, **options: object) -> None:
        connection = sqlite3.connect(tmp_path / "g" / "building" / "catalog.sqlite")
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM images").fetchone()
        held.append(connection)
        real(work, *words, **options)

    monkeypatch.setattr(pending, "_embed", hold)
    report = add_to_gallery(tmp_path / "g", [tmp_path / "more"])
    with closing(held[0]):
        assert report.indexed == len(members(tmp_path / "g")) == 21


@pytest.mark.parametrize("then", [tune_gallery, update_gallery])
def test_a_stop_never_costs_a_kept_image(tmp_path: Path, tiny_model: Path, image_folder: Path, then: object) -> None:
    shutil.copy(image_folder / "red" / "0.jpg", image_folder / "red" / "copy.jpg")
    build(image_folder, tmp_path / "g", tiny_model, dedup="exact")
    draw_image((3, 3, 3), seed=9).save(image_folder / "red" / "0.jpg")
    with stopped_at("catalog.writer.CatalogWriter.drop_vanished"):
        update_gallery(tmp_path / "g")
    then(tmp_path / "g")
    assert len(members(tmp_path / "g")) == 16


def test_many_small_additions_are_folded_in(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.vectors.files._LOOSE_SHARDS", 3)
    build(image_folder, tmp_path / "g", tiny_model)
    shards = []
    for number in range(5):
        draw_image((number, 9, 9), seed=number).save(image_folder / f"new{number}.png")
        add_to_gallery(tmp_path / "g", [image_folder])
        gallery = Gallery.open(tmp_path / "g")
        shards.append((len(gallery.store._shards), gallery.manifest.index["shards"]))
        assert gallery.search(gallery.vector(int(gallery.ids[-1])), k=1)[0].id == gallery.ids[-1]
        assert len(gallery.search(gallery.vector(1), k=99)) == gallery.count == 16 + number
    assert shards == [(2, 1), (3, 1), (4, 1), (1, 1), (2, 1)]


def test_a_copy_that_was_stopped_is_made_again(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    build(image_folder, tmp_path / "g", tiny_model)
    with monkeypatch.context() as patched:
        patched.setattr("index.writing.publishing._write_version", fail)
        with pytest.raises(GalleryError, match=r"device; remove the cause and run the command again"):
            copy_gallery(tmp_path / "g", tmp_path / "copy")
    with pytest.raises(GalleryError, match="run the same `retrieval index copy` again"):
        update_gallery(tmp_path / "copy")
    assert copy_gallery(tmp_path / "g", tmp_path / "copy").indexed == 15


TINY = parse_filter("small_side < 9")


def draw_tiny(path: Path, seed: int) -> None:
    draw_image((200, 30, 90), seed=seed).resize((8, 12)).save(path)


def test_images_that_match_are_skipped_until_a_build_without_the_condition(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    gallery = tmp_path / "g"
    draw_tiny(image_folder / "red" / "tiny.png", 1)
    report = build(image_folder, gallery, tiny_model, skip_if=TINY)
    assert report.skipped_by_reason == {"skip-if": 1}
    [skipped] = [row for row in rows(gallery) if row.status == "skipped"]
    assert (skipped.path, skipped.detail, skipped.measures.height) == ("red/tiny.png", "small_side < 9", 12)
    assert skipped.id not in vectors(gallery)
    assert read_info(gallery)["settings"]["skip_if"] == "small_side < 9"
    assert not build(image_folder, gallery, tiny_model, skip_if=TINY).changed
    assert not update_gallery(gallery).changed
    draw_tiny(image_folder / "red" / "second.png", 2)
    assert update_gallery(gallery).skipped_by_reason == {"skip-if": 2}
    back = build(image_folder, gallery, tiny_model)
    assert (back.skipped, back.indexed) == (0, report.indexed + 2)
    assert len(vectors(gallery)) == back.indexed


def test_indexed_images_are_skipped_too_and_get_other_ids(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    gallery = tmp_path / "g"
    for name in ("a.png", "b.png"):  # of equal files the second is a duplicate, released with the first
        draw_tiny(image_folder / name, 1)
    before = build(image_folder, gallery, tiny_model, dedup="exact")
    ids = {row.path: row.id for row in rows(gallery)}
    assert update_gallery(gallery, skip_if=TINY).skipped_by_reason == {"skip-if": 2}
    with pytest.raises(InputError, match="no item of the gallery has the metadata prize"):
        update_gallery(gallery, skip_if=parse_filter("prize < 3"))
    for refused in (partial(update_gallery, gallery), partial(build, image_folder, gallery, tiny_model)):
        with pytest.raises(InputError, match="tag IS NULL: tags are given to images that are indexed"):
            refused(skip_if=parse_filter("tag IS NULL"))
    again = build(image_folder, gallery, tiny_model, dedup="exact")
    assert (again.indexed, again.duplicate) == (before.indexed, before.duplicate)
    now = {row.path: row.id for row in rows(gallery)}
    assert {path for path in ids if ids[path] != now[path]} == {"a.png", "b.png"}


def test_another_model_or_source_is_refused(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    other = write_tiny_model(tmp_path / "other.onnx", seed=1)
    with pytest.raises(GalleryMismatchError, match=r"model \(SHA-256\).*--out"):
        build(image_folder, tmp_path / "g", other)
    with pytest.raises(GalleryMismatchError, match=r"sources.*index add.*--root.*--out"):
        build(draw_folder(tmp_path / "elsewhere"), tmp_path / "g", tiny_model)
    assert build(image_folder, tmp_path / "g", tiny_model).new_images == 0


def test_a_moved_folder_is_not_embedded_again(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    before = {row.path: row.id for row in rows(tmp_path / "g")}
    moved = image_folder.rename(tmp_path / "new place")
    with pytest.raises(InputError, match="no such folder"):
        update_gallery(tmp_path / "g")
    draw_image((1, 2, 3), seed=0).save(moved / "new.png")
    report = update_gallery(tmp_path / "g", roots={None: moved})
    assert (report.version, report.new_images, report.indexed) == ("000002", 1, 16)
    assert before.items() <= {row.path: row.id for row in rows(tmp_path / "g")}.items()
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.sources[1].root == str(moved)
    assert read_place(gallery.place(before["red/1.png"])) == (moved / "red/1.png").read_bytes()
    third = moved.rename(tmp_path / "third")
    again = update_gallery(tmp_path / "g", roots={str(moved): third})
    assert (again.version, again.changed, again.new_images) == ("000003", True, 0)
    assert not build(third, tmp_path / "g", tiny_model).changed
    with pytest.raises(InputError, match=r"nowhere: no source of the gallery; its sources are .*third"):
        update_gallery(tmp_path / "g", roots={"nowhere": tmp_path})


def test_two_versions_are_kept_and_those_in_use(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    versions = tmp_path / "g" / "versions"
    build(image_folder, tmp_path / "g", tiny_model)
    opened = Gallery.open(tmp_path / "g")
    for number in range(3):
        draw_image((number, 2, 3), seed=number).save(image_folder / f"new{number}.png")
        build(image_folder, tmp_path / "g", tiny_model)
    assert sorted(os.listdir(versions)) == ["000001", "000003", "000004"]
    assert opened.search(opened.vector(1), k=3)[0].id == 1
    assert (opened.embedder.sha256, opened.count) == (opened.manifest.model_sha256, 15)
    del opened
    (leftover := versions / "000002").mkdir()  # as a removal that was killed leaves it
    (leftover / "model.onnx").write_bytes(b"x")
    shutil.copy(versions / "000003" / "part.json", leftover)
    assert not build(image_folder, tmp_path / "g", tiny_model).changed
    assert sorted(os.listdir(versions)) == ["000003", "000004"]


def test_a_mended_file_gets_its_vector_between_those_of_the_version_before(
    tmp_path: Path, image_folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = ImageError(path="x", reason="unreadable", detail="Input/output error")

    def fail_for_some(place: Place) -> bytes:
        if place.file.name == "2.jpg":
            raise unreadable
        return read_place(place)

    with monkeypatch.context() as patched:
        patched.setattr("index.embedding.engine.read_place", fail_for_some)
        assert build(image_folder, tmp_path / "g", tiny_model).skipped == 3
    monkeypatch.setattr("index.vectors.shards.SHARD_ROWS", 4)
    assert build(image_folder, tmp_path / "g", tiny_model).new_images == 3
    build(image_folder, tmp_path / "whole", tiny_model)
    assert sorted(vectors(tmp_path / "g").values()) == sorted(vectors(tmp_path / "whole").values())
    ids = [{row.path: row.id for row in rows(tmp_path / name)} for name in ("g", "whole")]
    assert ids[0] == ids[1]


def test_damaged_vectors_go_no_further(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    flip(tmp_path / "g" / "versions" / "000001" / "vectors" / "00000.npy")
    draw_image((1, 2, 3), seed=0).save(image_folder / "new.png")
    build(image_folder, tmp_path / "g", tiny_model)  # shares the file, under its old checksum
    with pytest.raises(GalleryError, match=r"00000.npy: damaged: its SHA-256"):
        Gallery.open(tmp_path / "g")
    with pytest.raises(GalleryError, match=r"00000.npy: damaged: its SHA-256"):
        tune_gallery(tmp_path / "g")
    assert find_version(tmp_path / "g").name == "000002"


def test_a_damaged_gallery_is_never_called_up_to_date(tmp_path: Path, tiny_model: Path) -> None:
    folder = draw_folder(tmp_path / "images", per_class=7)
    build_ann(folder, tmp_path / "whole", tiny_model)
    for name in ("model.onnx", "index.faiss", "vectors/00000.npy", "manifest.json", "catalog.sqlite"):
        shutil.rmtree(tmp_path / "g", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "g")
        (tmp_path / "g" / "versions" / "000001" / name).write_bytes(b"cut")
        for _ in range(2):
            with pytest.raises(GalleryError, match=r"`retrieval index repair`.* `retrieval index rollback`"):
                build_ann(folder, tmp_path / "g", tiny_model)


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
        assert of_spoilt.startswith(f"{spoilt}: was changed since it was indexed, and cannot be decoded any more: ")
        assert "restore these files from a copy; retrieval index update" in advice
        assert "would remove them" in advice
        assert notes[0] == f"note: {swapped}: was changed since it was indexed"
        assert len(notes) == 2
    report = verify_gallery(gallery, read_images=True)
    assert (report.problems, len(report.spoilt), len(report.notes)) == ([], 1, 1)
    assert update_gallery(gallery, thorough=True, config=SMALL).indexed == 2
