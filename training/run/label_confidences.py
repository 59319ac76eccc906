"""Label confidences (phase 1): by the confidence module of the SPA paper, or by a leave-one-out classifier."""

import math
import time
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from index.arrays import Floats
from index.labels.noise_model import LabelPrior
from index.progress import Progress, no_progress
from training.confidence.confidences import (
    ConfidenceModule,
    LabelConfidences,
    confidences_of_module,
    estimate_posteriors,
    rows_at_once,
    rows_to_trust,
)
from training.options.config import HeadConfig, TrainConfig
from training.run.checkpoint import pack_modules, pack_optimizer, unpack_module, unpack_optimizer
from training.run.phases import EpochReport, PhaseContext, TrainingJob, draw_batches, phase_generator, require_finite
from training.run.prepare import TrainingSet


def estimate_run_confidences(job: TrainingJob, training: TrainingSet) -> LabelConfidences | None:
    """Label confidences of a run, also in confidences.csv; None where nothing reads them."""
    if not job.config.needs_confidences:
        return None
    with job.measure("confidence"):
        leaves_out = job.config.head.confidences == "leave-one-out"
        found = estimate_confidences(
            training.on_device,
            training.labels,
            class_count=len(training.classes),
            config=job.config,
            context=job.context("confidence"),
            groups=torch.from_numpy(training.copies).to(job.machine.device) if leaves_out else None,
            prior=training.prior,
            progress=partial(job.watcher.on_images, "label posteriors"),
        )

        def list_suggestions() -> Iterator[list[object]]:
            for rows, block in found.blocks():
                values, numbers = block.topk(min(3, len(training.classes)), dim=1)
                for row, v, n in zip(rows.tolist(), values.tolist(), numbers.tolist(), strict=True):
                    image, ranked = training.images[row], zip(n, v, strict=True)
                    suggestions = [x for number, value in ranked for x in (training.classes[number], f"{value:.6f}")]
                    yield [image.path, image.given, image.used, f"{found.own[row].item():.6f}", *suggestions]

        job.run.write_confidences(list_suggestions())
    return found


def estimate_confidences(
    features: Tensor,
    labels: Tensor,
    *,
    class_count: int,
    config: TrainConfig,
    context: PhaseContext,
    groups: Tensor | None = None,
    prior: LabelPrior | None = None,
    progress: Progress = no_progress,
) -> LabelConfidences:
    """Confidences of N images in their (N,) given labels: of the module, or leave-one-out without checkpoint.

    `groups` (N,) int64 are equal for near-duplicates, which leave-one-out leaves out together; it reads the `prior` of
    the labels, too.
    """
    if config.head.confidences == "leave-one-out":
        return estimate_posteriors(
            features, labels, class_count=class_count, groups=groups, prior=prior, progress=progress
        )
    module = fit_confidence(features, labels, class_count=class_count, config=config.head, context=context)
    return confidences_of_module(module, features, labels)


def fit_confidence(
    features: Tensor, labels: Tensor, *, class_count: int, config: HeadConfig, context: PhaseContext
) -> ConfidenceModule:
    """Confidence module: binary cross-entropy on the given labels, with early stopping on held-out images.

    The mean runs over all N x C targets. Returns the weights with the lowest held-out loss (the last ones where nothing
    is held out).
    """
    train_rows, held_rows = split_holdout(len(labels), holdout=config.confidence_val_share, seed=context.seed)
    generator = phase_generator(context.seed, "confidence", 0)
    module = ConfidenceModule(
        features.shape[1], hidden=config.confidence_hidden, class_count=class_count, generator=generator
    ).to(context.device)
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=config.confidence_lr, weight_decay=config.weight_decay, fused=True
    )
    best, best_loss, waited, first_epoch = deepcopy(module), math.inf, 0, 1
    if (found := context.load()) is not None:
        tensors, state = found
        unpack_module(module, tensors, name="module")
        unpack_module(best, tensors, name="best")
        unpack_optimizer(optimizer, tensors)
        best_loss, waited, first_epoch = state["best_loss"], state["waited"], state["epoch"] + 1
    epochs = config.confidence_epochs
    for epoch in range(first_epoch, epochs + 1):
        if waited >= config.confidence_patience:
            break
        started = time.perf_counter()
        generator = phase_generator(context.seed, "confidence", epoch)
        batches = draw_batches(train_rows, config.head_batch_size, generator)
        loss = _run_epoch(module, optimizer, features, labels, batches=batches) / len(train_rows)
        held_loss = _held_out_loss(module, features, labels, rows=held_rows)
        waited += 1
        if held_loss is None or held_loss < best_loss:
            best.load_state_dict(module.state_dict())
            best_loss, waited = best_loss if held_loss is None else held_loss, 0
        require_finite(loss, phase="confidence", epoch=epoch)
        seconds = time.perf_counter() - started
        context.on_epoch(
            EpochReport("confidence", epoch, epochs, loss, seconds, len(train_rows) / seconds, held_out_loss=held_loss)
        )
        context.save(
            pack_modules(module=module, best=best) | pack_optimizer(optimizer),
            state={"epoch": epoch, "best_loss": best_loss, "waited": waited},
        )
    return best.eval().requires_grad_(False)


def _run_epoch(
    module: ConfidenceModule,
    optimizer: torch.optim.Optimizer,
    features: Tensor,
    labels: Tensor,
    *,
    batches: Iterable[Tensor],
) -> float:
    """Train on the batches of row numbers; returns the sum of the losses of all images, before each step."""
    class_count, total = module.classify.out_features, torch.zeros((), device=features.device)
    parts = rows_at_once(class_count)  # rows of a batch that are computed at a time: their gradients add up
    for rows in batches:
        optimizer.zero_grad()
        for seen, given in zip(features[rows].split(parts), labels[rows].split(parts), strict=True):
            loss = _cross_entropy(module, seen, given) / (len(rows) * class_count)
            loss.backward()
            total += loss.detach() * len(rows)
        optimizer.step()
    return total.item()


def split_holdout(count: int, *, holdout: float, seed: int) -> tuple[Tensor, Tensor]:
    """Sorted int64 row numbers of the images that train phase 1, and of those held out of it."""
    order = torch.randperm(count, generator=phase_generator(seed, "confidence", 0))
    held = round(holdout * count)
    return order[held:].sort().values, order[:held].sort().values


def _cross_entropy(module: ConfidenceModule, features: Tensor, labels: Tensor) -> Tensor:
    """() sum of the binary cross-entropies of (B, F) features with the one-hot targets of (B,) labels."""
    logits = module.logits(features)
    targets = torch.zeros_like(logits).scatter_(1, labels[:, None], 1.0)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")


@torch.inference_mode()
def _held_out_loss(module: ConfidenceModule, features: Tensor, labels: Tensor, *, rows: Tensor) -> float | None:
    if not len(rows):
        return None
    total, class_count = 0.0, module.classify.out_features
    for part in rows.split(rows_at_once(class_count)):
        total += _cross_entropy(module, features[part], labels[part]).item()
    return total / (len(rows) * class_count)


def choose_rows(confidences: LabelConfidences | None, *, config: TrainConfig) -> Tensor | None:
    """Sorted numbers of the images that `--min-confidence` leaves; None for all."""
    least = config.head.min_confidence
    if least is None or confidences is None:
        return None
    return rows_to_trust(confidences.own, min_confidence=least).cpu()


def known_weights(confidences: LabelConfidences | None, *, config: TrainConfig) -> Floats | None:
    """(N,) weight of each image, if leave-one-out has been computed."""
    if confidences is None or config.head.confidences != "leave-one-out":
        return None
    return confidences.own.cpu().numpy()
