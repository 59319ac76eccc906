"""Poolings: which maps are found in which network, what is made of them, and that all come of one pass."""

import numpy as np
import pytest
import torch
from torch import nn

from index.errors import InputError
from index.images.preprocess import PreprocessConfig, crop_pixels
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.backbone.extract import Extractor
from training.backbone.feature_maps import FeatureMap, choose_maps
from training.backbone.pooling import average_views

SIDE = 64
# Channels of the last map, of the widest other one of its size, and of the widest one of the size before.
ZOO = {
    "mobilenet_v2": (1280, 960, 576),
    "resnet18": (512, 512, 256),
    "squeezenet1_1": (512, 256, 128),
    "shufflenet_v2_x0_5": (1024, 96, 96),
}
LARGE = {"convnext_tiny": (768, 3072, 1536), "densenet121": (1024, 992, 1024), "swin_t": (768, 3072, 1536)}


@pytest.fixture(scope="module")
def resnet() -> Backbone:
    return load_backbone("resnet18", "none", seed=1)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def pooled(backbone: Backbone, pooling: str, images: torch.Tensor) -> torch.Tensor:
    return with_features(backbone, pooling=pooling, side=SIDE).module(images).flatten(1)


@pytest.mark.parametrize(
    ("name", "channels"), [*ZOO.items(), *(pytest.param(*one, marks=pytest.mark.slow) for one in LARGE.items())]
)
def test_maps_are_found_in_networks_of_many_kinds(name: str, channels: tuple[int, ...]) -> None:
    _, maps = choose_maps(load_backbone(name, "none").module, side=SIDE)
    assert tuple(found.channels for found in maps.values()) == channels
    assert maps["gem"].side == maps["wide"].side < maps["earlier"].side


def test_a_network_without_another_map_of_the_last_size_has_fewer_layers() -> None:
    layers = with_features(load_backbone("alexnet", "none"), pooling="layers", side=224)
    assert layers.feature_dim == 256 + 384


def test_a_network_of_tokens_is_refused_and_the_option_named() -> None:
    backbone = load_backbone("vit_b_32", "none")
    with pytest.raises(InputError, match=r"--pooling gem .* --backbone vit_b_32 does not .* leave --pooling at"):
        with_features(backbone, pooling="gem", side=224)
    assert with_features(backbone, side=224).module is backbone.module


def test_gem_is_the_generalised_mean_of_the_map_before_the_networks_own_pooling(resnet, images) -> None:
    maps: list[torch.Tensor] = []
    hook = resnet.module.layer4.register_forward_hook(lambda *given: maps.append(given[-1]))
    own = pooled(resnet, "own", images)
    hook.remove()
    expected = maps[0].numpy().astype(np.float64).clip(1e-6)
    expected = np.cbrt((expected**3).mean(axis=(2, 3)))
    np.testing.assert_allclose(pooled(resnet, "gem", images), expected, rtol=1e-5)
    np.testing.assert_allclose(own, maps[0].mean(dim=(2, 3)), rtol=1e-5)


def test_layers_are_unit_vectors_with_their_weights(resnet, images) -> None:
    gem, wide, earlier = pooled(resnet, "layers", images).split([512, 512, 256], dim=1)
    for part, weight in ((gem, 1), (wide, 0.5), (earlier, 0.35)):
        np.testing.assert_allclose(part.norm(dim=1), weight, rtol=1e-5)
    expected = nn.functional.normalize(pooled(resnet, "gem", images))
    torch.testing.assert_close(gem, expected, rtol=0, atol=0)


def test_a_map_is_read_before_an_activation_changes_it_in_place(resnet, images) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 1, stride=2), nn.Conv2d(4, 5, 1)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            shifted = self.first(images)
            wide = shifted.clone()
            shifted.add_(100)  # after the module has ended
            return self.second(wide).mean(dim=(2, 3))

    network = InPlace().eval()
    assert choose_maps(network, side=8)[1]["wide"] == FeatureMap("first", 0, channels=4, side=4, channels_last=False)
    wide = pooled(Backbone("own", network, 5), "wide", images[:, :, :8, :8])
    with torch.inference_mode():
        expected = network.first(images[:, :, :8, :8]).mean(dim=(2, 3))
    torch.testing.assert_close(wide, expected)


def test_another_pooling_has_the_same_weights_and_leaves_the_backbone_as_it_was(resnet, images) -> None:
    before = pooled(resnet, "own", images)
    layers = with_features(resnet, pooling="layers", side=SIDE)
    assert layers.hash_weights() == resnet.hash_weights()
    back = with_features(layers, side=SIDE)
    assert back.feature_dim == resnet.feature_dim
    torch.testing.assert_close(pooled(back, "own", images), before, rtol=0, atol=0)


RESIZE = 80


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
