"""Blocks of networks of several families: in the order in which they run, whole, and nothing twice."""

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from index.errors import InputError
from tests.training.conftest import random_images
from tests.training.small_towers import RESNET, TIMM, VIT
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.network.kept_inputs import NetworkTail, find_tail
from training.network.model import Block, choose_blocks, find_blocks, find_units

FAMILIES = [  # blocks, the class of the last one, its modules
    ("mobilenet_v2", 19, "Conv2dNormActivation", ("features.18",)),
    ("resnet18", 9, "BasicBlock", ("layer4.1",)),
    ("shufflenet_v2_x0_5", 18, "Conv2d", ("conv5.0", "conv5.1")),  # a classifier's last convolution apart
    ("timm:test_resnet", 7, "BasicBlock", ("layer4.0",)),
    ("timm:test_convnext", 13, "ConvNeXtBlock", ("stages.3.blocks.1", "head")),
]
LARGE = [
    ("densenet121", 8, "_DenseBlock", ("features.denseblock4", "features.norm5")),
    ("googlenet", 12, "Inception", ("inception5b",)),
    ("swin_t", 16, "SwinTransformerBlock", ("features.7.1", "norm")),
    ("open_clip:RN50", 20, "AttentionPool2d", ("attnpool",)),
]


@pytest.mark.parametrize(
    ("name", "count", "kind", "modules"), [*FAMILIES, *(pytest.param(*one, marks=pytest.mark.slow) for one in LARGE)]
)
def test_every_parameter_is_in_one_block_and_the_last_is_the_last_to_run(name, count, kind, modules) -> None:
    backbone = load_backbone(name, "none", side=64)
    network, blocks = backbone.network, find_blocks(backbone, side=64)
    assert (len(blocks), blocks[-1].names) == (count, modules)
    assert type(network.get_submodule(modules[0])).__name__ == kind
    found = [id(p) for block in blocks for p in block.parameters(network)]
    assert sorted(found) == sorted(id(p) for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "blocks", "last", "positions"),
    [
        ("timm:test_vit", 7, ("blocks.5", "norm"), ["cls_token", "pos_embed"]),
        (
            f"open_clip:{VIT}",
            3,
            ("transformer.resblocks.1", "ln_post"),
            ["class_embedding", "positional_embedding", "proj"],
        ),
        (f"open_clip:{TIMM}", 8, ("trunk.blocks.5", "trunk.norm"), ["trunk.cls_token", "trunk.pos_embed"]),
    ],
)
def test_the_layers_of_a_transformer_are_blocks_and_its_positions_are_in_none(
    name: str, blocks: int, last: tuple[str, ...], positions: list[str], small_towers: None
) -> None:
    backbone = load_backbone(name, "none", side=64)
    found = find_blocks(backbone, side=64)
    assert len(found) == blocks
    assert last in [block.names for block in found[-2:]]  # a projection to another space may follow
    known = {id(p) for block in found for p in block.parameters(backbone.network)}
    assert [key for key, p in backbone.network.named_parameters() if id(p) not in known] == positions


class Crossed(nn.Module):
    """What is declared first runs last, and one part never."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.never = nn.Linear(2, 2)
        self.early = nn.Conv2d(3, 4, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.late(self.early(images)).mean(dim=(2, 3))


def test_blocks_are_in_the_order_of_running_without_what_never_runs() -> None:
    blocks = find_blocks(Backbone("crossed", Crossed().eval(), 4), side=4)
    assert blocks == [Block(("early",)), Block(("late.0", "late.1"))]


def test_the_last_blocks_are_chosen_or_all_and_more_than_there_are_is_refused() -> None:
    blocks = [Block((str(number),)) for number in range(3)]
    assert choose_blocks(blocks, last=2, name="toy") == blocks[1:]
    assert choose_blocks(blocks, last=3, name="toy") == choose_blocks(blocks, last=None, name="toy") == blocks
    with pytest.raises(InputError, match=r"--finetune last-4: --backbone toy has 3 blocks"):
        choose_blocks(blocks, last=4, name="toy")


def _load(name: str, *, side: int) -> Backbone:
    if name != "small ViT of torchvision":
        return load_backbone(name, "none", seed=1, side=side)
    with torch.random.fork_rng():
        network = VisionTransformer(side, patch_size=8, num_layers=4, num_heads=2, hidden_dim=32, mlp_dim=64)
    network.heads = nn.Identity()
    return Backbone(name, network.eval().requires_grad_(False), 32)


def _find(backbone: Backbone, *, last: int, side: int) -> tuple[NetworkTail | None, list[nn.Module]]:
    network = backbone.network
    first, units = find_blocks(backbone, side=side)[-last].names[0], find_units(backbone, side=side)
    front = [network.get_submodule(name) for name in units[: units.index(first)]]
    tail = find_tail(backbone.module, front, network.get_submodule(first), side=side, images=random_images(3, side))
    return tail, front


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("mobilenet_v3_small", 32),
        ("resnet18", 64),
        ("small ViT of torchvision", 32),
        ("timm:test_vit", 64),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("densenet121", 64), ("timm:test_convnext", 64), (f"open_clip:{RESNET}", 32))
        ),
    ],
)
@torch.inference_mode()
def test_of_every_family_the_tail_gives_the_features_of_the_whole(name, side, small_towers) -> None:
    backbone = _load(name, side=side)
    images, order = random_images(5, side) + 0.5, torch.tensor([4, 0, 2])
    whole = backbone.module(images)
    for last in (1, 3):
        tail, _ = _find(backbone, last=last, side=side)
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
    images = random_images(3, side)
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


def test_a_network_is_itself_again_after_its_tail_has_run_or_failed() -> None:
    backbone = load_backbone("squeezenet1_1", "none", seed=1)
    tail, front = _find(backbone, last=2, side=64)
    images = random_images(2, 64)
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


def test_where_the_rest_reads_the_front_otherwise_there_is_no_tail() -> None:
    for network in (_Crossing(), _Twice(), _Looking()):
        assert find_tail(network, [network.one], network.two, side=2, images=random_images(3, 2)) is None
        assert not vars(network.one).get("forward")
    pooling = with_features(load_backbone("resnet18", "none", seed=1), pooling="layers", side=64)
    assert _find(pooling, last=1, side=64)[0] is None, "pooling reads a map of the front"


def test_inputs_far_from_one_are_kept_as_exactly() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 2))
    for factor in (1e-9, 1e9):
        torch.nn.init.constant_(network[1].weight, factor)
        assert find_tail(network, network[:2], network[2], side=2, images=random_images(3, 2)) is not None
