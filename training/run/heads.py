"""Confidences and head on features at hand, as the run and its holdout train them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from index.arrays import Floats, Labels
from index.errors import InputError
from index.labels.leave_one_out import Doubles, Sums, Tell, sum_moments
from training.backbone.extract import FeatureSource
from training.confidence.confidences import Beliefs, believe_module, believe_others, rows_to_trust
from training.head.embedding_heads import Head
from training.losses.guidance import Guidance
from training.options.config import TrainConfig
from training.run.distributed import current_team
from training.run.fit import TrainedHead, fit_confidence, fit_embedding
from training.run.phases import PhaseContext
from training.run.verdict import band_by_size

_SHOWN = 5  # classes that are believed least
_WEIGHT = "weight"


def summarise_beliefs(weights: Floats, labels: Labels, *, classes: Sequence[str]) -> dict[str, Any]:
    """Plain JSON values: the mean weight of all images, by class size, and of the classes that count least.

    Args:
        weights: (N,) in 0..1 how much each image counts.
        labels: (N,) int64 in 0..C-1.
        classes: the C names.
    """
    sizes = np.bincount(labels, minlength=len(classes))
    means = np.bincount(labels, weights=weights, minlength=len(classes)) / np.maximum(sizes, 1)
    least = [row for row in np.argsort(means, kind="stable").tolist() if sizes[row]][:_SHOWN]
    bands = band_by_size(sizes[labels], labels, {_WEIGHT: weights.astype(np.float64)})
    return {
        "mean_weight": float(weights.mean()),
        "by_class_size": [
            {"images": band["images"], "classes": band["classes"], "mean_weight": band["recall_at_1"][_WEIGHT]}
            for band in bands
        ],
        "least_believed": [
            {"class": classes[row], "images": int(sizes[row]), "mean_weight": float(means[row])} for row in least
        ],
    }


def sum_moments_together(rows: Floats, parts: Doubles, labels: Labels, *, count: int, tell: Tell) -> Sums:
    """As `sum_moments`, on rank 0: the others are handed their rows."""
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


def require_directions(count: int, feature_dim: int, *, config: TrainConfig) -> None:
    """Refuse a width that a closed-form method, a whitened start, or what `--select auto` may take, cannot have.

    Args:
        count: of images that train, or a number that it cannot exceed.
        feature_dim: F.
    """
    method = config.loss.method
    if config.embedding.embedding_dim is None or method == "raw":
        return
    if not config.loss.trains:
        what, instead = f"--method {method}", "--method raw"
    elif config.embedding.start == "whitened":
        what, instead = "--start whitened", "--start random"
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


def find_beliefs(
    source: FeatureSource,
    labels: Tensor,
    *,
    class_count: int,
    config: TrainConfig,
    context: PhaseContext,
    groups: Tensor | None = None,
) -> Beliefs:
    """Phase 1, by the confidence module or by leave-one-out.

    Args:
        source: features of N training images.
        labels: (N,) int64 given labels.
        class_count: C.
        context: seed, device, checkpoint (leave-one-out takes seconds and keeps none).
        groups: (N,) int64, the same for copies of one picture, which must not vouch for each other.
    """
    if config.confidence.confidences == "leave-one-out":
        return believe_others(source, labels, class_count=class_count, groups=groups, moments=sum_moments_together)
    module = fit_confidence(
        source,
        labels,
        class_count=class_count,
        config=config.confidence,
        batch_size=config.embedding.batch_size,
        weight_decay=config.embedding.weight_decay,
        context=context,
    )
    return believe_module(module, source, labels)


def choose_rows(beliefs: Beliefs | None, *, config: TrainConfig) -> Tensor | None:
    """Sorted numbers of the images that `--min-confidence` leaves for phase 2; None for all."""
    least = config.confidence.min_confidence
    if least is None or beliefs is None:
        return None
    return rows_to_trust(beliefs.own, min_confidence=least).cpu()


def train_head(
    source: FeatureSource,
    labels: Tensor,
    *,
    class_count: int,
    config: TrainConfig,
    context: PhaseContext,
    beliefs: Beliefs | None,
    guidance: Guidance | None = None,
    on_head: Callable[[int, TrainedHead], None] | None = None,
) -> tuple[Head, int]:
    """Phase 2: the head, and how many of the N images it was trained on.

    Arguments as those of `find_beliefs` and `fit_embedding`.
    """
    rows = choose_rows(beliefs, config=config)
    uses = config.loss.needs_confidences and beliefs is not None
    head = fit_embedding(
        source,
        labels,
        class_count=class_count,
        loss_config=config.loss,
        config=config.embedding,
        confidences=beliefs.confidences if uses and beliefs is not None else None,
        context=context,
        rows=rows,
        own=None if beliefs is None else beliefs.weights,
        guidance=guidance,
        on_head=on_head,
    )
    return head, len(labels) if rows is None else len(rows)
