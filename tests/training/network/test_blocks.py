"""Blocks of networks of several families: in the order in which they run, whole, and nothing twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from index.errors import InputError
from tests.training.small_towers import TIMM, VIT
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.network.blocks import Block, choose_blocks, find_blocks

FAMILIES = {  # blocks, the class of the last one, its modules
    "mobilenet_v2": (19, "Conv2dNormActivation", ("features.18",)),
    "resnet18": (9, "BasicBlock", ("layer4.1",)),
    "squeezenet1_1": (9, "Fire", ("features.12",)),
    "shufflenet_v2_x0_5": (18, "Conv2d", ("conv5.0", "conv5.1")),
    "efficientnet_b0": (18, "Conv2dNormActivation", ("features.8",)),
    "densenet121": (8, "_DenseBlock", ("features.denseblock4", "features.norm5")),
    "regnet_y_400mf": (17, "ResBottleneckBlock", ("trunk_output.block4.block4-5",)),
    "mnasnet0_5": (20, "Conv2d", ("layers.14", "layers.15")),
    "googlenet": (12, "Inception", ("inception5b",)),
    "swin_t": (16, "SwinTransformerBlock", ("features.7.1", "norm")),
    "convnext_tiny": (22, "CNBlock", ("features.7.2", "classifier.0")),
    "timm:test_resnet": (7, "BasicBlock", ("layer4.0",)),
    "timm:mobilenetv3_small_050": (14, "Conv2d", ("conv_head",)),
    "timm:test_efficientnet": (7, "Conv2d", ("conv_head", "bn2")),
    "timm:test_convnext": (13, "ConvNeXtBlock", ("stages.3.blocks.1", "head")),
    "timm:swin_tiny_patch4_window7_224": (16, "SwinTransformerBlock", ("layers.3.blocks.1", "norm")),
    "open_clip:RN50": (20, "AttentionPool2d", ("attnpool",)),
}


# A classifier's last convolution apart, a norm apart, a block of several ops, one of another library.
QUICK = {"mobilenet_v2", "resnet18", "shufflenet_v2_x0_5", "timm:test_resnet", "timm:test_convnext"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [pytest.param(*one, marks=() if one[0] in QUICK else pytest.mark.slow) for one in FAMILIES.items()],
)
def test_every_parameter_is_in_one_block_and_the_last_is_the_last_to_run(name: str, expected: tuple) -> None:
    backbone = load_backbone(name, "none", side=64)
    network = backbone.network
    blocks = find_blocks(backbone, side=64)
    last = network.get_submodule(blocks[-1].names[0])
    assert (len(blocks), type(last).__name__, blocks[-1].names) == expected
    found = [id(p) for block in blocks for p in block.parameters(network)]
    assert sorted(found) == sorted(id(p) for p in network.parameters())


@pytest.mark.slow
def test_the_layers_of_a_transformer_are_blocks_and_its_positions_are_in_none() -> None:
    backbone = load_backbone("vit_b_32", "none")
    blocks = find_blocks(backbone, side=224)
    layers = [f"encoder.layers.encoder_layer_{number}" for number in range(12)]
    assert [block.names[0] for block in blocks] == ["conv_proj", *layers]
    assert blocks[-1].names == (layers[-1], "encoder.ln")
    found = {id(p) for block in blocks for p in block.parameters(backbone.network)}
    loose = [name for name, p in backbone.network.named_parameters() if id(p) not in found]
    assert loose == ["class_token", "encoder.pos_embedding"]


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
def test_so_are_those_of_other_libraries(
    name: str, blocks: int, last: tuple[str, ...], positions: list[str], small_towers: None
) -> None:
    backbone = load_backbone(name, "none", side=64)
    found = find_blocks(backbone, side=64)
    assert len(found) == blocks
    assert last in [block.names for block in found[-2:]]  # a projection to another space may follow
    known = {id(p) for block in found for p in block.parameters(backbone.network)}
    assert [key for key, p in backbone.network.named_parameters() if id(p) not in known] == positions


@pytest.mark.parametrize(("view", "pooling"), [("both", "own"), ("crop", "layers")])
def test_views_and_poolings_of_ours_change_no_block(view: str, pooling: str) -> None:
    plain = load_backbone("mobilenet_v2", "none")
    seen = with_features(plain, view=view, pooling=pooling, side=32)
    assert find_blocks(seen, side=40 if view == "both" else 32) == find_blocks(plain, side=32)


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
    with pytest.raises(InputError, match=r"--unfreeze last-4: --backbone toy has 3 blocks"):
        choose_blocks(blocks, last=4, name="toy")


def test_a_gradient_stops_before_the_first_block_that_trains() -> None:
    """What a block is, seen from outside: with the last N trained, those before get nothing."""
    backbone = load_backbone("resnet18", "none")
    blocks = find_blocks(backbone, side=32)
    for before, block in pairwise(blocks[-3:]):
        backbone.network.requires_grad_(False)
        for parameter in block.parameters(backbone.network):
            parameter.requires_grad_(True)
        backbone.module(torch.ones(1, 3, 32, 32)).sum().backward()
        assert all(p.grad is None for p in before.parameters(backbone.network))
        assert all(p.grad is not None for p in block.parameters(backbone.network))
        backbone.network.zero_grad(set_to_none=True)
