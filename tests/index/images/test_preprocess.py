from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from index.errors import InputError
from index.images.preprocess import INTERPOLATIONS, PreprocessConfig, crop_pixels, preprocess_image, resize_image

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
        ({"resize": 0}, "preprocess.resize"),
        ({"resize": 5000}, "preprocess.resize"),
        ({"crop": True}, "preprocess.crop"),
        ({"crop": 300}, r"crop \(300\) must not exceed preprocess.resize \(256\)"),
        ({"interpolation": "nearest"}, "preprocess.interpolation must be one of bicubic, bilinear, lanczos"),
        ({"mean": (0.5, 0.5)}, "preprocess.mean"),
        ({"std": (0.1, 0.0, 0.1)}, "preprocess.std must be positive"),
        ({"std": (0.1, float("nan"), 0.1)}, "preprocess.std"),
    ],
)
def test_a_value_out_of_range_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        PreprocessConfig(**change)


@pytest.mark.parametrize("change", [{"extra": 1}, {"mean": 0.5}])
def test_json_with_a_wrong_key_or_type_is_refused(change: dict[str, object]) -> None:
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


def test_an_image_of_the_right_size_is_left_alone() -> None:
    values = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert np.array_equal(preprocess_image(Image.fromarray(values), PreprocessConfig(resize=16, crop=16)), values)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1)])
def test_the_smallest_and_thinnest_images_fill_the_input(size: tuple[int, int]) -> None:
    pixels = preprocess_image(Image.new("RGB", size, (9, 99, 199)), PreprocessConfig(resize=32, crop=28))
    assert (pixels == (9, 99, 199)).all()
