"""Tails of networks of several families: what the whole network gives, without running its front."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from tests.training.small_towers import RESNET, TIMM, VIT
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.network.blocks import find_blocks, find_units
from training.network.tail import Tail, find_tail


def _images(count: int, side: int) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def _load(name: str, *, side: int) -> Backbone:
    if name != "small ViT of torchvision":
        return load_backbone(name, "none", seed=1, side=side)
    with torch.random.fork_rng():
        network = VisionTransformer(side, patch_size=8, num_layers=4, num_heads=2, hidden_dim=32, mlp_dim=64)
    network.heads = nn.Identity()
    return Backbone(name, network.eval().requires_grad_(False), 32)


def _find(backbone: Backbone, *, last: int, side: int) -> tuple[Tail | None, list[nn.Module]]:
    network = backbone.network
    first, units = find_blocks(backbone, side=side)[-last].names[0], find_units(backbone, side=side)
    front = [network.get_submodule(name) for name in units[: units.index(first)]]
    tail = find_tail(backbone.module, front, network.get_submodule(first), side=side, images=_images(3, side))
    return tail, front


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("mobilenet_v3_small", 32), ("resnet18", 64), ("small ViT of torchvision", 32), ("timm:test_vit", 64),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("densenet121", 64), ("squeezenet1_1", 64), ("timm:test_resnet", 64), ("timm:test_efficientnet", 64),
                ("timm:test_convnext", 64), (f"open_clip:{RESNET}", 32), (f"open_clip:{TIMM}", 64),
            )
        ),
    ],
)  # fmt: skip
@torch.inference_mode()
def test_of_every_family_the_tail_gives_the_features_of_the_whole(
    name: str, side: int, small_towers: None
) -> None:
    backbone = _load(name, side=side)
    images, order = _images(5, side) + 0.5, torch.tensor([4, 0, 2])
    whole = backbone.module(images)
    for last in (1, 3):
        tail, _ = _find(backbone, last=last, side=side)
        assert tail is not None
        kept = tail.keep(images)
        assert kept.dtype == torch.float16
        assert kept.shape == (5, *tail.shape)
        largest = whole.abs().max()
        assert (tail.run(tail.capture(images)[order]) - whole[order]).abs().max() <= 1e-5 * largest
        assert (tail.run_kept(kept[order]) - whole[order]).abs().max() <= 1e-2 * largest


@pytest.mark.parametrize("name", ["resnet18", f"open_clip:{VIT}"])
def test_the_front_does_not_run_and_gradients_are_those_of_the_whole(name: str, small_towers: None) -> None:
    side = 64 if name == "resnet18" else 32
    backbone = load_backbone(name, "none", seed=1, side=side)
    tail, front = _find(backbone, last=2, side=side)
    assert tail is not None
    images = _images(3, side)
    kept = tail.capture(images)
    trained = [p for block in find_blocks(backbone, side=side)[-2:] for p in block.parameters(backbone.network)]
    for parameter in trained:
        parameter.requires_grad_(True)
    wanted = torch.autograd.grad(backbone.module(images).square().sum(), trained)
    for unit in front:
        for parameter in unit.parameters():
            parameter.fill_(torch.nan)
    assert backbone.module(images).isnan().all()
    found = torch.autograd.grad(tail.run(kept).square().sum(), trained)
    for gradient, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max() + 1e-12))


@torch.inference_mode()
def test_both_views_and_poolings_of_what_the_tail_makes_run_as_well() -> None:
    backbone = with_features(load_backbone("resnet18", "none", seed=1), view="both", pooling="gem", side=48)
    network = backbone.network
    units = find_units(backbone, side=56)
    front = [network.get_submodule(name) for name in units[: units.index("layer4.1")]]
    images = _images(4, 56)
    tail = find_tail(backbone.module, front, network.get_submodule("layer4.1"), side=56, images=images)
    assert tail is not None
    assert tail.shape == (2, 512, 2, 2)
    order = torch.tensor([3, 1])
    torch.testing.assert_close(tail.run_kept(tail.keep(images)[order]), backbone.module(images)[order],
                               rtol=1e-2, atol=1e-3)  # fmt: skip


def test_a_network_is_itself_again_after_its_tail_has_run_or_failed() -> None:
    backbone = load_backbone("squeezenet1_1", "none", seed=1)
    tail, front = _find(backbone, last=2, side=64)
    assert tail is not None
    images = _images(2, 64)
    before = backbone.module(images)
    kept = tail.keep(images)
    tail.run_kept(kept)
    with pytest.raises(RuntimeError):
        tail.run(kept[..., :-1, :1, :1].float())  # other channels than the block's
    assert torch.equal(backbone.module(images), before)
    assert not any("forward" in vars(unit) for unit in front)


class _Crossing(nn.Module):
    """A skip from the first layer around the second."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 4), nn.Linear(4, 4)

    def forward(self, images: Tensor) -> Tensor:
        early = self.one(images.flatten(1))
        return early + self.two(early.relu())


class _Twice(_Crossing):
    def forward(self, images: Tensor) -> Tensor:
        return self.two(self.two(self.one(images.flatten(1))))


class _Looking(_Crossing):
    def forward(self, images: Tensor) -> Tensor:
        early = self.one(images.flatten(1))
        assert early.any()
        return self.two(early)


@pytest.mark.parametrize("kind", [_Crossing, _Twice, _Looking])
def test_where_the_rest_reads_the_front_otherwise_there_is_no_tail(kind: type[_Crossing]) -> None:
    network = kind()
    assert find_tail(network, [network.one], network.two, side=2, images=_images(3, 2)) is None
    assert not vars(network.one).get("forward")


def test_where_pooling_reads_a_map_of_the_front_there_is_no_tail() -> None:
    backbone = with_features(load_backbone("resnet18", "none", seed=1), pooling="layers", side=64)
    assert _find(backbone, last=1, side=64)[0] is None


def test_inputs_far_from_one_are_kept_as_exactly() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 2))
    images = _images(3, 2)
    for factor in (1e-9, 1e9):
        torch.nn.init.constant_(network[1].weight, factor)
        tail = find_tail(network, network[:2], network[2], side=2, images=images)
        assert tail is not None
