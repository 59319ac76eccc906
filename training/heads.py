"""Both phases on features at hand, as the run and its trial do them: whom to believe, then the head."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from training.confidences import Beliefs, believe_module, believe_others, rows_to_trust
from training.config import TrainConfig
from training.fit import fit_confidence, fit_embedding
from training.loss_config import NEEDS_CONFIDENCES
from training.losses.guidance import Guidance
from training.model import Head
from training.phases import PhaseContext
from training.sources import FeatureSource
from training.start import TrainedHead


def needs_beliefs(config: TrainConfig) -> bool:
    """Whether the loss, its start or the choice of images asks how far labels are believed."""
    return (
        config.loss.method in NEEDS_CONFIDENCES
        or config.loss.sample_weights == "confidence"
        or config.embedding.start == "whitened"
        or config.confidence.min_confidence is not None
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
        config: of the run.
        context: seed, device, checkpoint (leave-one-out takes seconds and keeps none).
        groups: (N,) int64, the same for copies of one picture, which must not vouch for each other.

    Raises:
        RunError: training diverged.
    """
    if config.confidence.confidences == "leave-one-out":
        return believe_others(source, labels, class_count=class_count, groups=groups)
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

    Raises:
        InputError: a whitened start is wider than the images allow.
        RunError: training diverged, or `--min-confidence` leaves no image.
    """
    least, rows = config.confidence.min_confidence, None
    if least is not None and beliefs is not None:
        rows = rows_to_trust(beliefs.own, min_confidence=least).cpu()
    uses = config.loss.method in NEEDS_CONFIDENCES and beliefs is not None
    head = fit_embedding(
        source,
        labels,
        class_count=class_count,
        loss_config=config.loss,
        config=config.embedding,
        confidences=beliefs.confidences if uses and beliefs is not None else None,
        context=context,
        rows=rows,
        own=None if beliefs is None else beliefs.own,
        guidance=guidance,
        on_head=on_head,
    )
    return head, len(labels) if rows is None else len(rows)
