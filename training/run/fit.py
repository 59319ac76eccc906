"""Training loops on features: label confidences (phase 1), then the embedding head with its proxies (phase 2)."""

import math
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from index.arrays import Doubles, Floats, Labels
from index.errors import InputError, RunError
from index.labels.leave_one_out import Sums, Tell, sum_moments
from index.labels.noise_model import LabelPrior
from training.confidence.confidences import (
    ConfidenceModule,
    Confidences,
    LabelConfidences,
    confidences_of_module,
    estimate_posteriors,
    rows_at_once,
    rows_to_trust,
)
from training.head.embedding_heads import EmbeddingHead, Head, WhitenedHead
from training.head.untrained import fit_within_classes
from training.losses.guidance import Guidance
from training.losses.interface import Batch, MetricLoss, ProxyLoss, build_loss
from training.options.config import ConfidenceConfig, EmbeddingConfig, TrainConfig
from training.options.losses import LossConfig
from training.run.checkpoint import pack_modules, pack_optimizer, unpack_module, unpack_optimizer
from training.run.distributed import current_team
from training.run.phases import EpochReport, PhaseContext, count_batches, draw_batches, phase_generator, require_finite

TrainedHead = EmbeddingHead | WhitenedHead
CHECKPOINTS = 10  # of phase 2, where it is counted in steps


def estimate_confidences(
    features: Tensor,
    labels: Tensor,
    *,
    class_count: int,
    config: TrainConfig,
    context: PhaseContext,
    groups: Tensor | None = None,
    prior: LabelPrior | None = None,
) -> LabelConfidences:
    """Phase 1 on N images with (N,) given labels: the confidence module, or leave-one-out without checkpoint.

    `groups` (N,) int64 are equal for near-duplicates, which leave-one-out leaves out together; it reads the `prior` of
    the labels, too.
    """
    if config.confidence.confidences == "leave-one-out":
        return estimate_posteriors(
            features, labels, class_count=class_count, groups=groups, prior=prior, moments=sum_moments_together
        )
    module = fit_confidence(
        features,
        labels,
        class_count=class_count,
        config=config.confidence,
        batch_size=config.embedding.head_batch_size,
        weight_decay=config.embedding.weight_decay,
        context=context,
    )
    return confidences_of_module(module, features, labels)


def fit_confidence(
    features: Tensor,
    labels: Tensor,
    *,
    class_count: int,
    config: ConfidenceConfig,
    batch_size: int,
    weight_decay: float,
    context: PhaseContext,
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
    optimizer = torch.optim.AdamW(module.parameters(), lr=config.confidence_lr, weight_decay=weight_decay, fused=True)
    best, best_loss, waited, first_epoch = deepcopy(module), math.inf, 0, 1
    if (found := context.load()) is not None:
        tensors, state = found
        unpack_module(module, tensors, name="module")
        unpack_module(best, tensors, name="best")
        unpack_optimizer(optimizer, tensors)
        best_loss, waited, first_epoch = state["best_loss"], state["waited"], state["epoch"] + 1
    for epoch in range(first_epoch, config.confidence_epochs + 1):
        if waited >= config.confidence_patience:
            break
        started = time.perf_counter()
        generator = phase_generator(context.seed, "confidence", epoch)
        total = torch.zeros((), device=context.device)
        for rows in draw_batches(train_rows, batch_size, generator):
            drawn, targets = features[rows], labels[rows]
            optimizer.zero_grad()
            parts = rows_at_once(class_count)  # of a batch, at a time: its gradients add up
            for seen, given in zip(drawn.split(parts), targets.split(parts), strict=True):
                loss = _cross_entropy(module, seen, given) / (len(rows) * class_count)
                loss.backward()
                total += loss.detach() * len(rows)
            optimizer.step()
        held_loss = _held_out_loss(module, features, labels, rows=held_rows)
        waited += 1
        if held_loss is None or held_loss < best_loss:
            best.load_state_dict(module.state_dict())
            best_loss, waited = best_loss if held_loss is None else held_loss, 0
        loss_value = require_finite(total.item() / len(train_rows), phase="confidence", epoch=epoch)
        seconds = time.perf_counter() - started
        context.on_epoch(
            EpochReport(
                phase="confidence",
                epoch=epoch,
                epochs=config.confidence_epochs,
                loss=loss_value,
                seconds=seconds,
                images_per_second=len(train_rows) / seconds,
                held_out_loss=held_loss,
            )
        )
        context.save(
            pack_modules(module=module, best=best) | pack_optimizer(optimizer),
            state={"epoch": epoch, "best_loss": best_loss, "waited": waited},
        )
    return best.eval().requires_grad_(False)


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
def _held_out_loss(module: ConfidenceModule, centre: Tensor, labels: Tensor, *, rows: Tensor) -> float | None:
    if not len(rows):
        return None
    total, class_count = 0.0, module.classify.out_features
    for part in rows.split(rows_at_once(class_count)):
        total += _cross_entropy(module, centre[part], labels[part]).item()
    return total / (len(rows) * class_count)


def sum_moments_together(rows: Floats, parts: Doubles, labels: Labels, *, count: int, tell: Tell) -> Sums:
    """`sum_moments` on rank 0, with the rows shared among the ranks."""
    team = current_team()
    if team.size == 1:
        return sum_moments(rows, parts, labels, count=count, tell=tell)
    team.ask(_help_summing, count)
    slices = [team.part_of(len(rows), rank=rank) for rank in range(team.size)]
    own = team.hand_out([(rows[part], parts[part], labels[part]) for part in slices])
    return sum_moments(*own, count=count, tell=tell, add_up=team.add_up)


def _help_summing(count: int) -> None:
    team = current_team()
    own: tuple[Floats, Doubles, Labels] = team.hand_out(None)
    sum_moments(*own, count=count, add_up=team.add_up)


def choose_rows(confidences: LabelConfidences | None, *, config: TrainConfig) -> Tensor | None:
    """Sorted numbers of the images that `--min-confidence` leaves; None for all."""
    least = config.confidence.min_confidence
    if least is None or confidences is None:
        return None
    return rows_to_trust(confidences.own, min_confidence=least).cpu()


def known_weights(confidences: LabelConfidences | None, *, config: TrainConfig) -> Floats | None:
    """(N,) weight of each image, if leave-one-out has been computed."""
    if confidences is None or config.confidence.confidences != "leave-one-out":
        return None
    return confidences.own.cpu().numpy()


def require_directions(count: int, feature_dim: int, *, config: TrainConfig) -> None:
    """Refuse a width larger than the data allow, for methods in closed form, --init wccn and --select auto."""
    method = config.loss.method
    if config.embedding.embedding_dim is None or method == "raw":
        return
    if not config.loss.trains:
        what, instead = f"--method {method}", "--method raw"
    elif config.embedding.init == "wccn":
        what, instead = "--init wccn", "--init random"
    elif config.selection.select == "auto":
        what, instead = "--select auto", "--select trained"
    else:
        return
    spanned = max(0, min(feature_dim, count - 1))
    if config.embedding.width > spanned:
        raise InputError(
            f"--embedding-dim {config.embedding.width} exceeds what {what} can give: {count} images of "
            f"{feature_dim} features span at most {spanned} directions; lower it, or choose {instead}"
        )


def train_head(
    features: Tensor,
    labels: Tensor,
    *,
    class_count: int,
    config: TrainConfig,
    context: PhaseContext,
    confidences: LabelConfidences | None,
    guidance: Guidance | None = None,
    on_head: Callable[[int, TrainedHead], None] | None = None,
) -> tuple[Head, int]:
    """Phase 2: the head, and the number of images that it was trained on."""
    rows = choose_rows(confidences, config=config)
    reads = config.loss.needs_confidences and confidences is not None
    head = fit_embedding(
        features,
        labels,
        class_count=class_count,
        loss_config=config.loss,
        config=config.embedding,
        confidences=confidences.by_class if reads and confidences is not None else None,
        context=context,
        rows=rows,
        own=None if confidences is None else confidences.own,
        guidance=guidance,
        on_head=on_head,
    )
    return head, len(labels) if rows is None else len(rows)


def fit_embedding(
    features: Tensor,
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
    """Phase 2: the embedding head and the loss's own parameters, with fixed confidences; returns the last weights.

    A head initialised by WCCN has an L2-SP penalty, and the proxies start at the class means of that initialisation.

    Args:
        features: (N, F) of the training images.
        labels: (N,) int64 given labels; Smooth Proxy-Anchor does not read them.
        rows: sorted numbers of the images that take part; None for all.
        own: (N,) confidence of every image in its label, for a WCCN initialisation.
        on_head: called with (epoch, head) after every epoch.
    """
    is_whitened = config.init == "wccn"
    if loss_config.needs_confidences and confidences is None:
        raise ValueError(f"{loss_config.method} needs the label confidences of phase 1")
    if own is None and is_whitened:
        raise ValueError("--init wccn needs the confidences of phase 1")
    rows = torch.arange(len(labels)) if rows is None else rows.cpu()
    if not len(rows):
        raise RunError(
            "no training image is left for phase 2: none is as confident as --min-confidence asks; "
            "lower it, in a new --out"
        )
    head, loss_module, optimizer, first_epoch = start_embedding(
        features,
        labels,
        rows=rows,
        own=own if is_whitened else None,
        class_count=class_count,
        loss_config=loss_config,
        config=config,
        context=context,
        guidance=guidance,
    )
    together: dict[str, Any] = {"labels": labels.cpu()[rows], "images_per_class": config.images_per_class}
    epochs, last_steps = count_epochs(config, count_batches(size=config.head_batch_size, **together))
    # Steps on few images are many epochs of one step each: a file for each would outlast the training.
    checkpoint_every = 1 if config.head_steps is None else max(1, epochs // CHECKPOINTS)
    if isinstance(head, WhitenedHead):
        with torch.no_grad():  # (N, K), on its directions
            coordinates = torch.cat([head.project(part) for part in features.split(4096)])
    for epoch in range(first_epoch, epochs + 1):
        started = time.perf_counter()
        generator = phase_generator(context.seed, "embedding", epoch)
        seen, total = 0, torch.zeros((), device=context.device)
        positives = torch.zeros(2, device=context.device)  # positives, samples without one
        batches = draw_batches(rows, config.head_batch_size, generator, **together)
        for drawn in islice(batches, last_steps if epoch == epochs else None):
            known = None if confidences is None else confidences.batch(drawn)
            batch = Batch(labels[drawn], drawn, known)
            if isinstance(head, WhitenedHead):
                found = loss_module.measure(head.mix_directions(coordinates[drawn]), batch)
                loss = found.value + config.penalty * head.drift()
            else:
                found = loss_module.measure(head(features[drawn]), batch)
                loss = found.value
            if found.positives is not None:
                positives += torch.stack([found.positives.sum(), (found.positives == 0).sum()])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(drawn)
            seen += len(drawn)
        loss_value = require_finite(total.item() / seen, phase="embedding", epoch=epoch)
        seconds = time.perf_counter() - started
        shares = (positives / seen).tolist() if confidences is not None else [None, None]
        context.on_epoch(
            EpochReport(
                phase="embedding",
                epoch=epoch,
                epochs=epochs,
                loss=loss_value,
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


def start_embedding(
    features: Tensor,
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
    """Head, loss and optimizer, new or from the checkpoint, and the next epoch.

    With `own`, within-class whitening initialises the head, and mean embeddings of the classes the proxies; the proxy
    of a class without images is random.
    """
    generator = phase_generator(context.seed, "embedding", 0)
    width = config.width
    if own is None:
        head: TrainedHead = EmbeddingHead(features.shape[1], embedding_dim=width, generator=generator)
    else:
        there = rows.to(features.device)
        projection = fit_within_classes(
            features[there].cpu().numpy(),
            labels[there].cpu().numpy(),
            weights=own[there].cpu().numpy(),
            embedding_dim=width,
        )
        head = WhitenedHead(projection.weight, projection.bias, embedding_dim=width)
    loss_module = build_loss(
        loss_config, class_count=class_count, embedding_dim=width, generator=generator, guidance=guidance
    )
    if own is not None and isinstance(loss_module, ProxyLoss):
        means = mean_embeddings(
            lambda part: head(features[part].cpu()), labels.cpu(), rows, weights=own.cpu(), shape=(class_count, width)
        )
        loss_module.start_at(means)
    head, loss_module = head.to(context.device), loss_module.to(context.device)
    groups = [
        {"params": list(head.parameters()), "lr": config.head_lr, "weight_decay": config.weight_decay},
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


@torch.no_grad()
def mean_embeddings(
    embed: Callable[[Tensor], Tensor], labels: Tensor, rows: Tensor, *, weights: Tensor, shape: tuple[int, int]
) -> Tensor:
    """(C, D) unit mean embeddings of the images `rows` by class, weighted; 0 for an empty class. On the CPU."""
    sums = torch.zeros(shape)
    for part in rows.split(4096):
        sums.index_add_(0, labels[part], weights[part, None] * embed(part))
    return nn.functional.normalize(sums)


def count_epochs(config: EmbeddingConfig, batches: int) -> tuple[int, int | None]:
    """Epochs of `batches` steps each, and the steps of the last one (None: all of them)."""
    if config.head_steps is None:
        return config.head_epochs, None
    epochs = -(-config.head_steps // batches)
    return epochs, config.head_steps - (epochs - 1) * batches
