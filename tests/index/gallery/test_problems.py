"""Image problems: thresholds from a gallery's own images, the filters that they are, and placeholders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.gallery.problems import choose_threshold, find_problems
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build

PICTURE = draw_image((230, 230, 230), seed=77, size=(120, 90))


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Drawn photos of three labels, one of them blurred, one dark, one a strip, and one picture in every label."""
    folder = tmp_path_factory.mktemp("problems")
    images = draw_folder(folder / "images", per_class=20)
    for number, label in enumerate(sorted(path.name for path in images.iterdir())):
        draw_image((90, 90, 90), seed=number, size=(120, 90)).save(images / label / "photo.png")
        PICTURE.save(images / label / "placeholder.png")
    photo = draw_image((90, 90, 90), seed=5, size=(120, 90))
    photo.filter(ImageFilter.GaussianBlur(6)).save(images / label / "blurred.png")
    photo.point(lambda level: level // 12).save(images / label / "dark.png")
    photo.resize((300, 30)).save(images / label / "line.png")
    build(images, folder / "gallery", tiny_model)
    return Gallery.open(folder / "gallery")


def test_every_problem_is_a_filter_that_keeps_as_many_images_as_it_says(gallery: Gallery) -> None:
    problems = {problem.kind: problem for problem in find_problems(gallery)}
    assert "heavy_compression" in problems  # some of the drawn images are JPEG files
    paths = {}
    with gallery.catalog() as catalog:
        for kind, problem in problems.items():
            rows = list(catalog.rows(status="indexed", where=parse_filter(problem.where)))
            paths[kind] = {Path(row.path).stem for row in rows}
            assert len(rows) == problem.count, kind
            if problem.edges:
                assert len(problem.edges) == len(problem.counts) + 1
                assert problem.edges == tuple(sorted(problem.edges))
    assert sum(problems["blurred"].counts) == gallery.count
    assert "blurred" in paths["blurred"]
    assert paths["dark"] == {"dark"}
    assert paths["odd_aspect"] == {"line"}
    assert (paths["placeholder"], problems["placeholder"].count) == ({"placeholder"}, 3)


def test_placeholders_beyond_the_filters_room_are_counted(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.gallery.problems._MOST_HASHES", 0)
    [placeholder] = [problem for problem in find_problems(gallery) if problem.kind == "placeholder"]
    assert (placeholder.count, placeholder.left_out, placeholder.where) == (0, 3, "phash IS NULL")


def test_a_threshold_lies_beyond_nearly_all_of_a_clean_collection_and_within_its_limits() -> None:
    normal = np.random.default_rng(0).normal(10, 1, 10_000)
    for above in (False, True):
        chosen = choose_threshold(normal, above=above, limits=(0, 100), spread=0.1, in_log=False)
        assert np.count_nonzero(normal > chosen if above else normal < chosen) < 10
        assert chosen == pytest.approx(10 + (3.5 if above else -3.5), abs=0.2)
    assert choose_threshold(normal, above=False, limits=(1, 4), spread=0.1, in_log=False) == 4
    assert choose_threshold(normal, above=True, limits=(20, 30), spread=0.1, in_log=False) == 20
    same = np.full(50, 8.0)
    chosen = choose_threshold(same, above=False, limits=(1, 100), spread=0.1, in_log=True)
    assert chosen == pytest.approx(8 * np.exp(-0.35), abs=0.01)


def test_an_image_of_two_pixels_has_the_problems_that_can_be_known(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (2, 1)).save(tmp_path / "images" / "one.png")  # so small that it has no sharpness
    build(tmp_path / "images", tmp_path / "g", tiny_model)
    problems = {problem.kind: problem.count for problem in find_problems(Gallery.open(tmp_path / "g"))}
    assert problems == {
        "dark": 1,
        "bright": 0,
        "low_information": 1,
        "tiny": 1,
        "odd_aspect": 0,
        "border": 1,
        "placeholder": 0,
    }
