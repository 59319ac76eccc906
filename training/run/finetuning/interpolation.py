"""Interpolation of the initial and the trained weights, chosen by held-out images, and the features of the result."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from index.arrays import Floats
from index.evaluation.comparison import paired_bootstrap
from index.evaluation.metrics import RetrievalScores
from index.progress import Progress, no_progress
from training.head.embedding_heads import ProjectionHead
from training.head.untrained import LabelledFeatures, count_directions, fit_rival
from training.options.config import TrainConfig
from training.options.losses import WCCN
from training.run.distributed import current_team
from training.run.finetuning.data import ALPHAS, FinetuneData, mean_precisions, read_together
from training.run.finetuning.fit import FinetuneLoop, Weights, load_weights
from training.run.searches import embed_features
from training.run.verdict import PARTS

USUAL_ALPHA = 0.5  # unless another is better by more than chance
ONE_ERROR = 0.683  # share of draws within a standard error to either side
Parts = Mapping[str, RetrievalScores]
"""Scores on held-out images by part: `unseen` classes, `seen` ones."""


@torch.no_grad()
def interpolate_weights(start: Weights, trained: Weights, alpha: float) -> dict[str, Tensor]:
    """(1 - alpha) start + alpha trained (WiSE-FT, Wortsman et al. 2022), exact at 0 and 1."""
    return {name: torch.lerp(tensor, trained[name], alpha) for name, tensor in start.items()}


def load_exported(
    loop: FinetuneLoop, data: FinetuneData, config: TrainConfig, *, progress: Progress = no_progress
) -> tuple[Floats | None, dict[str, Any]]:
    """Load the exported weights into the model; (N, F) float32 features by them, and the report of their choice.

    The weights are interpolated between the initial and the averaged ones. No features where no time was left to train.
    All processes call this.
    """
    if len(loop.epochs) == 1:
        return None, {}
    found: dict[float, Parts] = {}
    alpha = config.finetuning.wise_ft_alpha
    if alpha is None:
        found = _search_alphas(loop, data)
        alpha = current_team().run_on_rank0(lambda: choose_alpha(found, purpose=config.for_))
    load_weights(loop.model, interpolate_weights(loop.start, loop.average, alpha))
    features = read_together(loop.inputs, np.arange(len(data.labels)), progress=progress).numpy()
    tried = {f"{one:g}": mean_precisions(parts) for one, parts in found.items()}
    return features, {"wise_ft_alpha": alpha, "alphas": tried}


def _search_alphas(loop: FinetuneLoop, data: FinetuneData) -> dict[float, Parts]:
    """Scores of the held-out images for each of `ALPHAS`, on rank 0, with a head fitted to some training images.

    Posteriors on frozen features are the judge of all. The trained head would not do: it has fitted its images.
    """
    rows, found = data.rows_to_compare(), dict[float, Parts]()
    if not loop.epochs[0].map_at_r:
        return found
    fitted = np.intersect1d(rows, data.split.train)
    for alpha in ALPHAS:
        load_weights(loop.model, interpolate_weights(loop.start, loop.average, alpha))
        features = read_together(loop.inputs, rows).numpy()
        if current_team().is_first:
            images = data.take(fitted, features[np.searchsorted(rows, fitted)])
            head = fit_closed_form(images, embedding_dim=loop.model.head.embedding_dim)
            embedded = embed_features(head, features)
            found[alpha] = data.search(lambda wanted: embedded[np.searchsorted(rows, wanted)])  # noqa: B023
    return found


def choose_alpha(found: Mapping[float, Parts], *, purpose: str) -> float:
    """The alpha with the best MAP@R for the purpose, if it leads `USUAL_ALPHA` by more than a standard error."""
    deciding = {alpha: choose_parts(parts, purpose=purpose) for alpha, parts in found.items()}
    if not deciding.get(USUAL_ALPHA):
        return USUAL_ALPHA
    leads = {alpha: compare_parts(parts, deciding[USUAL_ALPHA]) for alpha, parts in deciding.items()}
    best = max(leads, key=lambda alpha: leads[alpha][0])
    lead, error = leads[best]
    return best if lead > error else USUAL_ALPHA


def choose_parts(parts: Parts, *, purpose: str) -> Parts:
    """The part that `--for` names; all where that one could not be held out, or for both."""
    part = PARTS.get(purpose, "")
    return {part: parts[part]} if part in parts else parts


def compare_parts(parts: Parts, others: Parts) -> tuple[float, float]:
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
    lead, error = compare_parts(found["fine-tuned"], found["frozen"])
    return lead > -error


def fit_closed_form(images: LabelledFeatures, *, embedding_dim: int) -> ProjectionHead:
    """Within-class whitening, with rows of 0 where the images span fewer directions."""
    width = min(embedding_dim, count_directions(images.features))
    found = fit_rival(WCCN, images, embedding_dim=width)
    assert isinstance(found, ProjectionHead)
    missing = embedding_dim - width
    weight = nn.functional.pad(found.weight, (0, 0, 0, missing))
    return ProjectionHead(weight, nn.functional.pad(found.bias, (0, missing)))
