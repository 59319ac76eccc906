from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.errors import InputError
from retrieval_app.demo.drawing.catalogue import KINDS, draw_catalogue, draw_picture, sketch_kind
from retrieval_app.demo.drawing.scene import render_scene
from retrieval_app.demo.drawing.shapes import polygon
from retrieval_app.demo.drawing.sketch import Pen, Role


def _draw_pixels(kind: str, *, seed: int, size: int = 96) -> np.ndarray:
    return np.asarray(draw_picture(kind, rng=np.random.default_rng(seed), size=size)).astype(np.int16)


def _read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_are_sixty_distinct_kinds_named_in_plain_words():
    assert len(KINDS) == len(set(KINDS)) == 60
    assert all(kind.replace("-", "").isalpha() and kind.isascii() and kind == kind.lower() for kind in KINDS)


@pytest.mark.parametrize(
    "family",
    [
        {"mug", "teacup", "jug", "teapot", "bottle", "vase", "wine-glass", "watering-can"},
        {"star", "flower", "sun", "gear", "wheel", "snowflake"},
        {"car", "bus", "truck", "train"},
        {"sailboat", "steamship", "plane", "rocket"},
        {"fish", "whale", "duck", "owl"},
        {"cat", "rabbit"},
        {"leaf", "feather"},
        {"apple", "pear"},
        {"chair", "stool"},
        {"key", "spanner", "hammer", "axe"},
        {"house", "castle", "lighthouse", "windmill"},
    ],
)
def test_an_even_split_puts_half_of_every_family_on_each_side(family: set[str]):
    assert len(family & set(KINDS[0::2])) == len(family & set(KINDS[1::2])) == len(family) / 2


def _draw_empty_scene(*, seed: int) -> np.ndarray:
    """Draw what `render_scene` puts around an object: the object itself is two points in far corners."""
    pen = Pen(np.random.default_rng(0))
    pen.fill(polygon((-1, -1), (-1, -1)), Role.BODY, outlined=False)
    pen.fill(polygon((1, 1), (1, 1)), Role.BODY, outlined=False)
    return np.asarray(render_scene(pen.parts, rng=np.random.default_rng(seed), size=96)).astype(np.int16)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_shows_an_object_that_differs_from_its_background(kind: str):
    for seed in range(3):
        sketch = sketch_kind(kind, np.random.default_rng(seed))
        picture = render_scene(sketch, rng=np.random.default_rng(seed), size=96)
        assert (picture.size, picture.mode) == ((96, 96), "RGB")
        change = np.abs(np.asarray(picture).astype(np.int16) - _draw_empty_scene(seed=seed)).max(axis=2)
        assert 0.04 < (change > 24).mean() < 0.95


def test_the_same_seed_draws_the_same_picture_and_another_seed_another():
    assert np.array_equal(_draw_pixels("owl", seed=3), _draw_pixels("owl", seed=3))
    assert np.abs(_draw_pixels("owl", seed=3) - _draw_pixels("owl", seed=4)).mean() > 5


def test_a_picture_has_the_size_asked_for():
    assert _draw_pixels("key", seed=1, size=64).shape == (64, 64, 3)


def test_an_unknown_kind_is_refused_by_name():
    with pytest.raises(InputError, match=r"'unicorn'.*mug"):
        draw_picture("unicorn", rng=np.random.default_rng(0))


def test_a_catalogue_has_one_folder_per_kind_with_numbered_jpegs(tmp_path: Path):
    reports: list[tuple[int, int]] = []
    draw_catalogue(
        tmp_path / "new" / "catalogue",
        kinds=["mug", "fir-tree"],
        pictures_per_kind=3,
        seed=0,
        progress=lambda done, total: reports.append((done, total)),
    )
    assert sorted(_read_tree(tmp_path / "new" / "catalogue")) == [
        *(f"fir-tree/fir-tree-00{number}.jpg" for number in range(3)),
        *(f"mug/mug-00{number}.jpg" for number in range(3)),
    ]
    with Image.open(tmp_path / "new" / "catalogue" / "mug" / "mug-000.jpg") as picture:
        assert (picture.format, picture.size, picture.mode) == ("JPEG", (96, 96), "RGB")
    assert reports == [(done, 6) for done in range(1, 7)]


def test_a_picture_does_not_depend_on_what_else_is_drawn(tmp_path: Path):
    draw_catalogue(tmp_path / "alone", kinds=["cat"], pictures_per_kind=1, seed=5)
    draw_catalogue(tmp_path / "among", kinds=["star", "cat"], pictures_per_kind=2, seed=5)
    alone, among = _read_tree(tmp_path / "alone"), _read_tree(tmp_path / "among")
    assert among["cat/cat-000.jpg"] == alone["cat/cat-000.jpg"]


def test_pictures_of_a_catalogue_are_all_different_and_change_with_the_seed(tmp_path: Path):
    for seed in (0, 1):
        draw_catalogue(tmp_path / str(seed), kinds=["bus", "truck"], pictures_per_kind=6, seed=seed)
    assert len(set(_read_tree(tmp_path).values())) == 24


def test_a_second_run_keeps_complete_pictures_and_redraws_broken_ones(tmp_path: Path):
    draw_catalogue(tmp_path, kinds=["boot"], pictures_per_kind=3, seed=2)
    first = _read_tree(tmp_path)
    kept, cut, emptied = (tmp_path / "boot" / f"boot-00{number}.jpg" for number in range(3))
    cut.write_bytes(cut.read_bytes()[:-100])
    emptied.write_bytes(b"")
    before = kept.stat().st_mtime_ns
    draw_catalogue(tmp_path, kinds=["boot"], pictures_per_kind=4, seed=2)
    after = _read_tree(tmp_path)
    assert kept.stat().st_mtime_ns == before
    assert {name: after[name] for name in first} == first
    assert len(after) == 4


def test_a_picture_the_user_put_in_place_is_not_overwritten(tmp_path: Path):
    own = tmp_path / "boot" / "boot-000.jpg"
    own.parent.mkdir()
    Image.new("RGB", (8, 8), "red").save(own)
    before = own.read_bytes()
    draw_catalogue(tmp_path, kinds=["boot"], pictures_per_kind=1, seed=2)
    assert own.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    blocker = tmp_path / "catalogue"
    blocker.write_text("a file where the folder should be")
    with pytest.raises(InputError, match="catalogue"):
        draw_catalogue(blocker, kinds=["hat"], pictures_per_kind=1, seed=0)
