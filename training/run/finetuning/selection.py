"""Selection by held-out images: which interpolated weights are exported, and whether fine-tuned or frozen ones."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from index.arrays import Floats, Labels
from index.evaluation.comparison import paired_bootstrap
from index.evaluation.metrics import RetrievalScores
from index.progress import Progress
from training.head.untrained import fit_closed_form
from training.options.config import TrainConfig
from training.run.distributed import current_team
from training.run.finetuning.budget import OnImages
from training.run.finetuning.data import ALPHAS, FinetuneData, mean_precisions, read_together
from training.run.finetuning.fit import FinetuneLoop, Weights, load_weights
from training.run.searches import embed_features
from training.run.verdict import LEAST_CLASSES, PARTS

USUAL_ALPHA = 0.5  # unless another leads by more than a standard error
ONE_ERROR = 0.683  # share of draws within a standard error to either side
Parts = Mapping[str, RetrievalScores]
"""Scores on held-out images by part: `unseen` classes, `seen` ones."""


@torch.no_grad()
def interpolate_weights(start: Weights, trained: Weights, alpha: float) -> dict[str, Tensor]:
    """(1 - alpha) start + alpha trained (WiSE-FT, Wortsman et al. 2022), exact at 0 and 1."""
    return {name: torch.lerp(tensor, trained[name], alpha) for name, tensor in start.items()}


def load_exported(
    loop: FinetuneLoop, data: FinetuneData, config: TrainConfig, *, on_images: OnImages = lambda *_: None
) -> tuple[Floats | None, dict[str, Any]]:
    """Load the exported weights into the model; (N, F) float32 features by them, and the report of their choice.

    The weights are interpolated between the initial and the averaged ones. No features where no time was left to train.
    All processes call this.
    """
    if len(loop.epochs) == 1:
        return None, {}
    alpha, found = config.finetuning.wise_ft_alpha, dict[float, Parts]()
    if loop.chooses_alpha:
        for one in ALPHAS:
            parts = _search(loop, data, one, partial(on_images, f"weights {one:g} of the way"))
            found[one] = choose_parts(parts, purpose=config.for_)
        alpha = current_team().run_on_rank0(lambda: choose_alpha(found))
    alpha = USUAL_ALPHA if alpha is None else alpha
    load_weights(loop.model, interpolate_weights(loop.start, loop.average, alpha))
    rows, progress = np.arange(len(data.labels)), partial(on_images, "fine-tuned features")
    features = read_together(loop.inputs, rows, progress=progress).numpy()
    tried = {f"{one:g}": float(np.mean(list(mean_precisions(parts).values()))) for one, parts in found.items()}
    return features, {"wise_ft_alpha": alpha, "alphas": tried}


def _search(loop: FinetuneLoop, data: FinetuneData, alpha: float, progress: Progress) -> Parts:
    """Scores of the held-out images with weights at `alpha`, on rank 0, by posteriors on frozen features for all alike.

    The head is within-class whitening of the gallery: the one that trained is too close to its images to compare.
    """
    load_weights(loop.model, interpolate_weights(loop.start, loop.average, alpha))
    rows = data.searched_rows()
    features = read_together(loop.inputs, rows, progress=progress).numpy()
    if not current_team().is_first:
        return {}
    gallery = data.labelled(features, rows).take(np.flatnonzero(np.isin(rows, data.split.train)))
    head = fit_closed_form(gallery, embedding_dim=loop.model.head.embedding_dim)
    embedded = embed_features(head, features)
    return data.search(lambda wanted: embedded[np.searchsorted(rows, wanted)])


def choose_alpha(found: Mapping[float, Parts]) -> float:
    """The alpha with the best MAP@R, if it leads `USUAL_ALPHA` by more than a standard error.

    Among three equal values, another one than the default wins a third of the time. Fewer than 5 classes show nothing.
    """
    default = found[USUAL_ALPHA]
    if sum(len(np.unique(scores.labels)) for scores in default.values()) < LEAST_CLASSES:
        return USUAL_ALPHA
    leads = {alpha: measure_lead(parts, default) for alpha, parts in found.items()}
    best = max(leads, key=lambda alpha: leads[alpha][0])
    lead, error = leads[best]
    return best if lead > error else USUAL_ALPHA


def can_decide(labels: Labels) -> bool:
    """Whether images with these labels decide alone: those of two classes would show chance."""
    return len(np.unique(labels)) >= LEAST_CLASSES


def choose_parts(parts: Parts, *, purpose: str) -> Parts:
    """Part that `--for` names; all parts for `both`, or if too few classes of that part could be held out."""
    part = PARTS.get(purpose, "")
    return {part: parts[part]} if part in parts and can_decide(parts[part].labels) else parts


def measure_lead(parts: Parts, others: Parts) -> tuple[float, float]:
    """Lead in MAP@R over others, summed over the parts, and its standard error, by a bootstrap over classes."""
    leads = [
        paired_bootstrap(
            scores.average_precision, others[part].average_precision, seed=0, level=ONE_ERROR, clusters=scores.labels
        )
        for part, scores in parts.items()
    ]
    error = float(np.linalg.norm([lead.high - lead.low for lead in leads])) / 2
    return sum(lead.mean for lead in leads), error


def selects_finetuned(found: Mapping[str, Parts]) -> bool:
    """Whether the fine-tuned embedding is exported: unless the frozen one leads by a standard error in MAP@R.

    Few held-out images tell no better, and fine-tuning mostly helps. It is exported too where nothing was compared.
    """
    if not found:
        return True
    lead, error = measure_lead(found["fine-tuned"], found["frozen"])
    return lead > -error
