"""The model in training: gradients reach what is unfrozen and nothing else, statistics stay, the result is a run's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import Extractor
from training.head.embedding_heads import ProjectionHead
from training.network.blocks import choose_blocks, find_blocks
from training.network.model import NetworkModel

SIDE = 32


def make_model(
    name: str = "mobilenet_v3_small", *, last: int | None = 2, view: str = "crop", pooling: str = "own",
    side: int = SIDE, **others,
) -> NetworkModel:  # fmt: skip
    backbone = load_backbone(name, "none", seed=1)
    if (view, pooling) != ("crop", "own"):
        backbone = with_features(backbone, view=view, pooling=pooling, side=side)
    extractor = Extractor(backbone, PreprocessConfig(side, side), device=torch.device("cpu"), precision="float32")
    blocks = choose_blocks(find_blocks(backbone, side=80 if view == "both" else side), last=last, name=name)
    weight = torch.randn(4, backbone.feature_dim, generator=torch.Generator().manual_seed(0))
    return NetworkModel(
        backbone, ProjectionHead(weight, torch.zeros(4)), blocks, whole=last is None, mean=extractor.mean,
        std=extractor.std, **others,
    )  # fmt: skip


def some_images(count: int = 4, side: int = SIDE) -> torch.Tensor:
    return torch.randint(
        256, (count, side, side, 3), generator=torch.Generator().manual_seed(2), dtype=torch.uint8
    )


def _names_with_gradient(model: NetworkModel) -> set[str]:
    target = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    (model(some_images()) * target).sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}


@pytest.mark.parametrize("last", [1, 2, 4, None])
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1"])
def test_gradients_reach_the_head_and_the_unfrozen_blocks_and_nothing_else(name: str, last: int | None) -> None:
    model = make_model(name, last=last)
    network = load_backbone(name, "none").network
    blocks = find_blocks(load_backbone(name, "none"), side=SIDE)
    modules = [module for block in (blocks if last is None else blocks[-last:]) for module in block.names]
    expected = {f"backbone.{m}.{n}" for m in modules for n, _ in network.get_submodule(m).named_parameters()}
    found = _names_with_gradient(model)
    assert found <= expected | {"head.weight", "head.bias"}
    wanted = {n for n, p in model.named_parameters() if p.requires_grad}
    assert wanted == expected | {"head.weight", "head.bias"} == set(model.moving())
    assert len(found) > 0.8 * len(wanted), "but for what ReLUs happen to close"


@pytest.mark.parametrize(
    ("view", "pooling"), [("both", "own"), ("crop", "gem"), ("crop", "layers"), ("both", "layers")]
)
def test_gradients_flow_through_views_and_poolings_of_ours(view: str, pooling: str) -> None:
    model = make_model("resnet18", last=2, view=view, pooling=pooling, side=64)
    model(some_images(side=80 if view == "both" else 64))[:, 0].sum().backward()
    got = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert {block for block in ("layer3.1", "layer4.0", "layer4.1") if any(f".{block}." in name for name in got)} == {
        "layer4.0", "layer4.1",
    }  # fmt: skip


def _statistics(model: NetworkModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.named_buffers()}


def test_frozen_statistics_of_batch_norm_do_not_move_while_the_model_learns() -> None:
    model = make_model(last=None)
    before = _statistics(model)
    model.learn(True)
    model(some_images())
    assert all(torch.equal(tensor, before[name]) for name, tensor in _statistics(model).items())
    assert not any(module.training for module in model.backbone.modules())


def test_statistics_that_follow_the_batches_move_in_unfrozen_blocks_alone_and_only_while_it_learns() -> None:
    model = make_model(last=3, follows_batches=True)
    before = _statistics(model)
    model(some_images())
    assert all(torch.equal(tensor, before[name]) for name, tensor in _statistics(model).items())
    model.learn(True)
    model(some_images())
    moved = {name for name, tensor in _statistics(model).items() if not torch.equal(tensor, before[name])}
    blocks = find_blocks(load_backbone("mobilenet_v3_small", "none"), side=SIDE)[-3:]
    own = tuple(f"backbone.{name}." for block in blocks for name in block.names)
    assert moved
    assert all(name.startswith(own) for name in moved)
    assert moved <= set(model.moving()), "or checkpoints would forget them"
    assert not any(isinstance(m, nn.Dropout) and m.training for m in model.modules())


def test_the_model_embeds_as_extractor_and_frozen_head_do() -> None:
    backbone = load_backbone("squeezenet1_1", "none", seed=1)
    sizes = PreprocessConfig(SIDE, SIDE)
    extractor = Extractor(backbone, sizes, device=torch.device("cpu"), precision="float32")
    head = ProjectionHead(torch.randn(4, 512), torch.randn(4))
    model = NetworkModel(backbone, head, [], whole=False, mean=extractor.mean, std=extractor.std)
    images = some_images()
    with torch.no_grad():
        torch.testing.assert_close(model(images), head(extractor.extract(images.numpy())))
        assert torch.equal(model.head.freeze().weight, head.weight)


def test_released_nothing_trains() -> None:
    model = make_model(follows_batches=True)
    model.learn(True)
    model.release()
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(m.training for m in model.backbone.modules())
