"""Model of the network stage: the blocks that train, the size of their views, and the precision that is faster."""

from __future__ import annotations

import time

import torch

from index.arrays import Ids
from index.errors import InputError
from index.images.preprocess import Pixels
from training.backbone.backbones import Backbone, require_input_size
from training.backbone.extract import Extractor, resolve_precision
from training.head.embedding_heads import ProjectionHead
from training.network.convolutions import find_convolutions
from training.network.decoded_images import draw_views
from training.network.model import Block, NetworkModel, choose_blocks, find_blocks
from training.options.config import TrainConfig
from training.run.phases import NETWORK, phase_generator

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SECONDS = 1.0  # for each, at least one step after the first
_MOST_STEPS = 20


def choose_precision(model: NetworkModel, images: torch.Tensor) -> str:
    """`float32` or `bfloat16`, whichever runs forward and backward faster on these images; weights stay as they are.

    Hardware that does not compute bfloat16 is not asked: it may take a hundred times as long. With it, backward through
    depthwise convolutions may still be slower.

    Args:
        images: (B, H, W, 3) uint8, views as they will train.
    """
    if resolve_precision("auto", images.device) == torch.float32:
        return "float32"
    before = model.precision
    try:
        seconds = {name: _time_a_step(model, images, dtype=dtype) for name, dtype in PRECISIONS.items()}
    finally:
        model.precision = before
        model.zero_grad(set_to_none=True)
    return min(seconds, key=lambda name: seconds[name])


def _time_a_step(model: NetworkModel, images: torch.Tensor, *, dtype: torch.dtype) -> float:
    model.precision = dtype
    _run_a_step(model, images)  # kernels are chosen and memory is taken the first time
    started, steps = time.perf_counter(), 0
    while steps == 0 or (time.perf_counter() - started < _SECONDS and steps < _MOST_STEPS):
        _run_a_step(model, images)
        steps += 1
    return (time.perf_counter() - started) / steps


def _run_a_step(model: NetworkModel, images: torch.Tensor) -> None:
    model(images).square().sum().backward()
    if images.device.type == "cuda":
        torch.cuda.synchronize()


_SMALLER, _STEP = 0.7, 8  # of the crop's side; pixels


def plan_blocks(backbone: Backbone, config: TrainConfig, *, side: int) -> list[Block]:
    """The blocks that train; `side` is of the images that the backbone takes.

    Raises:
        InputError: there are fewer than asked for.
    """
    blocks = find_blocks(backbone, side=side)
    return choose_blocks(blocks, last=config.network.last_blocks, name=backbone.name)


def smaller_side(backbone: Backbone, crop: int) -> int:
    """Pixels a side of the views to train on: fewer than of the crop, where the network takes them.

    Things look larger in random windows of training than in the middle of an image, so that smaller views in training
    suit the full size afterwards (Touvron et al. 2019), at half the cost. Transformers are made for one size.
    """
    side = _STEP * round(_SMALLER * crop / _STEP)  # networks divide it evenly
    if not 0 < side < crop:
        return crop
    try:
        require_input_size(backbone, side)
    except InputError:
        return crop
    return side


def view_side(config: TrainConfig) -> int:
    """Pixels a side of the views that train; of `--view both` each is one of the two."""
    return config.network.network_crop or config.input.crop


def measure_precision(model: NetworkModel, pixels: Pixels, rows: Ids, *, config: TrainConfig) -> str:
    """`float32` or `bfloat16`, whichever trains faster on a batch of views of the (n,) first images named."""
    batch = torch.from_numpy(rows[: config.network.network_batch_size])
    generator = phase_generator(config.seed, NETWORK, 0)
    views = draw_views(pixels, batch, side=view_side(config), generator=generator)
    return choose_precision(model, views.to(model.head.weight.device))


def build_model(
    extractor: Extractor, head: ProjectionHead, blocks: list[Block], *, config: TrainConfig
) -> NetworkModel:
    """Around the extractor's backbone, which trains from these blocks on; the head is on its device."""
    model = NetworkModel(
        extractor.backbone, head, blocks, whole=config.network.last_blocks is None, mean=extractor.mean,
        std=extractor.std, follows_batches=config.network.network_batch_norm == "train",
        convolutions=find_convolutions(extractor.backbone.module, side=view_side(config)),
    )  # fmt: skip
    model.head.to(extractor.device)
    return model
