import os
from pathlib import Path

import pytest

from index.errors import GalleryError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.repair.repair import rollback_gallery
from index.versions.versions import find_version
from index.writing.build import update_gallery
from tests.conftest import draw_image
from tests.index.galleries import SMALL, build, flip, rows, stopped_at


def flip_alone(path: Path) -> None:
    """Damage a file that other versions may share, in this one alone."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    flip(path)


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path, image_folder: Path) -> Path:
    """Two versions: the second one has three images more, of the ids 16, 17 and 18."""
    build(image_folder, tmp_path / "g", tiny_model)
    for number in range(3):
        draw_image((200, 9, 200), seed=number).save(image_folder / f"late{number}.png")
    update_gallery(tmp_path / "g", config=SMALL)
    return tmp_path / "g"


def test_the_version_before_is_current_again_and_ids_go_on(gallery: Path, image_folder: Path) -> None:
    report = rollback_gallery(gallery)
    assert (report.action, report.version, report.indexed) == ("back from version 000002", "000001", 15)
    assert verify_gallery(gallery).problems == []
    assert len(Gallery.open(gallery).ids) == 15
    assert update_gallery(gallery, config=SMALL).version == "000003"
    assert {row.id for row in rows(gallery) if row.path.startswith("late")} == {19, 20, 21}
    assert sorted(os.listdir(gallery / "versions")) == ["000001", "000003"]


def test_ids_of_a_version_that_was_left_are_not_given_again_even_where_it_is_damaged(gallery: Path) -> None:
    flip_alone(gallery / "versions" / "000002" / "catalog.sqlite")
    (gallery / "versions" / "000002" / "manifest.json").unlink()
    rollback_gallery(gallery)
    update_gallery(gallery, config=SMALL)
    assert {row.id for row in rows(gallery) if row.path.startswith("late")} == {19, 20, 21}


def test_a_version_that_is_not_sound_is_passed_over(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    gallery = tmp_path / "g"
    build(image_folder, gallery, tiny_model)
    held = Gallery.open(gallery)  # a version that somebody reads is not removed
    for number in range(2):
        draw_image((200, 9, 200), seed=number).save(image_folder / f"late{number}.png")
        update_gallery(gallery, config=SMALL)
    flip_alone(gallery / "versions" / "000002" / "catalog.sqlite")
    report = rollback_gallery(gallery)
    assert (report.action, report.version, held.version) == ("back from version 000003", "000001", "000001")
    assert report.damaged == [
        f"{gallery}/versions/000002/catalog.sqlite: damaged: its SHA-256 is not the one in the manifest"
    ]


def test_nothing_is_changed_where_no_version_before_is_sound(gallery: Path) -> None:
    flip_alone(gallery / "versions" / "000001" / "ids" / "00000.npy")
    with pytest.raises(
        GalleryError, match=r"current one is whole \(.*ids/00000\.npy: damaged.*\); repair the gallery with `"
    ):
        rollback_gallery(gallery)
    assert find_version(gallery).name == "000002"
    assert verify_gallery(gallery).problems == []


def test_unfinished_work_and_what_was_about_to_be_published_do_not_undo_it(gallery: Path, image_folder: Path) -> None:
    draw_image((1, 9, 200), seed=7).save(image_folder / "last.png")
    with stopped_at("versions.versions.set_current"):
        update_gallery(gallery, config=SMALL)
    assert rollback_gallery(gallery).version == "000001"
    (image_folder / "last.png").unlink()
    for number in range(3):
        (image_folder / f"late{number}.png").unlink()
    report = update_gallery(gallery, config=SMALL)
    assert (report.version, report.changed, report.indexed) == ("000001", False, 15)


@pytest.mark.parametrize("name", ["CURRENT", "versions/000002/manifest.json"])
def test_a_gallery_that_cannot_be_opened_goes_back_too(gallery: Path, name: str) -> None:
    flip_alone(gallery / name)
    with pytest.raises(GalleryError, match="`retrieval index rollback`"):
        Gallery.open(gallery)
    assert rollback_gallery(gallery, to="1").version == "000001"
    assert verify_gallery(gallery).problems == []
