"""The whole image, the crop, and both in one pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from index.images.preprocess import PreprocessConfig, crop_pixels
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.backbone.extract import Extractor
from training.backbone.views import average_views

RESIZE, SIDE = 80, 64


@pytest.fixture(scope="module")
def resnet() -> Backbone:
    return load_backbone("resnet18", "none", seed=1)


def smooth_images() -> np.ndarray:
    """(4, 80, 80, 3) uint8 without fine detail, so that how they are resized matters little."""
    coarse = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    fine = nn.functional.interpolate(coarse, size=(RESIZE, RESIZE), mode="bicubic").clamp(0, 1)
    return (255 * fine).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def extract(backbone: Backbone, pixels: np.ndarray) -> torch.Tensor:
    preprocess = PreprocessConfig(resize=pixels.shape[1], crop=pixels.shape[1])
    return Extractor(backbone, preprocess, device=torch.device("cpu"), precision="float32").extract(pixels)


@pytest.mark.parametrize("pooling", ["own", "gem", "layers"])
def test_both_views_are_the_mean_of_the_unit_features_of_crop_and_whole(resnet: Backbone, pooling: str) -> None:
    pixels = smooth_images()
    margin = (RESIZE - SIDE) // 2
    crops = np.stack([crop_pixels(image, top=margin, left=margin, size=SIDE) for image in pixels])
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
    wholes = nn.functional.interpolate(planes, size=(SIDE, SIDE), mode="bilinear", antialias=True)
    wholes = wholes.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    one_view = with_features(resnet, pooling=pooling, side=SIDE)
    views = [extract(one_view, seen) for seen in (crops, wholes)]
    expected = average_views(views)
    both = extract(with_features(resnet, view="both", pooling=pooling, side=SIDE), pixels)
    assert both.shape == expected.shape
    apart = (nn.functional.normalize(views[0]) - nn.functional.normalize(views[1])).abs().max()
    assert (both - expected).abs().max() < 0.02 * apart, "up to the resize"


@pytest.mark.parametrize("size", [SIDE, SIDE - 8])
def test_an_image_no_larger_than_the_views_is_one_view_as_a_network_trains_on(resnet: Backbone, size: int) -> None:
    pixels = smooth_images()[:, :size, :size]
    one_view, both = resnet, with_features(resnet, view="both", side=SIDE)
    torch.testing.assert_close(extract(both, pixels), nn.functional.normalize(extract(one_view, pixels)))


def test_an_images_features_do_not_depend_on_those_beside_it(resnet: Backbone) -> None:
    pixels = smooth_images()
    both = with_features(resnet, view="both", side=SIDE)
    torch.testing.assert_close(extract(both, pixels)[1:2], extract(both, pixels[1:2]), rtol=0, atol=1e-5)


def test_features_of_both_views_have_a_key_of_their_own_with_the_size_of_the_views(resnet: Backbone) -> None:
    preprocess = PreprocessConfig(resize=RESIZE, crop=RESIZE)
    described = {
        view: Extractor(
            with_features(resnet, view=view, side=SIDE), preprocess, device=torch.device("cpu")
        ).describe(views=1)
        for view in ("whole", "both")
    }
    assert described["both"] == {**described["whole"], "view": "both", "side": SIDE}
