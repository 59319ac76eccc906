import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from index.errors import GalleryError, InputError, ModelFileError
from index.faiss_library import import_faiss
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.model.embedder import Embedder
from index.repair.repair import rollback_gallery
from index.versions.versions import find_version, former_version, list_versions
from index.writing.build import add_to_gallery, update_gallery
from index.writing.upgrading import upgrade_gallery
from tests.conftest import draw_image
from tests.index.galleries import ROOT, SMALL, build, count_seen, mixed_folder, rows, stopped_at, vectors
from tests.kills import Command, Moment, read_state_apart, run_command
from tests.models import read_pixels, write_tiny_model

WIDTH = 24


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A model of another width."""
    return write_tiny_model(tmp_path / "wide.onnx", seed=5, width=WIDTH)


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path) -> Path:
    """Thirty images, three of them left out as duplicates, and three broken ones."""
    images = mixed_folder(tmp_path / "images")
    for number in range(3):
        shutil.copy(images / "red" / "0.jpg", images / "red" / f"copy{number}.jpg")
    build(images, tmp_path / "g", tiny_model, dedup="exact")
    return tmp_path / "g"


def test_an_upgrade_keeps_rows_and_ids_and_has_the_vectors_of_the_new_model(gallery: Path, wide: Path) -> None:
    before, model = rows(gallery), Embedder(wide)
    report = upgrade_gallery(gallery, wide, config=SMALL)
    assert report is not None
    assert (report.version, report.indexed, report.duplicate, report.skipped) == ("000002", 30, 3, 3)
    assert Gallery.open(gallery).width == WIDTH
    assert rows(gallery) == before
    opened = Gallery.open(gallery)
    for row in opened.rows(opened.ids.tolist()):
        pixels = read_pixels(model, gallery.parent / "images" / row.path)
        assert np.allclose(opened.vector(row.id), model.embed_batch(pixels[None])[0], atol=1e-5)
    assert verify_gallery(gallery).problems == []
    assert not {"upgrade", "building"} & {path.name for path in gallery.iterdir()}


def test_the_former_model_stays_for_the_way_back_through_later_updates(
    gallery: Path, tiny_model: Path, wide: Path
) -> None:
    before = vectors(gallery)
    upgrade_gallery(gallery, wide, config=SMALL)
    for number in range(3):
        draw_image((9, 9, 200), seed=number).save(gallery.parent / "images" / f"late{number}.png")
        update_gallery(gallery, config=SMALL)
    assert [folder.name for folder in list_versions(gallery)] == ["000005", "000004", "000001"]
    assert former_version(gallery, current="000005") == "000001"
    rollback_gallery(gallery, to="000001")
    assert vectors(gallery) == before
    assert former_version(gallery, current="000001") is None
    assert update_gallery(gallery, config=SMALL).new_images == 3
    assert find_version(gallery).name == "000006"


def test_the_model_of_the_gallery_and_unusable_files_change_nothing(
    gallery: Path, tiny_model: Path, tmp_path: Path
) -> None:
    assert upgrade_gallery(gallery, tiny_model, config=SMALL) is None
    (tmp_path / "text.onnx").write_text("no model")
    for path in (tmp_path / "text.onnx", tmp_path / "nowhere.onnx"):
        with pytest.raises((InputError, ModelFileError), match=path.name):
            upgrade_gallery(gallery, path, config=SMALL)
    assert find_version(gallery).name == "000001"
    assert not (gallery / "upgrade").exists()


def test_changes_by_others_during_an_upgrade_are_in_the_next_version(gallery: Path, wide: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.png"
    draw_image((9, 9, 200), seed=77).save(late)

    def add(done: int, total: int) -> None:
        if done and find_version(gallery).name == "000001":  # the lock is free
            add_to_gallery(gallery, [late], config=SMALL)

    report = upgrade_gallery(gallery, wide, config=SMALL, progress=add)
    assert report is not None
    assert (report.version, report.new_images, report.indexed) == ("000003", 31, 31)
    assert former_version(gallery, current="000003") == "000002"
    assert verify_gallery(gallery).problems == []


def test_images_with_other_bytes_than_the_indexed_ones_get_new_ids_and_lost_ones_are_skipped(
    gallery: Path, wide: Path
) -> None:
    before, images = {row.path: row.id for row in rows(gallery)}, gallery.parent / "images"
    draw_image((9, 9, 200), seed=77).save(images / "blue" / "1.png")
    (images / "green" / "1.png").unlink()
    report = upgrade_gallery(gallery, wide, config=SMALL)
    assert report is not None
    assert (report.indexed, report.skipped_by_reason["unreadable"]) == (29, 1)
    after = {row.path: row for row in rows(gallery)}
    assert after["blue/1.png"].id > max(before.values())
    assert after["green/1.png"].status == "skipped"
    assert all(after[path].id == before[path] for path in before if path not in ("blue/1.png", "green/1.png"))


def test_sources_that_are_away_and_work_of_others_stop_an_upgrade_before_it_changes_anything(
    gallery: Path, wide: Path
) -> None:
    images = gallery.parent / "images"
    images.rename(gallery.parent / "elsewhere")
    with pytest.raises(InputError, match="no such folder or file"):
        upgrade_gallery(gallery, wide, config=SMALL)
    (gallery.parent / "elsewhere").rename(images)
    draw_image((9, 9, 200), seed=1).save(images / "late.png")
    with stopped_at("writing.build.publish"):
        update_gallery(gallery, config=SMALL)
    with pytest.raises(GalleryError, match="a stopped command is unfinished"):
        upgrade_gallery(gallery, wide, config=SMALL)
    assert update_gallery(gallery, config=SMALL).indexed == 31
    upgrade_gallery(gallery, wide, config=SMALL)
    assert Gallery.open(gallery).count == 31


def kill_upgrades(place: Path, *, count: int = 16) -> None:
    """Kill upgrades of copies of a gallery at steps of many kinds; run again, they end as an undisturbed one."""
    import_faiss()
    origin, model = place / "g", place / "wide.onnx"
    command = Command("upgrade", "upgrade", lambda gallery: upgrade_gallery(gallery, model, config=SMALL))
    shutil.copytree(origin, place / "whole" / "g")
    ended = run_command(command, place / "whole" / "g")
    assert ended is not None
    assert ended.error is None, ended.error
    before, whole, kinds = read_state_apart(origin), read_state_apart(place / "whole" / "g"), sorted(ended.steps)
    assert before is not None
    assert whole is not None
    for number, kind in enumerate(kinds[:: max(1, len(kinds) // count)]):
        twin = place / str(number) / "g"
        shutil.copytree(origin, twin)
        run_command(command, twin, Moment(step=(kind, max(1, ended.steps[kind] // 2))))
        state = read_state_apart(twin)
        assert state is not None
        assert state.differences(before) == [] or state.differences(whole) == [], kind
        again = run_command(command, twin)
        assert again is not None
        assert again.error is None, (kind, again.error)
        state = read_state_apart(twin)
        assert state is not None
        assert state.differences(whole) == [], kind
        assert list(twin.glob("upgrade/*")) == [], kind


@pytest.mark.slow
def test_upgrades_killed_at_any_step_leave_a_whole_version_and_go_on(gallery: Path, wide: Path, tmp_path: Path) -> None:
    code = "import sys, pathlib; from tests.index.writing.test_upgrading import kill_upgrades as kill; "
    words = [sys.executable, "-c", f"{code}kill(pathlib.Path(sys.argv[1]))", tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_stopped_upgrade_embeds_no_image_twice(gallery: Path, wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stopped_at("writing.upgrading._publish"):
        upgrade_gallery(gallery, wide, config=SMALL)
    assert find_version(gallery).name == "000001"
    with count_seen(monkeypatch) as seen:
        upgrade_gallery(gallery, wide, config=SMALL)
    assert Gallery.open(gallery).width == WIDTH
    assert seen == []
