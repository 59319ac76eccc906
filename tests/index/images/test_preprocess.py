import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

from index.errors import InputError
from index.images.image_files import decode_image
from index.images.preprocess import (
    INTERPOLATIONS,
    Pixels,
    PreprocessConfig,
    crop_pixels,
    preprocess_image,
    resize_image,
)
from tests.conftest import tries
from tests.index.hostile import encode

configs = st.builds(
    lambda sides, interpolation, mean, std: PreprocessConfig(max(sides), min(sides), interpolation, mean, std),
    st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    st.sampled_from(sorted(INTERPOLATIONS)),
    st.tuples(*[st.floats(-1, 2)] * 3),
    st.tuples(*[st.floats(0.001, 10)] * 3),
)


@given(configs)
def test_a_config_survives_json(config: PreprocessConfig) -> None:
    assert PreprocessConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"resize": 5000}, "preprocess.resize"),
        ({"crop": True}, "preprocess.crop"),
        ({"crop": 300}, r"crop \(300\) must not exceed preprocess.resize \(256\)"),
        ({"interpolation": "nearest"}, "preprocess.interpolation must be one of bicubic, bilinear, lanczos"),
        ({"mean": (0.5, 0.5)}, "preprocess.mean"),
        ({"std": (0.1, 0.0, 0.1)}, "preprocess.std must be positive"),
    ],
)
def test_a_value_out_of_range_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        PreprocessConfig(**change)


def test_json_with_a_wrong_key_or_type_is_refused() -> None:
    for change in ({"extra": 1}, {"mean": 0.5}):
        with pytest.raises(InputError, match="preprocess"):
            PreprocessConfig.from_json({**PreprocessConfig().to_json(), **change})
    with pytest.raises(InputError, match="exactly the keys"):
        PreprocessConfig.from_json({"resize": 256})


def test_an_image_is_stretched_to_the_square_and_its_centre_taken() -> None:
    config = PreprocessConfig(resize=40, crop=20)
    image = Image.new("RGB", (400, 100), "red")
    image.paste("blue", (100, 25, 300, 75))  # the middle half both ways, so exactly the crop
    pixels = preprocess_image(image, config)
    assert pixels.shape == (20, 20, 3)
    assert pixels.dtype == np.uint8
    assert (pixels[2:-2, 2:-2] == (0, 0, 255)).all()
    assert np.array_equal(pixels, crop_pixels(resize_image(image, config), top=10, left=10, size=20))


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((64, 64, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    pixels = preprocess_image(Image.fromarray(stripes), PreprocessConfig(resize=8, crop=8))
    assert (np.abs(pixels.astype(int) - 127) < 16).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1)])
def test_the_smallest_and_thinnest_images_fill_the_input(size: tuple[int, int]) -> None:
    pixels = preprocess_image(Image.new("RGB", size, (9, 99, 199)), PreprocessConfig(resize=32, crop=28))
    assert (pixels == (9, 99, 199)).all()


def resize_all(image: Image.Image, config: PreprocessConfig) -> Pixels:
    """The reference: the whole image resized, its centre taken."""
    margin = (config.resize - config.crop) // 2
    return crop_pixels(resize_image(image, config), top=margin, left=margin, size=config.crop)


sides = st.one_of(st.integers(1, 40), st.integers(41, 700), st.sampled_from([64, 128, 256]))


@pytest.mark.deep
@settings(max_examples=tries(60, deep=1000), deadline=None)
@given(
    size=st.tuples(sides, sides),
    resize=st.one_of(st.sampled_from([2, 16, 64, 128, 256]), st.integers(2, 256)),
    share=st.floats(0, 1),
    interpolation=st.sampled_from(sorted(INTERPOLATIONS)),
    seed=st.integers(0, 99),
)
def test_the_centre_has_to_the_last_bit_the_pixels_of_the_whole_image_resized(
    size: tuple[int, int], resize: int, share: float, interpolation: str, seed: int
) -> None:
    config = PreprocessConfig(resize, max(1, round(share * resize)), interpolation)
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(values)
    assert np.array_equal(preprocess_image(image, config), resize_all(image, config))


@pytest.mark.parametrize("size", [(2, 256), (1, 60_000), (60_000, 1), (256, 7), (70_000, 3)])
def test_strips_too_have_the_pixels_of_the_whole_image_resized(size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(values)
    for interpolation in INTERPOLATIONS:
        config = PreprocessConfig(interpolation=interpolation)
        assert np.array_equal(preprocess_image(image, config), resize_all(image, config))


def draw_scene(size: tuple[int, int]) -> Image.Image:
    """Soft shapes, hard edges and noise."""
    random, (width, height) = np.random.default_rng(1), size
    shapes = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize(size)
    pixels = np.asarray(shapes) + random.normal(0, 12, (height, width, 1))
    pixels[height // 3 : height // 2] += 60
    pixels[:, width - width // 5 : width - width // 9] -= 80
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize(("size", "kind"), [((1024, 768), "JPEG"), ((777, 1033), "JPEG"), ((777, 1033), "PNG")])
def test_an_image_decoded_smaller_is_within_a_pixel_of_the_full_one(size: tuple[int, int], kind: str) -> None:
    scene = draw_scene(size)
    data = encode(scene, kind, **({"quality": 90} if kind == "JPEG" else {"compress_level": 1}))
    for side in (32, 128):
        config = PreprocessConfig(resize=side, crop=side)
        with Image.open(io.BytesIO(data)) as opened:
            full = resize_all(opened.convert("RGB"), config).astype(int)
        found = preprocess_image(decode_image(data, name="scene", target_side=side), config).astype(int)
        around = sliding_window_view(np.pad(full, ((1, 1), (1, 1), (0, 0)), mode="edge"), (3, 3), axis=(0, 1))
        assert (found > around.min(axis=(-1, -2)) - 16).all()
        assert (found < around.max(axis=(-1, -2)) + 16).all()
        assert np.abs(found - full).mean() < 6
        if kind == "JPEG" and size == (1024, 768):  # whole blocks, so that nothing is stretched
            assert np.abs(found - full).mean() < 1
            assert np.abs(found - full).max() <= 8
