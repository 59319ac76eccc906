"""The feature store and the pass that fills it: keyed by content, whole or absent, computed once."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from index.durable import hash_file
from index.errors import InputError
from index.images.image_files import read_image
from index.images.preprocess import PreprocessConfig, preprocess_image
from tests.index.costly import png_of_exif_tags
from tests.training.conftest import BACKBONE
from training.backbone.backbones import Backbone, load_backbone
from training.backbone.extract import (
    BATCH_IMAGES,
    CachedSource,
    ExtractedSet,
    Extractor,
    FeatureStore,
    LiveSource,
    extract_features,
    open_store,
)
from training.data.transforms import fixed_views, random_view

SMALL = PreprocessConfig(resize=40, crop=32)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone(BACKBONE, "none")


@pytest.fixture(scope="module")
def extractor(backbone: Backbone) -> Extractor:
    return Extractor(backbone, SMALL, device=torch.device("cpu"), precision="float32")


def _list(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def _extract(paths: list[Path], cache: Path, extractor: Extractor, *, views: int = 1) -> ExtractedSet:
    store = open_store(cache, extractor, views=views)
    return extract_features(paths, store=store, extractor=extractor, views=views, workers=2)


def test_a_second_pass_computes_nothing_wherever_the_images_lie_now(pictures, tmp_path, extractor) -> None:
    paths = _list(pictures)
    first = _extract(paths, tmp_path / "cache", extractor)
    shutil.copytree(pictures, tmp_path / "moved")
    renamed = [path.rename(path.with_name(f"x-{path.name}")) for path in _list(tmp_path / "moved")]
    again = _extract(renamed, tmp_path / "cache", extractor)
    assert (first.computed, again.computed) == (len(paths), 0)
    assert again.hashes == first.hashes


def test_the_features_of_an_image_do_not_depend_on_what_else_is_new(pictures, tmp_path, extractor) -> None:
    paths = _list(pictures)
    together = _extract(paths, tmp_path / "together", extractor)
    parts = [_extract(part, tmp_path / "apart", extractor) for part in (paths[:1], paths[:7], paths)]
    assert [part.computed for part in parts] == [1, 6, len(paths) - 7]
    stores = [open_store(tmp_path / name, extractor, views=1) for name in ("together", "apart")]
    assert np.array_equal(*(store.load(together.hashes) for store in stores))


def test_an_interrupted_pass_keeps_every_batch_done(pictures, tmp_path, extractor) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == BATCH_IMAGES + 3:
            raise KeyboardInterrupt

    paths = _list(pictures)
    store = open_store(tmp_path, extractor, views=1)
    with pytest.raises(KeyboardInterrupt):
        extract_features(paths, store=store, extractor=extractor, views=1, workers=1, progress=interrupt)
    assert _extract(paths, tmp_path, extractor).computed == len(paths) - BATCH_IMAGES


def test_features_come_back_in_the_order_asked_for_those_of_the_same_content_computed_once(
    pictures, tmp_path, extractor
) -> None:
    paths = _list(pictures)
    count = len(paths)
    assert count > BATCH_IMAGES, "the second time may come in another batch"
    extracted = _extract([*paths, *paths], tmp_path, extractor)
    assert extracted.computed == count
    assert extracted.rows.tolist() == list(range(2 * count))
    store = open_store(tmp_path, extractor, views=1)
    features = store.load(extracted.hashes)
    assert np.array_equal(features[:count], features[count:])
    for row in (0, 17, BATCH_IMAGES, count - 1):
        pixels = preprocess_image(read_image(paths[row], target_side=SMALL.resize), SMALL)
        expected = extractor.extract(pixels[None]).numpy()
        np.testing.assert_allclose(store.load([extracted.hashes[row]])[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_the_store_depends_on_weights_transform_views_and_precision(backbone, tmp_path, extractor) -> None:
    cpu = torch.device("cpu")
    other_weights = load_backbone(BACKBONE, "none", seed=1)
    others = {
        "weights": Extractor(other_weights, SMALL, device=cpu, precision="float32"),
        "precision": Extractor(backbone, SMALL, device=cpu, precision="bfloat16"),
    }
    folders = {name: open_store(tmp_path, other, views=1).folder for name, other in others.items()}
    folders |= {f"{views} views": open_store(tmp_path, extractor, views=views).folder for views in (1, 2)}
    for change in ({"crop": 24}, {"resize": 48}, {"interpolation": "bicubic"}, {"std": (0.5, 0.5, 0.5)}):
        preprocess = dataclasses.replace(SMALL, **change)
        changed = Extractor(backbone, preprocess, device=cpu, precision="float32")
        folders[str(change)] = open_store(tmp_path, changed, views=1).folder
    assert len(set(folders.values())) == len(folders)
    twin = Extractor(load_backbone(BACKBONE, "none"), SMALL, device=cpu, precision="float32")
    assert open_store(tmp_path, twin, views=1).folder == folders["1 views"]


def test_vectors_without_their_listing_are_ignored_and_computed_again(pictures, tmp_path, extractor) -> None:
    paths = _list(pictures)[:6]
    _extract(paths, tmp_path, extractor)
    folder = open_store(tmp_path, extractor, views=1).folder
    (listing,) = folder.glob("*.json")
    listing.unlink()  # a writer that was killed between its two files
    (folder / "half.tmp").write_bytes(b"\x93NUMPY")
    assert _extract(paths, tmp_path, extractor).computed == 6


def test_two_writers_share_a_store(tmp_path: Path) -> None:
    first, second = (FeatureStore(tmp_path, description={}) for _ in range(2))
    one, two = (np.full((1, 1, 2), value, dtype=np.float32) for value in (1, 2))
    first.add(["a"], one)
    second.add(["b"], two)
    third = FeatureStore(tmp_path, description={})
    assert np.array_equal(third.load(["b", "a", "b"]), np.concatenate([two, one, two]))
    assert "c" not in third


def test_files_that_are_no_images_are_recorded_and_passed_over(pictures, tmp_path, extractor) -> None:
    good = _list(pictures)[:2]
    for name, content in (("empty.jpg", b""), ("text.jpg", b"hello"), ("torn.jpg", good[0].read_bytes()[:300])):
        (tmp_path / name).write_bytes(content)
    paths = [good[0], tmp_path / "empty.jpg", tmp_path / "text.jpg", good[1], tmp_path / "torn.jpg"]
    (tmp_path / "costly.png").write_bytes(png_of_exif_tags(25_000, 1_000_000))
    paths += [tmp_path / "gone.jpg", tmp_path / "costly.png"]
    extracted = _extract(paths, tmp_path / "cache", extractor)
    assert extracted.rows.tolist() == [0, 3]
    assert [(skipped.path.name, skipped.reason) for skipped in extracted.skipped] == [
        ("empty.jpg", "empty-file"), ("text.jpg", "not-an-image"), ("torn.jpg", "corrupt"),
        ("gone.jpg", "unreadable"), ("costly.png", "too-costly"),
    ]  # fmt: skip


def test_a_cache_that_cannot_be_written_is_refused_with_the_flag(tmp_path, extractor) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"choose another --cache"):
        open_store(tmp_path / "file" / "cache", extractor, views=1)


def test_view_zero_is_the_serving_view_and_others_depend_on_the_content_alone(pictures) -> None:
    path = _list(pictures)[0]
    image, sha256 = read_image(path, target_side=SMALL.resize), hash_file(path)
    views, again = (fixed_views(image, SMALL, count=6, sha256=sha256) for _ in range(2))
    assert views.shape == (6, 32, 32, 3)
    assert np.array_equal(views[0], preprocess_image(image, SMALL))
    assert len({view.tobytes() for view in views}) > 3
    assert np.array_equal(views, again)
    assert np.array_equal(views[:3], fixed_views(image, SMALL, count=3, sha256=sha256))
    assert not np.array_equal(views[1:], fixed_views(image, SMALL, count=6, sha256="0" * 64)[1:])


def test_a_random_view_is_a_window_of_the_resized_image_mirrored_half_of_the_time() -> None:
    grid = np.zeros((40, 40, 3), dtype=np.uint8)
    grid[..., 0] = np.arange(40)[:, None]
    grid[..., 1] = np.arange(40)[None, :]
    image, generator = Image.fromarray(grid), np.random.default_rng(0)
    corners, mirrored = set(), 0
    for _ in range(400):
        view = random_view(image, SMALL, generator=generator)
        assert view.shape == (32, 32, 3)
        flipped = view[0, 0, 1] > view[0, -1, 1]
        mirrored += flipped
        upright = view[:, ::-1] if flipped else view
        top, left = int(upright[0, 0, 0]), int(upright[0, 0, 1])
        corners.add((top, left))
        assert np.array_equal(upright, grid[top : top + 32, left : left + 32])
    assert {top for top, _ in corners} == set(range(9)), "every row offset, the last included"
    assert {left for _, left in corners} == set(range(9))
    assert 150 < mirrored < 250


def test_a_cached_source_draws_views_by_its_generator() -> None:
    views = torch.arange(5 * 3 * 2, dtype=torch.float32).reshape(5, 3, 2)
    source, rows = CachedSource(views), torch.tensor([4, 0, 4, 2])
    assert torch.equal(source.centre, views[:, 0])
    drawn = source.batch(rows, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn, source.batch(rows, generator=torch.Generator().manual_seed(0)))
    assert all(any(torch.equal(drawn[i], view) for view in views[row]) for i, row in enumerate(rows.tolist()))
    seen = {tuple(source.batch(torch.tensor([1]), generator=torch.Generator().manual_seed(s))[0].tolist())
            for s in range(30)}  # fmt: skip
    assert len(seen) == 3


def test_a_live_source_draws_new_views_that_depend_on_its_generator_and_not_on_threads(pictures, extractor) -> None:
    paths = _list(pictures)[:6]
    sources = [
        LiveSource(paths, centre=torch.zeros(6, 512), extractor=extractor, workers=workers) for workers in (1, 4)
    ]
    rows = torch.tensor([5, 2, 0, 2])
    first, second = (source.batch(rows, generator=torch.Generator().manual_seed(3)) for source in sources)
    assert torch.equal(first, second)
    assert not torch.equal(first[1], first[3]), "the same image twice in a batch gets two views"
    other = sources[0].batch(rows, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(first, other)
    torch.nn.Linear(512, 1)(first).sum().backward()  # usable in a training step


def test_bfloat16_features_are_float32_numbers_close_to_the_float32_ones(pictures, backbone, extractor) -> None:
    images = [read_image(path, target_side=SMALL.resize) for path in _list(pictures)[:4]]
    pixels = np.stack([preprocess_image(image, SMALL) for image in images])
    low = Extractor(backbone, SMALL, device=torch.device("cpu"), precision="bfloat16").extract(pixels)
    assert low.dtype == torch.float32
    cosines = torch.nn.functional.cosine_similarity(low, extractor.extract(pixels))
    assert cosines.min() > 0.999
    assert not torch.equal(low, extractor.extract(pixels))
