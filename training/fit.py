"""The two training phases: first the confidence module, then the embedding head with its proxies.

Every random draw of an epoch comes from a generator seeded by (seed, phase, epoch), so that a resumed run goes on
with exactly the batches of an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from training.checkpoint import (
    load_checkpoint,
    pack_modules,
    pack_optimizer,
    save_checkpoint,
    unpack_module,
    unpack_optimizer,
)
from training.config import ConfidenceConfig, EmbeddingConfig, LossConfig
from training.losses.methods import NEEDS_CONFIDENCES, ProxyLoss
from training.losses.smooth_proxy_anchor import positive_proxies
from training.model import ConfidenceModule, EmbeddingHead
from training.sources import FeatureSource

PHASES = ("confidence", "embedding")


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch of one phase, as it is shown and written to the metrics file.

    `held_out_loss` is phase 1's; `positives_per_sample` and `share_without_positive` tell whether lambda suits the
    data, and are phase 2's for methods that use confidences.
    """

    phase: str
    epoch: int
    epochs: int
    loss: float
    seconds: float
    images_per_second: float
    held_out_loss: float | None = None
    positives_per_sample: float | None = None
    share_without_positive: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseContext:
    """What both phases need to know of the run.

    Attributes:
        seed: of initial weights, batches and views.
        device: of modules and features.
        checkpoint: file that is replaced after every epoch, and continued from where it exists.
        on_epoch: called after every epoch, before its checkpoint is written.
    """

    seed: int
    device: torch.device
    checkpoint: Path
    on_epoch: Callable[[EpochReport], None]


def phase_generator(seed: int, phase: str, epoch: int) -> torch.Generator:
    """The generator of one epoch's draws; epoch 0 is for initial weights."""
    generator = torch.Generator()
    generator.manual_seed((seed * len(PHASES) + PHASES.index(phase)) * 1_000_003 + epoch)
    return generator


def split_holdout(count: int, *, holdout: float, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers of the images that train phase 1 and of those held out of it, both sorted int64."""
    order = torch.randperm(count, generator=phase_generator(seed, "confidence", 0))
    held = round(holdout * count)
    return order[held:].sort().values, order[:held].sort().values


def _batches(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    return iter(rows[torch.randperm(len(rows), generator=generator)].split(size))


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
        context: seed, device, checkpoint.
    """
    train_rows, held_rows = split_holdout(len(labels), holdout=config.holdout, seed=context.seed)
    module = ConfidenceModule(
        source.centre.shape[1],
        hidden=config.confidence_hidden,
        class_count=class_count,
        generator=phase_generator(context.seed, "confidence", 0),
    ).to(context.device)
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=config.confidence_lr, weight_decay=weight_decay, fused=True
    )
    targets = nn.functional.one_hot(torch.arange(class_count)).to(device=context.device, dtype=torch.float32)
    best = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    best_loss, waited, first_epoch = float("inf"), 0, 1

    if context.checkpoint.exists():
        tensors, state = load_checkpoint(context.checkpoint)
        unpack_module(module, tensors, name="module")
        unpack_optimizer(optimizer, tensors)
        best = {
            name.removeprefix("best."): t.to(context.device)
            for name, t in tensors.items()
            if name.startswith("best.")
        }
        best_loss, waited, first_epoch = state["best_loss"], state["waited"], state["epoch"] + 1

    for epoch in range(first_epoch, config.confidence_epochs + 1):
        if waited >= config.patience:
            break
        started = time.perf_counter()
        generator = phase_generator(context.seed, "confidence", epoch)
        total = torch.zeros((), device=context.device)
        for rows in _batches(train_rows, batch_size, generator):
            logits = module.logits(source.batch(rows, generator=generator))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, targets[labels[rows]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        held_loss = _held_out_loss(module, source.centre, labels, rows=held_rows, targets=targets)
        if held_loss is None or held_loss < best_loss:
            best_loss, waited = held_loss if held_loss is not None else best_loss, 0
            best = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        else:
            waited += 1
        seconds = time.perf_counter() - started
        context.on_epoch(
            EpochReport(
                phase="confidence",
                epoch=epoch,
                epochs=config.confidence_epochs,
                loss=total.item() / len(train_rows),
                seconds=seconds,
                images_per_second=len(train_rows) / seconds,
                held_out_loss=held_loss,
            )
        )
        tensors = pack_modules(module=module) | pack_optimizer(optimizer)
        tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
        save_checkpoint(
            context.checkpoint, tensors, state={"epoch": epoch, "best_loss": best_loss, "waited": waited}
        )
    module.load_state_dict(best)
    return module.eval().requires_grad_(False)


@torch.inference_mode()
def _held_out_loss(
    module: ConfidenceModule, centre: Tensor, labels: Tensor, *, rows: Tensor, targets: Tensor
) -> float | None:
    if not len(rows):
        return None
    total = 0.0
    for part in rows.split(4096):
        logits = module.logits(centre[part])
        total += nn.functional.binary_cross_entropy_with_logits(
            logits, targets[labels[part]], reduction="sum"
        ).item()
    return total / (len(rows) * targets.shape[1])


def fit_embedding(
    source: FeatureSource,
    labels: Tensor,
    *,
    class_count: int,
    loss_config: LossConfig,
    config: EmbeddingConfig,
    confidence: ConfidenceModule | None,
    context: PhaseContext,
    on_head: Callable[[int, EmbeddingHead], None] | None = None,
) -> EmbeddingHead:
    """Phase 2: the embedding head and the proxies, with the confidence module frozen; the last weights are kept.

    The confidence and the embedding of a step come from the same view.

    Args:
        source: features of N training images.
        labels: (N,) int64 given labels; Smooth Proxy-Anchor does not look at them.
        confidence: the module that phase 1 trained; None for methods without one.
        context: seed, device, checkpoint.
        on_head: called with (epoch, head) after every epoch.

    Raises:
        ValueError: a method that needs confidences without a trained module (an untrained one says 0.5 of everything).
    """
    if loss_config.method in NEEDS_CONFIDENCES and confidence is None:
        raise ValueError(f"{loss_config.method} needs the confidence module of phase 1")
    generator = phase_generator(context.seed, "embedding", 0)
    head = EmbeddingHead(source.centre.shape[1], embedding_dim=config.embedding_dim, generator=generator)
    loss_module = ProxyLoss(
        loss_config, class_count=class_count, embedding_dim=config.embedding_dim, generator=generator
    )
    head, loss_module = head.to(context.device), loss_module.to(context.device)
    optimizer = torch.optim.AdamW(
        [
            {"params": list(head.parameters()), "lr": config.lr},
            {"params": list(loss_module.parameters()), "lr": config.proxy_lr},
        ],
        weight_decay=config.weight_decay,
        fused=True,
    )
    first_epoch = 1
    if context.checkpoint.exists():
        tensors, state = load_checkpoint(context.checkpoint)
        unpack_module(head, tensors, name="head")
        unpack_module(loss_module, tensors, name="loss")
        unpack_optimizer(optimizer, tensors)
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, config.epochs + 1):
        started = time.perf_counter()
        generator = phase_generator(context.seed, "embedding", epoch)
        total = torch.zeros((), device=context.device)
        positives = torch.zeros(2, device=context.device)  # positives, samples without one
        for rows in _batches(torch.arange(len(labels)), config.batch_size, generator):
            features = source.batch(rows, generator=generator)
            confidences = None
            if confidence is not None:
                with torch.no_grad():
                    confidences = confidence(features)
                chosen = positive_proxies(confidences, lambda_=loss_config.lambda_)
                positives += torch.stack([chosen.sum(), (~chosen.any(dim=1)).sum()])
            loss = loss_module(head(features), labels=labels[rows], confidences=confidences)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        seconds = time.perf_counter() - started
        shares = (positives / len(labels)).tolist() if confidence is not None else [None, None]
        context.on_epoch(
            EpochReport(
                phase="embedding",
                epoch=epoch,
                epochs=config.epochs,
                loss=total.item() / len(labels),
                seconds=seconds,
                images_per_second=len(labels) / seconds,
                positives_per_sample=shares[0],
                share_without_positive=shares[1],
            )
        )
        if on_head is not None:
            on_head(epoch, head)
        save_checkpoint(
            context.checkpoint,
            pack_modules(head=head, loss=loss_module) | pack_optimizer(optimizer),
            state={"epoch": epoch},
        )
    return head.eval().requires_grad_(False)


def report_line(report: EpochReport) -> dict[str, object]:
    """The epoch as one JSON line of the metrics file."""
    return {name: value for name, value in asdict(report).items() if value is not None}
