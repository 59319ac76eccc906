"""How phase 2 begins: the head, the loss with its proxies, the optimizer; new, or as a checkpoint has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.backbone.feature_sources import FeatureSource
from training.head.embedding_heads import EmbeddingHead, WhitenedHead
from training.head.whitening import fit_within_classes
from training.losses.guidance import Guidance
from training.losses.interface import MetricLoss, ProxyLoss
from training.losses.make_loss import build_loss
from training.options.config import EmbeddingConfig
from training.options.losses import LossConfig
from training.run.checkpoint import unpack_module, unpack_optimizer
from training.run.phases import PhaseContext, phase_generator

TrainedHead = EmbeddingHead | WhitenedHead


def count_epochs(config: EmbeddingConfig, batches: int) -> tuple[int, int | None]:
    """Epochs of `batches` steps each, and the steps of the last one (None: all of them)."""
    if config.steps is None:
        return config.epochs, None
    epochs = -(-config.steps // batches)
    return epochs, config.steps - (epochs - 1) * batches


def start_embedding(
    source: FeatureSource,
    labels: Tensor,
    *,
    rows: Tensor,
    own: Tensor | None,
    class_count: int,
    loss_config: LossConfig,
    config: EmbeddingConfig,
    context: PhaseContext,
    guidance: Guidance | None,
) -> tuple[TrainedHead, MetricLoss, torch.optim.Optimizer, int]:
    """Head, loss and optimizer, new or as the checkpoint has them, and the epoch to go on with."""
    generator = phase_generator(context.seed, "embedding", 0)
    centre, width = source.centre, config.width
    if config.start == "whitened":
        assert own is not None
        head: TrainedHead = _start_whitened(centre, labels, rows=rows, own=own, embedding_dim=width)
    else:
        head = EmbeddingHead(centre.shape[1], embedding_dim=width, generator=generator)
    loss_module = build_loss(
        loss_config, class_count=class_count, embedding_dim=width, generator=generator, guidance=guidance
    )
    if config.start == "whitened" and isinstance(loss_module, ProxyLoss):
        assert own is not None
        loss_module.start_at(_class_means(head, centre, labels, rows=rows, own=own, count=class_count))
    head, loss_module = head.to(context.device), loss_module.to(context.device)
    groups = [
        {"params": list(head.parameters()), "lr": config.lr, "weight_decay": config.weight_decay},
        *loss_module.parameter_groups(proxy_lr=config.proxy_lr, weight_decay=config.weight_decay),
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    found = context.load()
    if found is None:
        return head, loss_module, optimizer, 1
    tensors, state = found
    unpack_module(head, tensors, name="head")
    unpack_module(loss_module, tensors, name="loss")
    unpack_optimizer(optimizer, tensors)
    return head, loss_module, optimizer, state["epoch"] + 1


def _start_whitened(
    centre: Tensor, labels: Tensor, *, rows: Tensor, own: Tensor, embedding_dim: int
) -> WhitenedHead:
    rows = rows.to(centre.device)
    projection = fit_within_classes(
        centre[rows].cpu().numpy(),
        labels[rows].cpu().numpy(),
        weights=own[rows].cpu().numpy(),
        embedding_dim=embedding_dim,
    )
    weight, bias = torch.from_numpy(projection.weight), torch.from_numpy(projection.bias)
    return WhitenedHead(weight, bias, embedding_dim=embedding_dim)


@torch.inference_mode()
def _class_means(
    head: TrainedHead, centre: Tensor, labels: Tensor, *, rows: Tensor, own: Tensor, count: int
) -> Tensor:
    """(C, D) mean embedding of every class, samples weighed by confidence; 0 for a class without images."""
    sums = torch.zeros(count, head.embedding_dim)
    for part in rows.split(4096):
        sums.index_add_(0, labels[part].cpu(), own[part, None].cpu() * head(centre[part].cpu()))
    return nn.functional.normalize(sums)
