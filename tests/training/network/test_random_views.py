"""Crops and mirror images: all places and both sides, as the generator says and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from index.images.preprocess import PreprocessConfig, preprocess_image
from training.network.random_views import centre_views, choose_views, draw_views

SIDE = 6
# Every pixel of an image says where it is: rows in the first channel, columns in the second, the image in the third.
PLACES = np.stack(np.broadcast_arrays(*np.ix_(np.arange(SIDE), np.arange(SIDE), [0]))[:2], axis=-1)[..., 0, :]
PIXELS = np.stack([np.dstack([PLACES, np.full((SIDE, SIDE), number)]) for number in range(40)]).astype(np.uint8)


def _draw(rows: torch.Tensor, *, crop: int, seed: int = 0) -> np.ndarray:
    return draw_views(PIXELS, rows, crop=crop, generator=torch.Generator().manual_seed(seed)).numpy()


def test_views_are_windows_of_their_images_in_all_places_and_of_both_sides() -> None:
    rows = torch.arange(40).repeat(20)
    views = _draw(rows, crop=4)
    assert views.shape == (800, 4, 4, 3)
    seen = set()
    for view, row in zip(views, rows.tolist(), strict=True):
        mirrored = view[0, 0, 1] > view[0, 1, 1]
        window = view[:, ::-1] if mirrored else view
        top, left = window[0, 0, :2]
        np.testing.assert_array_equal(window, PIXELS[row, top : top + 4, left : left + 4])
        seen.add((int(top), int(left), bool(mirrored)))
    assert len(seen) == 3 * 3 * 2


def test_a_crop_of_the_whole_image_is_only_mirrored() -> None:
    views = _draw(torch.zeros(50, dtype=torch.int64), crop=SIDE)
    same = [(view == PIXELS[0]).all() for view in views]
    assert 0 < sum(same) < 50
    assert all(known or (view[:, ::-1] == PIXELS[0]).all() for known, view in zip(same, views, strict=True))


def test_smaller_views_are_windows_of_every_size_from_theirs_to_the_whole_image_scaled() -> None:
    side, whole = 8, 24
    ramp = np.linspace(0, 230, whole)
    image = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None, :], 0.0), axis=-1).astype(np.uint8)[None]
    draw = choose_views(crop=20, side=side)
    views = draw(image, torch.zeros(300, dtype=torch.int64), generator=torch.Generator().manual_seed(0)).numpy()
    assert views.shape == (300, side, side, 3)
    step = 230 / (whole - 1)
    heights, widths = ((views[:, -1, 0, 0], views[:, 0, 0, 0]), (views[:, 0, -1, 1], views[:, 0, 0, 1]))
    spans = [np.abs(a.astype(float) - b) / step * side / (side - 1) for a, b in (heights, widths)]
    np.testing.assert_allclose(spans[0], spans[1], atol=1.5)
    assert (spans[0].min(), spans[0].max()) == pytest.approx((side, whole), abs=1.5)
    mirrored = views[:, 0, -1, 1] < views[:, 0, 0, 1]
    assert 100 < mirrored.sum() < 200
    tops = views[np.abs(spans[0] - side) < 1.5, 0, 0, 0]
    assert np.ptp(tops) > 0.6 * 230 * (whole - side) / whole, "windows lie everywhere"


def test_views_of_the_usual_size_are_drawn_as_ever() -> None:
    rows, generator = torch.arange(40), torch.Generator().manual_seed(0)
    found = choose_views(crop=4, side=None)(PIXELS, rows, generator=generator)
    np.testing.assert_array_equal(found, _draw(rows, crop=4))


def test_the_generator_alone_decides() -> None:
    rows = torch.arange(40)
    np.testing.assert_array_equal(_draw(rows, crop=4), _draw(rows, crop=4))
    assert (_draw(rows, crop=4) != _draw(rows, crop=4, seed=1)).any()


def test_centre_views_are_those_that_features_are_made_of() -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(3, 9, 9, 3), dtype=np.uint8)
    sizes = PreprocessConfig(resize=9, crop=6)
    expected = np.stack([preprocess_image(Image.fromarray(images[row]), sizes) for row in (2, 0)])
    np.testing.assert_array_equal(centre_views(images, torch.tensor([2, 0]), crop=6), expected)
