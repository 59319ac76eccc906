from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from index.gallery.selection import Selection
from index.writing.build import add_to_gallery, build_gallery, remove_from_gallery, update_gallery
from retrieval_app.review.backup import back_up
from retrieval_app.review.backup_file import BackupError, write_backup
from retrieval_app.review.restore import restore
from tests.conftest import draw_folder
from tests.retrieval_app.review.test_jobs import picture
from tests.retrieval_app.review.test_moved_galleries import rows_of, served


def paths_in(gallery: Path) -> set[str]:
    return {row.path for row in rows_of(gallery) if row.status in ("indexed", "duplicate")}


def build_anew(photos: Path, gallery: Path, model: Path) -> Path:
    """A gallery of photos that are elsewhere, with others before them, so that all ids differ."""
    before = gallery.parent / f"before {gallery.name}" / "hat"
    before.mkdir(parents=True)
    for number in range(3):
        (before / f"hat {number}.png").write_bytes(picture(700 + number))
    build_gallery(model_path=model, sources=[before.parent, photos], out=gallery)
    return gallery


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = draw_folder(tmp_path / "photos", per_class=2)
    shutil.copy(folder / "green" / "0.jpg", folder / "green" / "copy.jpg")
    return folder


@pytest.fixture
def gallery(photos: Path, tmp_path: Path, tiny_model: Path) -> Path:
    """A gallery out of which a photo, and of two copies one, were taken: by command, and by a server."""
    gallery = tmp_path / "shop"
    build_gallery(model_path=tiny_model, sources=[photos], out=gallery)
    remove_from_gallery(gallery, selection=Selection(patterns=("red/0.jpg",)))
    with served(gallery) as jobs:
        jobs.remove([row.id for row in rows_of(gallery) if row.path == "green/copy.jpg"])
    assert {"red/0.jpg", "green/copy.jpg"}.isdisjoint(paths_in(gallery))
    return gallery


@pytest.fixture
def saved(gallery: Path, tmp_path: Path) -> Path:
    assert back_up(gallery, tmp_path / "shop.zip").taken_out == 2
    return tmp_path / "shop.zip"


def test_removals_are_restored(gallery: Path, photos: Path, saved: Path, tmp_path: Path, tiny_model: Path) -> None:
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    new = build_anew(moved, tmp_path / "new", tiny_model)
    before = paths_in(new)
    report = restore(saved, new)
    assert report.removals == {"taken_out": 2, "out": 0, "added_again": 0, "last": 0}
    assert before - paths_in(new) == {"red/0.jpg", "green/copy.jpg"}
    update_gallery(new)
    assert restore(saved, new).removals == {"taken_out": 0, "out": 2, "added_again": 0, "last": 0}
    assert before - paths_in(new) == {"red/0.jpg", "green/copy.jpg"}
    add_to_gallery(new, [moved / "red" / "0.jpg"])
    assert before - paths_in(new) == {"green/copy.jpg"}


def test_a_photo_that_was_added_again_to_the_same_gallery_stays(gallery: Path, photos: Path, saved: Path) -> None:
    add_to_gallery(gallery, [photos / "red" / "0.jpg"])
    report = restore(saved, gallery)
    assert report.removals == {"taken_out": 0, "out": 1, "added_again": 1, "last": 0}
    assert "red/0.jpg" in paths_in(gallery)


def test_of_copies_as_many_stay_as_were_kept(photos: Path, saved: Path, tmp_path: Path, tiny_model: Path) -> None:
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    (moved / "green" / "copy.jpg").unlink()
    new = build_anew(moved, tmp_path / "new", tiny_model)
    assert restore(saved, new).removals == {"taken_out": 1, "out": 1, "added_again": 0, "last": 0}
    assert "green/0.jpg" in paths_in(new)


def test_equal_bytes_of_another_label_stay(photos: Path, saved: Path, tmp_path: Path, tiny_model: Path) -> None:
    (photos / "red" / "0.jpg").rename(photos / "blue" / "moved.jpg")
    new = build_anew(photos, tmp_path / "new", tiny_model)
    restore(saved, new)
    assert "blue/moved.jpg" in paths_in(new)


@pytest.mark.parametrize("line", [b"[]\n", b"{}\n", b'{"sha256": 1, "source": "a", "path": "b", "kept": 0}\n'])
def test_a_list_that_is_none_changes_nothing(gallery: Path, saved: Path, tmp_path: Path, line: bytes) -> None:
    before, bad = rows_of(gallery), tmp_path / "bad.zip"
    with zipfile.ZipFile(saved) as archive, write_backup(bad, overwrite=False) as writer:
        manifest = json.loads(archive.read("manifest.json"))
        for name in manifest.pop("members"):
            writer.add(name, [line if name == "removed.jsonl" else archive.read(name)])
        writer.finish(manifest)
    with pytest.raises(BackupError, match="no sound backup"):
        restore(bad, gallery)
    assert rows_of(gallery) == before
