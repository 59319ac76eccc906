"""Random windows, as the generator says and nothing else; and the usual views."""

import numpy as np
import pytest
import torch
from PIL import Image

from index.images.preprocess import PreprocessConfig, preprocess_image
from training.network.decoded_images import centre_views, draw_views

WHOLE, SIDE, COUNT = 48, 16, 400
RAMP = np.linspace(0, 230, WHOLE)
# Every pixel of the image says where it is: rows in the first channel, columns in the second.
PLACES = np.stack(np.broadcast_arrays(RAMP[:, None], RAMP[None, :], 0.0), axis=-1).astype(np.uint8)[None]


def _draw(pixels: np.ndarray, *, seed: int = 0, count: int = COUNT, side: int = SIDE) -> np.ndarray:
    rows = torch.zeros(count, dtype=torch.int64)
    return draw_views(pixels, rows, side=side, generator=torch.Generator().manual_seed(seed)).numpy()


def test_views_are_windows_of_all_sizes_and_places_and_half_are_mirrored() -> None:
    views = _draw(PLACES).astype(float)
    assert views.shape == (COUNT, SIDE, SIDE, 3)
    pixel, shown = 230 / (WHOLE - 1), (SIDE - 1) / SIDE  # of the ramp; of a window, between its pixels' middles
    heights = (views[:, -1, 0, 0] - views[:, 0, 0, 0]) / pixel / shown
    widths = (views[:, 0, -1, 1] - views[:, 0, 0, 1]) / pixel / shown
    assert (heights > 0).all()
    assert 0.4 * COUNT < (widths < 0).sum() < 0.6 * COUNT
    np.testing.assert_allclose(heights, abs(widths), atol=1)
    assert (heights.min(), heights.max()) == pytest.approx((0.625 * WHOLE, WHOLE), abs=1.5)
    small = heights < 0.7 * WHOLE
    for places in (views[small, 0, 0, 0], views[small, 0, :, 1].min(axis=1)):
        assert np.ptp(places) > 0.8 * 230 * (1 - 0.7), "windows lie everywhere"


def test_a_view_shows_its_own_image() -> None:
    pixels = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None, None], (40, 9, 9, 3))
    rows = torch.tensor([7, 0, 39, 7])
    views = draw_views(pixels, rows, side=4, generator=torch.Generator().manual_seed(0))
    assert [set(view.flatten().tolist()) for view in views] == [{7}, {0}, {39}, {7}]


def test_the_generator_alone_decides() -> None:
    np.testing.assert_array_equal(_draw(PLACES), _draw(PLACES))
    assert (_draw(PLACES) != _draw(PLACES, seed=1)).any()


def test_centre_views_are_those_that_features_are_made_of() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(3, 9, 9, 3), dtype=np.uint8)
    sizes = PreprocessConfig(resize=9, crop=6)
    expected = np.stack([preprocess_image(Image.fromarray(images[row]), sizes) for row in (2, 0)])
    np.testing.assert_array_equal(centre_views(images, torch.tensor([2, 0]), crop=6), expected)
