"""The part of a run's backbone that trains, and the model that is made of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from index.arrays import Ids
from index.errors import InputError
from index.images.preprocess import Pixels
from training.backbone.backbones import require_input_size
from training.backbone.extract import Extractor
from training.head.embedding_heads import ProjectionHead
from training.network.blocks import Block, choose_blocks, find_blocks
from training.network.convolutions import find_convolutions
from training.network.model import NetworkModel
from training.network.precision import choose_precision
from training.network.random_views import draw_views
from training.options.config import TrainConfig
from training.run.phases import NETWORK, phase_generator

_SMALLER, _STEP = 0.7, 8  # of the crop's side; pixels


def plan_blocks(extractor: Extractor, config: TrainConfig) -> tuple[list[Block], int]:
    """The blocks that will train, and how many there are.

    Raises:
        InputError: there are fewer than asked for, or the backbone cannot train at the smaller size.
    """
    backbone = extractor.backbone
    if config.network.network_crop is not None:
        require_input_size(backbone, config.network.network_crop, flag="--network-crop")
    blocks = find_blocks(backbone, side=extractor.preprocess.crop)
    return choose_blocks(blocks, last=config.network.last_blocks, name=backbone.name), len(blocks)


def settle_views(extractor: Extractor, config: TrainConfig) -> TrainConfig:
    """The config with the side of the views to train on: smaller ones, where the network takes them.

    Things look larger in random windows of training than in the middle of an image, so that smaller views in training
    suit the full size afterwards (Touvron et al. 2019), at half the cost.
    """
    if config.network.network_crop is not None:
        return config
    side = _find_smaller(extractor, config) or config.input.crop
    return replace(config, network=replace(config.network, network_crop=side))


def view_side(config: TrainConfig) -> int:
    """Pixels a side of the views that train; of `--view both` each is one of the two."""
    return config.network.network_crop or config.input.crop


def measure_precision(
    model: NetworkModel, pixels: Pixels, rows: Ids, *, config: TrainConfig, device: torch.device
) -> str:
    """`float32` or `bfloat16`, whichever trains faster on a batch of views of the (n,) first images named."""
    batch = torch.from_numpy(rows[: config.network.network_batch_size])
    generator = phase_generator(config.seed, NETWORK, 0)
    views = draw_views(pixels, batch, side=view_side(config), generator=generator)
    return choose_precision(model, views.to(device))


def _find_smaller(extractor: Extractor, config: TrainConfig) -> int | None:
    """A size at half the cost, in steps that networks divide evenly; transformers are made for one size."""
    side = _STEP * round(_SMALLER * config.input.crop / _STEP)
    if not 0 < side < config.input.crop:
        return None
    try:
        require_input_size(extractor.backbone, side)
    except InputError:
        return None
    return side


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
