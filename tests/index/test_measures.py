"""Measures of an image, against plain float64 computations; size and JPEG quality against what files were made of."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from index.images.decode import find_original
from index.images.image_files import decode_image
from index.measures import MEASURES, Measures, measure_image
from tests.index.hostile import PHOTO, encode, with_orientation


def measure(grey: np.ndarray) -> Measures:
    image = Image.fromarray(grey).convert("RGB")
    return measure_image(image, width=7, height=9, jpeg_quality=0)


def find_sharpness(grey: np.ndarray) -> float | None:
    height, width = grey.shape
    values = [
        float(grey[y - 1, x]) + grey[y + 1, x] + grey[y, x - 1] + grey[y, x + 1] - 4.0 * grey[y, x]
        for y in range(1, height - 1, 2)
        for x in range(1, width - 1)
    ]
    return float(np.var(values)) if values else None


def find_border(grey: np.ndarray) -> float:
    """By peeling off uniform rows, then uniform columns, one by one."""
    inner = grey.astype(np.float64)
    for _ in range(2):
        while len(inner) and np.ptp(inner[0]) <= 16:
            inner = inner[1:]
        while len(inner) and np.ptp(inner[-1]) <= 16:
            inner = inner[:-1]
        if not inner.size:
            return 1.0
        inner = inner.T
    return 1 - inner.size / grey.size


levels = st.integers(0, 255) | st.sampled_from([0, 16, 17, 255])


@given(arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=levels))
def test_measures_are_those_of_a_plain_computation(grey: np.ndarray) -> None:
    found, values = measure(grey), grey.astype(np.float64) / 255
    assert (found.width, found.height, found.jpeg_quality) == (7, 9, None)
    assert found.sharpness == pytest.approx(find_sharpness(grey), abs=0.006)
    assert found.brightness == pytest.approx(values.mean(), abs=6e-5)
    assert found.contrast == pytest.approx(values.std(), abs=6e-5)
    assert found.border == pytest.approx(find_border(grey), abs=6e-5)
    assert Measures.from_numbers(found.to_numbers()) == found
    assert Measures.from_numbers([math.nan] * len(MEASURES)) == Measures()


def test_a_large_image_is_measured_by_every_nth_row_and_column() -> None:
    small = np.random.default_rng(0).integers(0, 255, (200, 300), dtype=np.uint8)
    large = small.repeat(3, axis=0).repeat(3, axis=1)
    assert measure(large) == measure(small)


def test_jpeg_quality_is_read_from_the_tables_of_the_file() -> None:
    for quality in (1, 5, 20, 49, 50, 75, 90, 95, 100):
        for options in ({}, {"progressive": True}):
            image = decode_image(encode(PHOTO, "JPEG", quality=quality, **options), name="x", target_side=8)
            assert find_original(image)[2] == pytest.approx(quality, abs=1), quality
    assert find_original(decode_image(encode(PHOTO, "PNG"), name="x", target_side=8))[2] == 0


def test_the_size_is_that_of_the_upright_image_in_its_file() -> None:
    data = encode(PHOTO, "TIFF"), encode(PHOTO, "JPEG"), with_orientation(PHOTO, 3)
    for one in data:  # TIFF is decoded in another process
        assert find_original(decode_image(one, name="x", target_side=1))[:2] == PHOTO.size
    turned = decode_image(with_orientation(PHOTO, 6), name="x", target_side=1)
    assert find_original(turned)[:2] == PHOTO.size[::-1]
