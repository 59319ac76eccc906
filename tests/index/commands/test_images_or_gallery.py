"""From a folder of images to a search by one command: the gallery is made beside it, once, and is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image, ImageEnhance

from index.commands.images_or_gallery import settle_gallery
from index.commands.index_group import index_group
from index.commands.search_command import search
from index.errors import GalleryError, InputError
from index.gallery.gallery import Gallery
from index.model.in_the_box import BOX
from tests.conftest import draw_folder
from tests.photos import KINDS, write_photos


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return draw_folder(tmp_path / "photos")


def invoke(*words: object) -> Result:
    return CliRunner().invoke(search, [str(word) for word in words], catch_exceptions=False)


def test_a_folder_is_searched_by_one_command(photos: Path) -> None:
    result = invoke("photos", photos / "red" / "2.jpg", "--json")
    assert json.loads(result.stdout)["results"][0]["path"] == "red/2.jpg"
    assert "photos has no gallery yet: photos-gallery is made" in result.stderr
    assert Gallery.open(photos.with_name("photos-gallery")).count == 15


def test_the_second_search_answers_at_once_and_says_how_to_take_in_what_changed(photos: Path) -> None:
    invoke("photos", photos / "red" / "2.jpg")
    result = invoke("photos", photos / "red" / "2.jpg")
    assert "after changes: retrieval index update photos-gallery" in result.stderr
    assert [path.name for path in Path("photos-gallery/versions").iterdir()] == ["000001"]


def test_the_very_picture_is_found_by_the_model_that_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_photos(Path("photos"), kinds=KINDS[:3], pictures_per_kind=8, seed=0)
    photo = Image.open("photos/shoes/shoes-002.jpg")
    ImageEnhance.Brightness(photo.resize((150, 120))).enhance(1.2).save("query.png")
    found = json.loads(invoke("photos", "query.png", "--by", "picture", "--json").stdout)["results"]
    assert found[0]["path"] == "shoes/shoes-002.jpg"


def test_an_archive_or_a_list_has_its_gallery_beside_it_too(photos: Path) -> None:
    Path("all.txt").write_text("".join(f"{path}\n" for path in sorted(photos.glob("*/*"))))
    assert settle_gallery(Path("all.txt")) == Path.cwd() / "all-gallery"


def test_what_is_a_gallery_or_nothing_or_one_image_is_left_to_the_command(photos: Path) -> None:
    (empty := Path("empty")).mkdir()
    gallery = settle_gallery(photos)
    for given in (gallery, empty, Path("missing"), photos / "red" / "2.jpg"):
        assert settle_gallery(given) == given


def test_links_to_images_and_to_what_they_lie_in_lead_to_one_gallery(photos: Path) -> None:
    Path("link").symlink_to(photos)
    Path("parent").symlink_to(photos.parent)
    for given in ("link", "parent/photos"):
        first, second = settle_gallery(Path(given)), settle_gallery(Path(given))
        assert first == second
        assert Gallery.open(first).count == 15


def test_a_query_that_is_not_there_is_told_before_anything_is_made(photos: Path) -> None:
    result = CliRunner().invoke(search, ["photos", "tpyo.jpg"])
    assert isinstance(result.exception, InputError)
    assert "tpyo.jpg" in str(result.exception)
    assert not Path("photos-gallery").exists()


def test_the_folder_of_a_training_is_no_folder_of_images(photos: Path) -> None:
    (photos / "config.json").write_text('{"run_id": "1"}')
    with pytest.raises(InputError, match="photos: a training, not images: export it first"):
        settle_gallery(photos)


def test_where_no_gallery_can_be_made_it_is_told_how_to_make_it_elsewhere(photos: Path) -> None:
    Path("photos-gallery").mkdir()
    Path("photos-gallery", "letters.txt").write_text("dear")
    with pytest.raises(
        GalleryError, match=r"or make it elsewhere, `retrieval index build .*photos --out GALLERY`"
    ):
        settle_gallery(photos)
    with pytest.raises(InputError, match=r"say where the gallery of it shall be; .*; make it elsewhere"):
        settle_gallery(Path("/"))


def test_a_build_that_names_no_model_keeps_that_of_the_gallery(photos: Path, tiny_model: Path) -> None:
    for words in (["build", str(tiny_model), "photos"], ["build", "photos"]):
        assert CliRunner().invoke(index_group, words, catch_exceptions=False).exit_code == 0
    assert Path("photos-gallery/versions/000001/model.onnx").read_bytes() == tiny_model.read_bytes()


def test_a_model_of_any_name_is_known_and_comes_first(photos: Path, tiny_model: Path) -> None:
    Path("model").write_bytes(tiny_model.read_bytes())
    assert CliRunner().invoke(index_group, ["build", "model", "photos"], catch_exceptions=False).exit_code == 0
    wrong = CliRunner().invoke(index_group, ["build", "photos", "model", "--out", "g"])
    assert wrong.exit_code == 2
    assert "model is a model: MODEL comes first" in wrong.stderr


def test_a_gallery_of_other_images_is_not_taken_for_theirs(photos: Path) -> None:
    draw_folder(Path("others"))
    settle_gallery(Path("others")).rename("photos-gallery")
    with pytest.raises(GalleryError, match="photos-gallery: a gallery, but not of photos; name it to search it"):
        settle_gallery(Path("photos"))


def test_a_folder_without_images_makes_no_gallery(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.txt").write_text("words")
    with pytest.raises(InputError, match="papers-gallery: no usable image in its sources"):
        settle_gallery(tmp_path / "papers")
    assert not (tmp_path / "papers-gallery").exists()


def test_a_build_needs_neither_a_model_nor_a_place(photos: Path) -> None:
    result = CliRunner().invoke(index_group, ["build", "photos"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "photos-gallery: built version 000001, 15 images" in result.stdout
    assert Path("photos-gallery/versions/000001/model.onnx").read_bytes() == BOX.read_bytes()


def test_a_model_without_images_is_a_mistake_in_the_call() -> None:
    result = CliRunner().invoke(index_group, ["build", "model.onnx", "--out", "g"])
    assert result.exit_code == 2
    assert "Missing argument 'SOURCE...'" in result.stderr


def test_a_pattern_has_no_place_of_its_own(photos: Path) -> None:
    result = CliRunner().invoke(index_group, ["build", "photos/*/*.jpg"])
    assert isinstance(result.exception, InputError)
    assert "photos/*/*.jpg: say where the gallery of it shall be" in str(result.exception)
