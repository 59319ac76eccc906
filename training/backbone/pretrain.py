"""A small backbone from random weights: classification of the given labels, the wrong ones included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from index.images.preprocess import Pixels, PreprocessConfig, crop_pixels
from training.backbone.backbones import Backbone, arrange_images
from training.backbone.extract import resolve_precision
from training.backbone.freed_memory import keep_freed_memory
from training.backbone.torchvision_models import remove_last_layer


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """How a backbone is trained from scratch: AdamW, one cycle of the learning rate, label smoothing."""

    backbone: str = "resnet18"
    epochs: int = 30
    batch_size: int = 64
    peak_lr: float = 2e-3
    weight_decay: float = 0.05
    label_smoothing: float = 0.1


@keep_freed_memory()
def pretrain_backbone(
    images: Pixels,
    labels: np.ndarray,
    *,
    config: PretrainConfig,
    preprocess: PreprocessConfig,
    seed: int,
    on_epoch: Callable[[int, float], None] = lambda _, __: None,
) -> Backbone:
    """Train a torchvision classifier from random weights on images in memory, and drop its last layer.

    Args:
        images: (N, resize, resize, 3) uint8.
        labels: (N,) int64, wrong ones included.
        preprocess: crop size, mean and std.
        seed: of weights, batches and crops.
        on_epoch: called with the epochs done and the mean loss of the last one.
    """
    precision = resolve_precision("auto", torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torchvision.models.get_model(config.backbone, weights=None, num_classes=int(labels.max()) + 1)
    network = network.to(memory_format=torch.channels_last).train()
    targets = torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(seed)
    mean = 255 * torch.tensor(preprocess.mean).view(1, 3, 1, 1)
    std = 255 * torch.tensor(preprocess.std).view(1, 3, 1, 1)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=config.weight_decay)
    batch_size = min(config.batch_size, len(images))
    steps = config.epochs * (len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.peak_lr, total_steps=steps)
    for epoch in range(config.epochs):
        losses = []
        order = torch.randperm(len(images), generator=generator)
        for rows in order.split(batch_size):
            if len(rows) < batch_size:
                continue  # a last batch of one image would break batch norm
            views = _augment(images[rows.numpy()], crop=preprocess.crop, generator=generator)
            batch = arrange_images(views, mean, std)
            with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
                logits = network(batch)
            loss = nn.functional.cross_entropy(
                logits.float(), targets[rows], label_smoothing=config.label_smoothing
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        on_epoch(epoch + 1, float(np.mean(losses)))
    _, feature_dim = remove_last_layer(network)
    return Backbone(config.backbone, network.eval().requires_grad_(False), feature_dim)


def _augment(pixels: Pixels, *, crop: int, generator: torch.Generator) -> Tensor:
    """A random crop, flip and colouring of every image: (B, crop, crop, 3) uint8."""
    count, margin = len(pixels), pixels.shape[1] - crop + 1
    corners = torch.randint(margin, (count, 2), generator=generator).tolist()
    mirrored = (torch.rand(count, generator=generator) < 0.5).tolist()
    views = np.empty((count, crop, crop, 3), dtype=np.uint8)
    for view, image, (top, left), flip in zip(views, pixels, corners, mirrored, strict=True):
        window = crop_pixels(image, top=top, left=left, size=crop)
        view[:] = window[:, ::-1] if flip else window
    return _recolour(torch.from_numpy(views), generator=generator)


def _recolour(images: Tensor, *, generator: torch.Generator) -> Tensor:
    """Swap the channels of every image at random and scale each by 0.6 to 1.4: colour then tells little."""
    order = torch.rand(len(images), 3, generator=generator).argsort(dim=1)  # (B, 3)
    gain = 0.6 + 0.8 * torch.rand(len(images), 1, 1, 3, generator=generator)
    swapped = images.gather(3, order[:, None, None, :].expand(images.shape))
    return (swapped * gain).clamp(0, 255).to(torch.uint8)
