"""From a folder of images to a search by one command: the gallery is made beside it, once, and is said."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from index.commands.images_or_gallery import ensure_gallery
from index.commands.index_group import index_group
from index.commands.search_command import search
from index.errors import GalleryError, InputError
from index.gallery.gallery import Gallery
from tests.conftest import draw_folder


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
    result = invoke("photos", photos / "red" / "2.jpg")
    assert "after changes: retrieval index update photos-gallery" in result.stderr
    assert [path.name for path in Path("photos-gallery/versions").iterdir()] == ["000001"]


def test_what_is_a_gallery_or_nothing_or_one_image_is_left_to_the_command(photos: Path) -> None:
    (empty := Path("empty")).mkdir()
    gallery = ensure_gallery(photos)
    for given in (gallery, empty, Path("missing"), photos / "red" / "2.jpg"):
        assert ensure_gallery(given) == given


def test_a_query_that_is_not_there_is_told_before_anything_is_made(photos: Path) -> None:
    result = CliRunner().invoke(search, ["photos", "tpyo.jpg"])
    assert isinstance(result.exception, InputError)
    assert "tpyo.jpg" in str(result.exception)
    assert not Path("photos-gallery").exists()


def test_a_build_that_names_no_model_keeps_that_of_the_gallery(photos: Path, tiny_model: Path) -> None:
    for words in (["build", str(tiny_model), "photos"], ["build", "photos"]):
        assert CliRunner().invoke(index_group, words, catch_exceptions=False).exit_code == 0
    assert Path("photos-gallery/versions/000001/model.onnx").read_bytes() == tiny_model.read_bytes()


def test_a_model_of_any_name_is_known_and_comes_first(photos: Path, tiny_model: Path) -> None:
    Path("model").write_bytes(tiny_model.read_bytes())
    assert CliRunner().invoke(index_group, ["build", "model", "photos"], catch_exceptions=False).exit_code == 0
    wrong = CliRunner().invoke(index_group, ["build", "photos", "model", "--out", "g"])
    assert wrong.exit_code == 2
    assert "model: a model among the SOURCEs" in wrong.stderr


def test_a_gallery_of_other_images_is_not_taken_for_theirs(photos: Path) -> None:
    draw_folder(Path("others"))
    ensure_gallery(Path("others")).rename("photos-gallery")
    with pytest.raises(GalleryError, match="photos-gallery: a gallery of other images than photos; name it"):
        ensure_gallery(Path("photos"))
