from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from index.catalog.rows import CatalogRow
from index.commands.index_group import index_group
from index.errors import GalleryError, GalleryMismatchError, InputError
from index.faiss_library import import_faiss
from index.gallery.gallery import Gallery
from index.gallery.info import read_info
from index.gallery.verify import verify_gallery
from index.model.backends import measuring
from index.model.backends.names import VARIABLE
from index.model.embedder import Embedder
from index.repair.repair import RepairReport, repair_gallery
from index.repair.rollback import rollback_gallery
from index.versions.versions import find_version
from index.writing.build import update_gallery
from index.writing.reindex import compact_gallery
from tests.conftest import draw_folder, draw_image
from tests.deep import mostly_slow
from tests.index.galleries import ROOT, SMALL, build, build_ann, few_for_an_index, rows, vectors
from tests.index.invoking import invoke
from tests.kills import Command, Moment, read_state_apart, run_command
from tests.models import write_tiny_model

FILES = (
    "CURRENT",
    "gallery.json",
    "version/part.json",
    "version/manifest.json",
    "version/catalog.sqlite",
    "version/vectors/00000.npy",
    "version/vectors/00001.npy",
    "version/ids/00000.npy",
    "version/model.onnx",
    "version/index.faiss",
    "version/deleted.npy",
    "version/held_out.npy",
)
FAST = ("CURRENT", "version/manifest.json", "version/catalog.sqlite", "version/index.faiss", "version/deleted.npy")
Found = dict[str, list[tuple[int, float]]]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def own_copies(gallery: Path) -> None:
    """No file is shared among versions any more, so that damage hits one of them alone."""
    for path in [path for path in gallery.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery with an index, in two versions: the second one has another shard and a removed image."""
    folder = tmp_path_factory.mktemp("repair")
    images = draw_folder(folder / "images", per_class=10)
    (images / "red" / "junk.jpg").write_bytes(b"<html>")
    build_ann(images, folder / "g", tiny_model)
    for number in range(3):
        draw_image((200, 9, 200), seed=number).save(images / f"late{number}.png")
    (images / "blue" / "0.jpg").unlink()
    with few_for_an_index():
        update_gallery(folder / "g", config=SMALL)
    return folder / "g"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    """A copy of it, over the same images."""
    shutil.copytree(built, tmp_path / "g")
    return tmp_path / "g"


def place(gallery: Path, name: str) -> Path:
    return gallery / name.replace("version/", f"versions/{find_version(gallery).name}/")


def search(gallery: Path) -> Found:
    """What every member finds."""
    opened = Gallery.open(gallery)
    hits = {str(key): opened.search(opened.vector(int(key)), k=5) for key in opened.ids}
    return {key: [(hit.id, round(hit.score, 5)) for hit in some] for key, some in hits.items()}


def mend(gallery: Path, **options: object) -> RepairReport:
    with few_for_an_index():
        report = repair_gallery(gallery, config=SMALL, **options)
    assert verify_gallery(gallery).problems == []
    return report


def check_ids(gallery: Path, before: list[CatalogRow]) -> None:
    """The same images, and every id is that of the same bytes as before, or was never given."""
    known, most = {row.path: row for row in before}, max(row.id for row in before)
    after = {row.path: row for row in rows(gallery)}
    assert after.keys() == known.keys()
    assert {path: row.sha256 for path, row in after.items()} == {path: row.sha256 for path, row in known.items()}
    assert all(row.id == known[path].id or row.id > most for path, row in after.items())
    late = [path for path in known if path.startswith("late") or "junk" in path]
    assert all(after[path].id == known[path].id for path in known if path not in late)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, flip) for name in FAST),
        ("version/vectors/00000.npy", truncate),
        ("version/part.json", Path.unlink),
        *(pytest.param(name, flip, marks=pytest.mark.slow) for name in FILES if name not in FAST),
        *(
            pytest.param(name, Path.unlink, marks=pytest.mark.slow)
            for name in FILES
            if name != "version/part.json"
        ),
    ],
)
def test_a_gallery_is_sound_again_with_its_ids_whatever_file_is_damaged(
    gallery: Path, name: str, damage: Callable[[Path], None]
) -> None:
    before, found, stored = rows(gallery), search(gallery), vectors(gallery)
    damage(place(gallery, name))
    report = mend(gallery)
    assert report.changed
    assert report.damaged
    if name == "version/catalog.sqlite":
        check_ids(gallery, before)
        return
    assert rows(gallery) == before
    assert search(gallery) == found
    assert vectors(gallery) == stored
    assert report.indexed == len(stored)
    assert not mend(gallery).changed
    with few_for_an_index():
        assert not update_gallery(gallery, config=SMALL).changed
        compact_gallery(gallery)
    after = {row.path: row.id for row in rows(gallery)}
    assert {row.path: after[row.path] for row in before} == {row.path: row.id for row in before}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("version/catalog.sqlite", flip),
        ("version/model.onnx", truncate),
        *(
            pytest.param(name, damage, marks=pytest.mark.slow)
            for damage, names in ((flip, FILES[3:6]), (Path.unlink, (*FILES[:6], *FILES[9:10])))
            for name in names
        ),
    ],
)
def test_a_gallery_of_one_version_is_sound_again_too(
    tmp_path: Path, tiny_model: Path, name: str, damage: Callable[[Path], None]
) -> None:
    images = draw_folder(tmp_path / "images", per_class=8)
    build_ann(images, tmp_path / "g", tiny_model)
    before, stored = {row.path: (row.id, row.sha256) for row in rows(tmp_path / "g")}, vectors(tmp_path / "g")
    damage(place(tmp_path / "g", name))
    if name == "version/model.onnx":
        with pytest.raises(GalleryError, match=r"its model is damaged or missing in every version.*--model"):
            mend(tmp_path / "g")
    report = mend(tmp_path / "g", model_path=tiny_model if "model" in name else None)
    after = {row.path: (row.id, row.sha256) for row in rows(tmp_path / "g")}
    assert {path: sha256 for path, (_, sha256) in after.items()} == {
        path: sha256 for path, (_, sha256) in before.items()
    }
    if report.catalog != "current":  # an id stands for the same bytes for ever, or was never given
        assert all(number == before[path][0] or number > len(before) for path, (number, _) in after.items())
    else:
        assert after == before
        assert vectors(tmp_path / "g") == stored


def test_nothing_goes_because_a_disk_is_not_mounted(gallery: Path, built: Path, tmp_path: Path) -> None:
    before = rows(gallery)
    own_copies(gallery)
    for path in gallery.glob("versions/*/vectors/00000.npy"):
        flip(path)
    images = shutil.move(built.parent / "images", tmp_path / "away")
    try:
        with pytest.raises(InputError, match=r"images \(29 images\); mount or put them back.*--drop-missing"):
            mend(gallery)
    finally:
        shutil.move(images, built.parent / "images")
    assert (mend(gallery).embedded, rows(gallery)) == (29, before)


def test_what_is_gone_for_good_is_said(gallery: Path, built: Path, tmp_path: Path) -> None:
    lost = next(row for row in rows(gallery) if row.path == "red/1.png")
    for path in gallery.glob("versions/*/vectors/00000.npy"):
        flip(path)
    taken = shutil.move(built.parent / "images" / "red" / "1.png", tmp_path / "1.png")
    try:
        report = mend(gallery)
    finally:
        shutil.move(taken, built.parent / "images" / "red" / "1.png")
    assert (report.gone, report.gone_images) == (1, ["red/1.png"])
    assert lost.id not in Gallery.open(gallery).ids
    with few_for_an_index():
        update_gallery(gallery, config=SMALL)
    again = next(row for row in rows(gallery) if row.path == "red/1.png")
    assert again.id > max(row.id for row in rows(gallery) if row != again)


def test_another_image_in_the_place_of_a_lost_one_gets_an_id_of_its_own(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    flip(place(tmp_path / "g", "version/vectors/00000.npy"))
    draw_image((7, 7, 7), seed=7).save(image_folder / "red" / "1.png")
    report = mend(tmp_path / "g")
    ids = {row.path: row.id for row in rows(tmp_path / "g")}
    assert (report.embedded, report.new_images, ids["red/1.png"]) == (14, 1, 16)


def test_rows_come_from_the_version_before_where_the_catalogue_is_lost(gallery: Path) -> None:
    before = {row.path: row.id for row in rows(gallery)}
    place(gallery, "version/catalog.sqlite").unlink()
    report = mend(gallery)
    after = {row.path: row.id for row in rows(gallery)}
    late = {path for path in before if path.startswith("late")}
    assert report.catalog == "version 000001"
    assert {path: after[path] for path in before if path not in late} == {
        path: number for path, number in before.items() if path not in late
    }
    assert min(after[path] for path in late) > max(before.values())
    assert any("what was added since has new ids" in note for note in report.notes)


def test_the_sources_are_asked_for_only_where_nothing_tells(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    place(tmp_path / "g", "version/catalog.sqlite").unlink()
    place(tmp_path / "g", "version/part.json").unlink()
    with pytest.raises(InputError, match=r"lost in every version.*--source"):
        mend(tmp_path / "g")
    report = mend(tmp_path / "g", sources=[str(image_folder)])
    assert (report.catalog, report.new_images) == ("sources", 15)
    assert min(row.id for row in rows(tmp_path / "g")) == 16


def test_uploads_and_decisions_are_not_touched(gallery: Path) -> None:
    (gallery / "people" / "added" / "shoes").mkdir(parents=True)
    (gallery / "people" / "added" / "shoes" / "1.png").write_bytes(b"upload")
    connection = sqlite3.connect(gallery / "people" / "review.sqlite")
    connection.execute("CREATE TABLE of_nobody (said TEXT)")
    connection.close()
    decisions = (gallery / "people" / "review.sqlite").read_bytes()
    flip(place(gallery, "version/ids/00000.npy"))
    mend(gallery)
    assert (gallery / "people" / "added" / "shoes" / "1.png").read_bytes() == b"upload"
    assert (gallery / "people" / "review.sqlite").read_bytes() == decisions


def test_another_model_is_refused(gallery: Path, tmp_path: Path) -> None:
    flip(place(gallery, "version/index.faiss"))
    other = write_tiny_model(tmp_path / "other.onnx", seed=3)
    with pytest.raises(GalleryMismatchError, match="model"):
        mend(gallery, model_path=other)


@pytest.mark.slow
def test_what_a_repair_embeds_in_another_runtime_must_agree_with_what_it_keeps(
    gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Embedder, "agreement", property(lambda _: 0.95, lambda *_: None), raising=False)
    monkeypatch.setattr(measuring, "_SECONDS", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own_copies(gallery)
    for path in gallery.glob("versions/*/vectors/00001.npy"):
        flip(path)
    monkeypatch.setenv(VARIABLE, "openvino")
    with pytest.raises(GalleryMismatchError, match=r"runtime is onnxruntime, but openvino"):
        mend(gallery)
    monkeypatch.delenv(VARIABLE)
    assert mend(gallery).embedded == 3
    flip(place(gallery, "version/index.faiss"))
    monkeypatch.setenv(VARIABLE, "openvino")
    with few_for_an_index():
        assert repair_gallery(gallery, config=SMALL).embedded == 0
    assert read_info(gallery).runtime is None


def test_unfinished_work_that_is_damaged_goes_and_a_sound_one_stays(
    gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*words: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("index.writing.publish_change.settle", stop)
        with pytest.raises(KeyboardInterrupt):
            update_gallery(gallery)
    assert not mend(gallery).changed
    assert (gallery / "building" / "plan.json").is_file()
    (gallery / "building" / "catalog.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(GalleryError, match=r"the unfinished work is .*`retrieval index repair` throws it away"):
        update_gallery(gallery)
    assert mend(gallery).changed
    with few_for_an_index():
        assert not update_gallery(gallery).changed


MOMENTS = (
    "index.repair.repair_rows.open_engine",
    "index.writing.workspace.Workspace.save_checkpoint",
    "index.repair.repair.settle",
    "index.vectors.file_writer.write_shards",
    "index.writing.publishing._describe",
    "index.writing.workspace.publish_version",
    "index.versions.versions.set_current",
    "index.repair.repair.Workspace.remove",
)


@pytest.mark.parametrize("moment", mostly_slow(MOMENTS, fast=MOMENTS[:2] + MOMENTS[-2:]))
def test_a_repair_that_was_stopped_is_gone_on_with(
    gallery: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def stop(*words: object, **options: object) -> None:
        raise KeyboardInterrupt

    before, found = rows(gallery), search(gallery)
    for path in gallery.glob("versions/*/vectors/0000*.npy"):
        flip(path)
    with monkeypatch.context() as patched:
        patched.setattr(moment, stop)
        with pytest.raises(KeyboardInterrupt):
            mend(gallery)
    mend(gallery)
    assert (rows(gallery), search(gallery)) == (before, found)
    with few_for_an_index():
        assert not update_gallery(gallery, config=SMALL).changed
    assert not (gallery / "building").exists()


KILLED_AT = 6  # steps, of all that there are


def kill_while_mending(place: Path) -> None:
    """Kill repairs and rollbacks of copies of a gallery at many steps; run again, they end as undisturbed ones."""
    import_faiss()
    damaged = place / "damaged"
    for path in damaged.glob("versions/*/vectors/0000*.npy"):
        flip(path)
    commands = {
        "repair": (damaged, Command("repair", "repair", lambda gallery: repair_gallery(gallery, config=SMALL))),
        "rollback": (place / "g", Command("rollback", "rollback", rollback_gallery)),
    }
    for name, (origin, command) in commands.items():
        shutil.copytree(origin, place / name / "g")
        ended = run_command(command, place / name / "g")
        assert ended is not None
        assert ended.error is None, ended.error
        whole = read_state_apart(place / name / "g")
        assert whole is not None
        chosen = random.Random(0).sample(sorted(ended.steps), k=min(KILLED_AT, len(ended.steps)))
        for number, kind in enumerate(chosen):
            gallery = place / name / str(number) / "g"
            shutil.copytree(origin, gallery)
            if run_command(command, gallery, Moment(step=(kind, ended.steps[kind]))) is None:
                version = find_version(gallery).name
                if name == "repair" or version == "000002":
                    again = run_command(command, gallery)
                    assert again is not None
                    assert again.error is None, (kind, again.error)
            state = read_state_apart(gallery)
            assert state is not None
            assert state.differences(whole) == [], kind


@pytest.mark.slow
def test_repairs_and_rollbacks_killed_at_any_step_end_when_they_are_run_again(built: Path, tmp_path: Path) -> None:
    for name in ("g", "damaged"):
        shutil.copytree(built, tmp_path / name)
    code = (
        "import sys; from pathlib import Path; from tests.index.repair.test_repair import kill_while_mending; "
        "kill_while_mending(Path(sys.argv[1]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_no_folder_that_is_no_gallery_is_mended(tmp_path: Path, image_folder: Path) -> None:
    for folder in (tmp_path / "none", image_folder):
        with pytest.raises(GalleryError, match=r"no gallery|no such gallery"):
            repair_gallery(folder)
    assert not (image_folder / ".lock").exists()


def test_a_version_of_another_gallery_does_not_take_the_place_of_ones_own(
    gallery: Path, tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    build(image_folder / "red", tmp_path / "other", tiny_model)
    before = rows(gallery)
    shutil.copytree(tmp_path / "other" / "versions" / "000001", gallery / "versions" / "000009")
    (gallery / "CURRENT").unlink()
    assert mend(gallery).version == find_version(gallery).name != "000009"
    assert rows(gallery) == before


def test_the_version_in_use_is_salvaged_without_its_manifest_and_mark(gallery: Path) -> None:
    before = rows(gallery)
    for name in ("manifest.json", "part.json"):
        place(gallery, f"version/{name}").unlink()
    assert mend(gallery).catalog == "rows"
    after = {row.path: row.id for row in rows(gallery)}
    assert {row.path: after[row.path] for row in before} == {row.path: row.id for row in before}


def test_the_command_says_what_it_did(gallery: Path) -> None:
    path = place(gallery, "version/vectors/00001.npy")
    flip(path)
    with few_for_an_index():
        result = invoke(index_group, "repair", gallery)
    assert result.exit_code == 0, result.output
    assert "mended, version 000003 is sound, 32 images" in result.stdout
    assert "3 embedded again under their ids" in result.stdout
    assert f"was damaged: {path}" in result.stdout
    assert invoke(index_group, "repair", gallery, "--json").stdout.count('"changed": false') == 1
