"""Training loops of the two phases: first the confidence module, then the embedding head with its proxies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from index.errors import RunError
from training.backbone.extract import FeatureSource
from training.confidence.confidences import ConfidenceModule, Confidences, rows_at_once
from training.head.embedding_heads import EmbeddingHead, Head, WhitenedHead
from training.head.untrained import fit_within_classes
from training.losses.guidance import Guidance
from training.losses.interface import Batch, MetricLoss, ProxyLoss, build_loss
from training.options.config import ConfidenceConfig, EmbeddingConfig
from training.options.losses import LossConfig
from training.run.checkpoint import pack_modules, pack_optimizer, unpack_module, unpack_optimizer
from training.run.phases import (
    EpochReport,
    PhaseContext,
    count_batches,
    draw_batches,
    phase_generator,
    require_finite,
)

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
    return WhitenedHead(projection.weight, projection.bias, embedding_dim=embedding_dim)


@torch.inference_mode()
def _class_means(
    head: TrainedHead, centre: Tensor, labels: Tensor, *, rows: Tensor, own: Tensor, count: int
) -> Tensor:
    """(C, D) mean embedding of every class, samples weighed by confidence; 0 for a class without images."""
    sums = torch.zeros(count, head.embedding_dim)
    for part in rows.split(4096):
        sums.index_add_(0, labels[part].cpu(), own[part, None].cpu() * head(centre[part].cpu()))
    return nn.functional.normalize(sums)


CHECKPOINTS = 10  # of phase 2, where it is counted in steps


def split_holdout(count: int, *, holdout: float, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers of the images that train phase 1 and of those held out of it, both sorted int64."""
    order = torch.randperm(count, generator=phase_generator(seed, "confidence", 0))
    held = round(holdout * count)
    return order[held:].sort().values, order[:held].sort().values


def fit_confidence(
    source: FeatureSource,
    labels: Tensor,
    *,
    class_count: int,
    config: ConfidenceConfig,
    batch_size: int,
    weight_decay: float,
    context: PhaseContext,
) -> ConfidenceModule:
    """Phase 1: binary cross-entropy on the given labels, stopped early by held-out images.

    The mean runs over all N x C targets. The weights of the epoch with the lowest held-out loss are returned (the
    last ones where nothing is held out).

    Args:
        source: features of N training images.
        labels: (N,) int64 given labels in 0..class_count-1.
        batch_size, weight_decay: of AdamW's steps.
    """
    train_rows, held_rows = split_holdout(len(labels), holdout=config.holdout, seed=context.seed)
    generator = phase_generator(context.seed, "confidence", 0)
    module = ConfidenceModule(
        source.centre.shape[1], hidden=config.confidence_hidden, class_count=class_count, generator=generator
    ).to(context.device)
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=config.confidence_lr, weight_decay=weight_decay, fused=True
    )
    best = _BestWeights.of(module)
    first_epoch = 1
    found = context.load()
    if found is not None:
        tensors, state = found
        unpack_module(module, tensors, name="module")
        unpack_optimizer(optimizer, tensors)
        best.restore(tensors, state, device=context.device)
        first_epoch = state["epoch"] + 1
    for epoch in range(first_epoch, config.confidence_epochs + 1):
        if best.waited >= config.patience:
            break
        started = time.perf_counter()
        generator = phase_generator(context.seed, "confidence", epoch)
        total = torch.zeros((), device=context.device)
        for rows in draw_batches(train_rows, batch_size, generator):
            features, targets = source.batch(rows, generator=generator), labels[rows]
            optimizer.zero_grad()
            parts = rows_at_once(class_count)  # of a batch, at a time: its gradients add up
            for seen, given in zip(features.split(parts), targets.split(parts), strict=True):
                loss = _cross_entropy(module, seen, given) / (len(rows) * class_count)
                loss.backward()
                total += loss.detach() * len(rows)
            optimizer.step()
        held_loss = _held_out_loss(module, source.centre, labels, rows=held_rows)
        best.note(module, held_loss)
        seconds = time.perf_counter() - started
        context.on_epoch(
            EpochReport(
                phase="confidence",
                epoch=epoch,
                epochs=config.confidence_epochs,
                loss=require_finite(total.item() / len(train_rows), phase="confidence", epoch=epoch),
                seconds=seconds,
                images_per_second=len(train_rows) / seconds,
                held_out_loss=held_loss,
            )
        )
        tensors = pack_modules(module=module) | pack_optimizer(optimizer) | best.pack()
        context.save(tensors, state={"epoch": epoch, **best.state()})
    module.load_state_dict(best.weights)
    return module.eval().requires_grad_(False)


def _cross_entropy(module: ConfidenceModule, features: Tensor, labels: Tensor) -> Tensor:
    """() sum of the binary cross-entropies of (B, F) features with the one-hot targets of (B,) labels."""
    logits = module.logits(features)
    targets = torch.zeros_like(logits).scatter_(1, labels[:, None], 1.0)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")


@torch.inference_mode()
def _held_out_loss(module: ConfidenceModule, centre: Tensor, labels: Tensor, *, rows: Tensor) -> float | None:
    if not len(rows):
        return None
    total, class_count = 0.0, module.classify.out_features
    for part in rows.split(rows_at_once(class_count)):
        total += _cross_entropy(module, centre[part], labels[part]).item()
    return total / (len(rows) * class_count)


@dataclass(slots=True)
class _BestWeights:
    """The weights of the epoch with the lowest held-out loss so far, and for how many epochs none was better."""

    weights: dict[str, Tensor]
    loss: float = float("inf")
    waited: int = 0

    @classmethod
    def of(cls, module: nn.Module) -> _BestWeights:
        return cls({name: tensor.clone() for name, tensor in module.state_dict().items()})

    def note(self, module: nn.Module, held_loss: float | None) -> None:
        """Take the module's weights if they are better, or if nothing tells."""
        if held_loss is not None and held_loss >= self.loss:
            self.waited += 1
            return
        self.waited = 0
        self.loss = self.loss if held_loss is None else held_loss
        self.weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def pack(self) -> dict[str, Tensor]:
        return {f"best.{name}": tensor for name, tensor in self.weights.items()}

    def state(self) -> dict[str, Any]:
        return {"best_loss": self.loss, "waited": self.waited}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any], *, device: torch.device) -> None:
        self.weights = {name: tensors[f"best.{name}"].to(device) for name in self.weights}
        self.loss, self.waited = state["best_loss"], state["waited"]


@torch.no_grad()
def _project_once(head: TrainedHead, source: FeatureSource) -> Tensor | None:
    """(N, K) coordinates of all images on a whitened head's directions, where every image has the one cached view."""
    if not isinstance(head, WhitenedHead) or source.views != 1:
        return None
    return torch.cat([head.project(part) for part in source.centre.split(4096)])


def fit_embedding(
    source: FeatureSource,
    labels: Tensor,
    *,
    class_count: int,
    loss_config: LossConfig,
    config: EmbeddingConfig,
    confidences: Confidences | None,
    context: PhaseContext,
    rows: Tensor | None = None,
    own: Tensor | None = None,
    guidance: Guidance | None = None,
    on_head: Callable[[int, TrainedHead], None] | None = None,
) -> Head:
    """Phase 2: the embedding head and the loss's own parameters, confidences frozen; the last weights are kept.

    The confidence and the embedding of a step come from the same view. A whitened head is held near its start by
    `hold` times its drift, and proxies begin at the class means of that start.

    Args:
        source: features of N training images.
        labels: (N,) int64 given labels; Smooth Proxy-Anchor does not look at them.
        confidences: from phase 1; None for methods without.
        rows: sorted numbers of the images that take part; None for all.
        own: (N,) confidence of every image in its label, for a whitened start and for losses that weigh samples.
        guidance: similarities for ProcSim's language-guidance term.
        on_head: called with (epoch, head) after every epoch.
    """
    weighs = loss_config.weighs_samples
    if loss_config.needs_confidences and confidences is None:
        raise ValueError(f"{loss_config.method} needs the confidence module of phase 1")
    if own is None and (weighs or config.start == "whitened"):
        raise ValueError("sample weights and a whitened start need the confidences of phase 1")
    rows = torch.arange(len(labels)) if rows is None else rows.cpu()
    if not len(rows):
        raise RunError(
            "no training image is left for phase 2: none is as confident as --min-confidence asks; "
            "lower it, in a new --out"
        )
    head, loss_module, optimizer, first_epoch = start_embedding(
        source,
        labels,
        rows=rows,
        own=own,
        class_count=class_count,
        loss_config=loss_config,
        config=config,
        context=context,
        guidance=guidance,
    )
    together: dict[str, Any] = {"labels": labels.cpu()[rows], "images_per_class": config.images_per_class}
    epochs, last_steps = count_epochs(config, count_batches(size=config.batch_size, **together))
    # Steps on few images are many epochs of one step each: a file for each would outlast the training.
    checkpoint_every = 1 if config.steps is None else max(1, epochs // CHECKPOINTS)
    coordinates = _project_once(head, source)
    for epoch in range(first_epoch, epochs + 1):
        started = time.perf_counter()
        generator = phase_generator(context.seed, "embedding", epoch)
        seen = 0
        total = torch.zeros((), device=context.device)
        positives = torch.zeros(2, device=context.device)  # positives, samples without one
        batches = draw_batches(rows, config.batch_size, generator, **together)
        for drawn in islice(batches, last_steps if epoch == epochs else None):
            features = source.batch(drawn, generator=generator)
            batch = Batch(
                labels[drawn],
                drawn,
                None if confidences is None else confidences.batch(drawn, features),
                own[drawn] if own is not None and weighs else None,
            )
            if isinstance(head, WhitenedHead):
                known = head.project(features) if coordinates is None else coordinates[drawn]
                found = loss_module.measure(head.mix_directions(known), batch)
                loss = found.value + config.penalty * head.drift()
            else:
                found = loss_module.measure(head(features), batch)
                loss = found.value
            if found.positives is not None:
                positives += torch.stack([found.positives.sum(), (found.positives == 0).sum()])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(drawn)
            seen += len(drawn)
        seconds = time.perf_counter() - started
        shares = (positives / seen).tolist() if confidences is not None else [None, None]
        context.on_epoch(
            EpochReport(
                phase="embedding",
                epoch=epoch,
                epochs=epochs,
                loss=require_finite(total.item() / seen, phase="embedding", epoch=epoch),
                seconds=seconds,
                images_per_second=seen / seconds,
                positives_per_sample=shares[0],
                share_without_positive=shares[1],
            )
        )
        if on_head is not None:
            on_head(epoch, head)
        if epoch % checkpoint_every == 0 or epoch == epochs:
            tensors = pack_modules(head=head, loss=loss_module) | pack_optimizer(optimizer)
            context.save(tensors, state={"epoch": epoch})
    trained = head.fold() if isinstance(head, WhitenedHead) else head
    return trained.eval().requires_grad_(False)
