"""Poolings: which maps are found in which network, what is made of them, and that all come of one pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.backbone.extract import Extractor, open_store
from training.backbone.feature_maps import FeatureMap, choose_maps
from training.backbone.pooling import PoolingLayout

SIDE = 64
# Name: channels of the last map, of the widest other one of its size, and of the widest one of the size before.
ZOO = {
    "mobilenet_v2": (1280, 960, 576),
    "resnet18": (512, 512, 256),
    "squeezenet1_1": (512, 256, 128),
    "efficientnet_b0": (1280, 1152, 672),
    "convnext_tiny": (768, 3072, 1536),
    "shufflenet_v2_x0_5": (1024, 96, 96),
    "densenet121": (1024, 992, 1024),
    "googlenet": (1024, 832, 832),
    "swin_t": (768, 3072, 1536),
}


@pytest.fixture(scope="module")
def resnet() -> Backbone:
    return load_backbone("resnet18", "none", seed=1)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def pooled(backbone: Backbone, pooling: str, images: torch.Tensor) -> torch.Tensor:
    return with_features(backbone, pooling=pooling, side=SIDE).module(images).flatten(1)


LARGE = ("efficientnet_b0", "convnext_tiny", "densenet121", "googlenet", "swin_t")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in ZOO]
)
def test_maps_are_found_in_networks_of_many_kinds(name: str) -> None:
    maps = choose_maps(load_backbone(name, "none").module, side=SIDE)
    assert maps.wide is not None
    assert maps.earlier is not None
    assert (maps.last.channels, maps.wide.channels, maps.earlier.channels) == ZOO[name]
    assert maps.last.side == maps.wide.side < maps.earlier.side


def test_the_expansions_of_mobilenet_are_taken_after_their_activation() -> None:
    maps = choose_maps(load_backbone("mobilenet_v2", "none").module, side=224)
    assert maps.wide == FeatureMap("features.17.conv.0", 0, channels=960, side=7, channels_last=False)
    assert maps.earlier == FeatureMap("features.14.conv.0", 0, channels=576, side=14, channels_last=False)


def test_a_network_without_another_map_of_the_last_size_has_fewer_layers() -> None:
    layout = PoolingLayout.of(load_backbone("alexnet", "none").module, side=224)
    assert [piece.name for piece in layout.pieces] == ["own", "gem", "earlier"]
    assert layout.feature_dim("layers") == 256 + 384


def test_a_network_of_tokens_is_refused_and_the_option_named() -> None:
    backbone = load_backbone("vit_b_32", "none")
    with pytest.raises(
        InputError, match=r"--pooling gem .* --backbone vit_b_32 does not .* leave --pooling at own"
    ):
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
    layout = PoolingLayout.of(network, side=8)
    assert layout.maps.wide == FeatureMap("first", 0, channels=4, side=4, channels_last=False)
    every = pooled(Backbone("own", network, 5), "every", images[:, :, :8, :8])
    with torch.inference_mode():
        expected = network.first(images[:, :, :8, :8]).mean(dim=(2, 3))
    torch.testing.assert_close(every[:, -4:], expected)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("convnext_tiny", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pooling", ["own", "gem", "layers"])
def test_each_pooling_is_selected_bit_by_bit_from_one_pass_with_all(name: str, pooling: str, images) -> None:
    backbone = load_backbone(name, "none")
    layout = PoolingLayout.of(backbone.network, side=SIDE)
    every = pooled(backbone, "every", images)
    assert every.shape[1] == layout.feature_dim("every") == sum(piece.width for piece in layout.pieces)
    selected = layout.select(every, pooling)
    assert selected.shape[1] == layout.feature_dim(pooling)
    torch.testing.assert_close(selected, pooled(backbone, pooling, images), rtol=0, atol=0)


def test_the_choice_of_maps_depends_on_no_weights() -> None:
    first, second = (load_backbone("resnet18", "none", seed=seed).module for seed in (1, 2))
    nn.init.zeros_(second.layer4[1].bn2.weight)
    assert choose_maps(first, side=SIDE) == choose_maps(second, side=SIDE)


def test_another_pooling_has_the_same_weights_and_leaves_the_backbone_as_it_was(resnet, images) -> None:
    before = pooled(resnet, "own", images)
    every = with_features(resnet, pooling="every", side=SIDE)
    assert every.hash_weights() == resnet.hash_weights()
    back = with_features(every, side=SIDE)
    assert back.feature_dim == resnet.feature_dim
    torch.testing.assert_close(pooled(back, "own", images), before, rtol=0, atol=0)


def test_features_of_each_pooling_have_a_place_of_their_own_and_the_usual_ones_their_old_one(
    resnet, tmp_path
) -> None:
    preprocess = PreprocessConfig(resize=72, crop=SIDE)

    def describe(backbone: Backbone) -> tuple[dict[str, object], str]:
        extractor = Extractor(backbone, preprocess, device=torch.device("cpu"), precision="float32")
        return extractor.describe(views=1), open_store(tmp_path, extractor, views=1).folder.name

    plain, folder = describe(resnet)
    assert set(plain) == {"backbone", "weights_sha256", "preprocess", "views", "precision", "decoding"}
    assert describe(with_features(resnet, side=SIDE)) == (plain, folder)
    others = [
        describe(with_features(resnet, pooling=pooling, side=SIDE)) for pooling in ("gem", "layers", "every")
    ]
    assert len({folder, *(name for _, name in others)}) == 4


def test_features_in_bfloat16_are_pooled_in_float32(resnet) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    backbone = with_features(resnet, pooling="layers", side=SIDE)
    preprocess = PreprocessConfig(resize=SIDE, crop=SIDE)
    low, high = (
        Extractor(backbone, preprocess, device=torch.device("cpu"), precision=precision).extract(pixels)
        for precision in ("bfloat16", "float32")
    )
    assert low.dtype == high.dtype == torch.float32
    assert nn.functional.cosine_similarity(low, high).min() > 0.999
