"""A backbone from nothing: it learns, it is frozen afterwards, and the seed decides it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from index.images.preprocess import PreprocessConfig
from training.backbone.backbones import Backbone
from training.backbone.pretrain import PretrainConfig, pretrain_backbone

SMALL = PreprocessConfig(resize=40, crop=32)


def _stripes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that colour cannot tell apart: stripes across, stripes down."""
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 2
    wave = ((np.arange(40) // 4) % 2 * 150 + 40).astype(np.uint8)
    across = np.broadcast_to(wave[:, None, None], (40, 40, 3))
    images = np.stack([across.transpose(1, 0, 2) if label else across for label in labels])
    noise = generator.integers(0, 40, size=images.shape, dtype=np.uint8)
    return images + noise, labels.astype(np.int64)


def _pretrain(*, seed: int, epochs: int = 2) -> tuple[Backbone, list[tuple[int, float]]]:
    images, labels = _stripes(48)
    told: list[tuple[int, float]] = []
    config = PretrainConfig(backbone="shufflenet_v2_x0_5", epochs=epochs, batch_size=16)
    backbone = pretrain_backbone(
        images, labels, config=config, preprocess=SMALL, seed=seed,
        on_epoch=lambda epoch, loss: told.append((epoch, loss)),
    )  # fmt: skip
    return backbone, told


def test_a_pretrained_backbone_is_frozen_without_its_last_layer_and_seeded() -> None:
    backbone, told = _pretrain(seed=0)
    assert [epoch for epoch, _ in told] == [1, 2]
    assert all(0 < loss < 10 for _, loss in told)
    assert backbone.feature_dim == 1024
    assert not backbone.module.training
    assert not any(parameter.requires_grad for parameter in backbone.module.parameters())
    assert backbone.module(torch.zeros(2, 3, 32, 32)).shape == (2, 1024)
    assert _pretrain(seed=0)[0].hash_weights() == backbone.hash_weights()
    assert _pretrain(seed=1)[0].hash_weights() != backbone.hash_weights()


@pytest.mark.slow
def test_pretraining_learns_shapes_whatever_their_colour() -> None:
    images, labels = _stripes(192)
    config = PretrainConfig(backbone="resnet18", epochs=8, batch_size=32)
    backbone = pretrain_backbone(images, labels, config=config, preprocess=SMALL, seed=0)
    with torch.inference_mode():
        batch = torch.from_numpy(images[:64, 4:36, 4:36]).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (SMALL.mean, SMALL.std))
        rows = torch.nn.functional.normalize(backbone.module((batch - mean) / std))
    nearest = (rows @ rows.T - 2 * torch.eye(64)).argmax(dim=1)
    assert (labels[:64] == labels[nearest.numpy()]).mean() > 0.95
