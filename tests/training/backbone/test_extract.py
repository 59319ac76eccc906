"""The feature store and the pass that fills it: keyed by content, whole or absent, computed once."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from index.durable import hash_file
from index.errors import InputError
from index.images.image_files import read_image
from index.images.preprocess import PreprocessConfig, preprocess_image
from tests.index.costly import png_of_exif_tags
from tests.training.conftest import BACKBONE
from training.backbone.backbones import Backbone, load_backbone
from training.backbone.extract import BATCH_IMAGES, ExtractedSet, Extractor, FeatureStore, extract_features, open_store
from training.data.transforms import edited_views

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
    stores = [open_store(tmp_path / name, extractor) for name in ("together", "apart")]
    assert np.array_equal(*(store.load(together.hashes) for store in stores))


def test_an_interrupted_pass_keeps_every_batch_done(pictures, tmp_path, extractor) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == BATCH_IMAGES + 3:
            raise KeyboardInterrupt

    paths = _list(pictures)
    store = open_store(tmp_path, extractor)
    with pytest.raises(KeyboardInterrupt):
        extract_features(paths, store=store, extractor=extractor, workers=1, progress=interrupt)
    assert _extract(paths, tmp_path, extractor).computed == len(paths) - BATCH_IMAGES


def test_features_come_in_the_order_asked_for_those_of_equal_content_once(pictures, tmp_path, extractor) -> None:
    paths = _list(pictures)
    count = len(paths)
    assert count > BATCH_IMAGES, "the second time may come in another batch"
    extracted = _extract([*paths, *paths], tmp_path, extractor)
    assert extracted.computed == count
    assert extracted.rows.tolist() == list(range(2 * count))
    store = open_store(tmp_path, extractor)
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
    folders = {name: open_store(tmp_path, other).folder for name, other in others.items()}
    folders |= {f"{views} views": open_store(tmp_path, extractor, views=views).folder for views in (1, 2)}
    for change in ({"crop": 24}, {"resize": 48}, {"interpolation": "bicubic"}, {"std": (0.5, 0.5, 0.5)}):
        preprocess = dataclasses.replace(SMALL, **change)
        changed = Extractor(backbone, preprocess, device=cpu, precision="float32")
        folders[str(change)] = open_store(tmp_path, changed).folder
    assert len(set(folders.values())) == len(folders)
    twin = Extractor(load_backbone(BACKBONE, "none"), SMALL, device=cpu, precision="float32")
    assert open_store(tmp_path, twin).folder == folders["1 views"]


def test_vectors_without_their_listing_are_ignored_and_computed_again(pictures, tmp_path, extractor) -> None:
    paths = _list(pictures)[:6]
    _extract(paths, tmp_path, extractor)
    folder = open_store(tmp_path, extractor).folder
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
    assert [(path.name, problem.reason) for path, problem in extracted.skipped] == [
        *(("empty.jpg", "empty-file"), ("text.jpg", "not-an-image"), ("torn.jpg", "corrupt")),
        *(("gone.jpg", "unreadable"), ("costly.png", "too-costly")),
    ]


def test_a_cache_that_cannot_be_written_is_refused_with_the_flag(tmp_path, extractor) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"choose another --cache"):
        open_store(tmp_path / "file" / "cache", extractor)


def test_view_zero_is_the_serving_view_and_others_depend_on_the_content_alone(pictures) -> None:
    path = _list(pictures)[0]
    image, sha256 = read_image(path, target_side=SMALL.resize), hash_file(path)
    views, again = (edited_views(image, SMALL, count=6, sha256=sha256) for _ in range(2))
    assert views.shape == (6, 32, 32, 3)
    assert np.array_equal(views[0], preprocess_image(image, SMALL))
    assert len({view.tobytes() for view in views}) > 3
    assert np.array_equal(views, again)
    assert np.array_equal(views[:3], edited_views(image, SMALL, count=3, sha256=sha256))
    assert not np.array_equal(views[1:], edited_views(image, SMALL, count=6, sha256="0" * 64)[1:])


def test_bfloat16_features_are_float32_numbers_close_to_the_float32_ones(pictures, backbone, extractor) -> None:
    images = [read_image(path, target_side=SMALL.resize) for path in _list(pictures)[:4]]
    pixels = np.stack([preprocess_image(image, SMALL) for image in images])
    low = Extractor(backbone, SMALL, device=torch.device("cpu"), precision="bfloat16").extract(pixels)
    assert low.dtype == torch.float32
    cosines = torch.nn.functional.cosine_similarity(low, extractor.extract(pixels))
    assert cosines.min() > 0.999
    assert not torch.equal(low, extractor.extract(pixels))


def test_convolutions_of_an_extractor_in_bfloat16_are_found_by_its_first_features() -> None:
    small = Extractor(load_backbone("mobilenet_v2", "none"), SMALL, device=torch.device("cpu"), precision="bfloat16")
    small.extract(np.zeros((2, SMALL.crop, SMALL.crop, 3), dtype=np.uint8))
    assert sum(each.norm is not None for each in small.convolutions) == 52, "by passes in float32"
