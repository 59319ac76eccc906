"""Data of fine-tuning: labels with their confidences, and the held-out images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from index.arrays import Floats, Ids, Labels
from index.evaluation.metrics import RetrievalScores
from index.labels.noise_model import LabelPrior
from index.progress import Progress
from training.confidence.confidences import (
    Confidences,
    LabelConfidences,
    TopConfidences,
    estimate_posteriors,
    fit_in_memory,
    pool_posteriors,
)
from training.head.untrained import LabelledFeatures
from training.options.losses import LossConfig
from training.run.distributed import current_team
from training.run.finetuning.inputs import FinetuneInputs
from training.run.holdout import Split, plan_fold_searches

GALLERY = 10  # images of a class that those held out of it search: enough to compare weights, at a third of the cost
ALPHAS = (0.25, 0.5, 0.75)  # interpolations of the weights that are compared
_POOLED_FROM = 0.1  # estimated share of wrong labels from which posteriors of a refresh are pooled
Embed = Callable[[np.ndarray], Floats]
"""(n,) row numbers to (n, D) float32 unit rows."""


@dataclass(frozen=True, slots=True)
class FinetuneData:
    """Images of a run, for fine-tuning.

    `labels` (N,) are the used ones, `copies` and `groups` as in `LabelledFeatures`. `posteriors` (N, C) of the true
    class decide the score; None: the used labels do.
    """

    labels: Labels
    class_count: int
    split: Split
    copies: Ids | None = None
    groups: Ids | None = None
    posteriors: csr_array | None = None
    prior: LabelPrior | None = None

    def labelled(self, features: Floats, rows: Ids | slice = slice(None)) -> LabelledFeatures:
        """All images, or those of `rows`, with their (n, F) features."""
        copies, groups = (None if part is None else part[rows] for part in (self.copies, self.groups))
        return LabelledFeatures(features, self.labels[rows], copies, groups)

    def estimate_posteriors(self, features: Floats) -> LabelConfidences:
        """Posteriors of all images by their (N, F) fine-tuned features."""
        return estimate_posteriors(
            torch.from_numpy(features),
            torch.from_numpy(self.labels),
            class_count=self.class_count,
            groups=None if self.copies is None else torch.from_numpy(self.copies),
            prior=self.prior,
        )

    def with_held_out_posteriors(self, estimated: LabelConfidences) -> "FinetuneData":
        """Copy in which posteriors by fine-tuned features replace those of the held-out images.

        Posteriors by one network's features favour its embedding. Images that train keep those by frozen features: the
        network has memorised wrong labels among them, and would call these right.
        """
        if self.posteriors is None:
            return self
        rows, held_out = np.arange(len(self.labels)), np.concatenate([self.split.unseen, self.split.seen])
        rows[held_out] += len(rows)
        return replace(self, posteriors=vstack([self.posteriors, estimated.posteriors()], format="csr")[rows])

    def score(self, embed: Embed) -> dict[str, float]:
        """MAP@R by part, as `search` finds it."""
        return mean_precisions(self.search(embed))

    def search(self, embed: Embed) -> dict[str, RetrievalScores]:
        """Scores of the held-out images by part: `unseen` classes among themselves, `seen` ones in a gallery.

        Parts in which nothing can be found are left out. By given labels, networks that learnt the wrong ones find
        more, so the posteriors say what is relevant. On few images with wrong labels, MAP@R tells better weights
        where Recall@1 does not.
        """
        searched = Split(self._choose_gallery(), self.split.unseen, self.split.seen)
        rows = self.searched_rows()
        embedded = embed(rows)
        embeddings = np.zeros((len(self.labels), embedded.shape[1]), dtype=np.float32)
        embeddings[rows] = embedded
        parts = plan_fold_searches(self.labelled(embeddings), searched, posteriors=self.posteriors)
        return {part: found.score(found.features) for part, found in parts.items()}

    def searched_rows(self) -> Ids:
        """Images that `score` embeds, sorted."""
        return np.unique(np.concatenate([self._choose_gallery(), self.split.unseen, self.split.seen]))

    def _choose_gallery(self) -> Ids:
        """The first training images of every class with held-out images."""
        train = self.split.train
        if not len(self.split.seen):
            return train[:0]
        labels = self.labels[train]
        order = np.argsort(labels, kind="stable")
        sizes = np.bincount(labels, minlength=self.class_count)
        ranks = np.empty(len(train), dtype=np.int64)
        ranks[order] = np.arange(len(train)) - np.repeat(sizes.cumsum() - sizes, sizes)
        wanted = np.isin(labels, np.unique(self.labels[self.split.seen]))
        return train[(ranks < GALLERY) & wanted]


def mean_precisions(found: Mapping[str, RetrievalScores]) -> dict[str, float]:
    """MAP@R by part."""
    return {part: float(scores.average_precision.mean()) for part, scores in found.items()}


def read_together(inputs: FinetuneInputs, rows: Ids, *, progress: Progress = lambda *_: None) -> Tensor:
    """(n, F) float32 features of the images `rows` by the current backbone, on rank 0; each rank computes a part."""
    team = current_team()
    own = rows[team.part_of(len(rows))]
    read = inputs.read_features(own if len(own) else rows[:1], progress=progress)[: len(own)]
    return torch.cat(team.collect_values(read) or [read[:0]])


def confidences_for(loss: LossConfig, confidences: LabelConfidences) -> Confidences | None:
    """(N, C) confidences that a loss reads, on the CPU; None where it reads none."""
    return confidences.by_class.to(torch.device("cpu")) if loss.needs_confidences else None


def pack_confidences(confidences: Confidences | None) -> dict[str, Tensor]:
    """Tensors for a checkpoint."""
    if isinstance(confidences, TopConfidences):
        return {f"confidences.top.{name}": getattr(confidences, name) for name in TopConfidences.__slots__}
    return {} if confidences is None else {"confidences.confidences": confidences}


def unpack_confidences(tensors: dict[str, Tensor]) -> Confidences | None:
    """Confidences from the tensors of `pack_confidences`."""
    top = [tensors.get(f"confidences.top.{name}") for name in TopConfidences.__slots__]
    kept = [part for part in top if part is not None]
    return TopConfidences(*kept) if kept else tensors.get("confidences.confidences")


def reestimate_confidences(
    features: Tensor, data: FinetuneData, loss: LossConfig, *, initial: Confidences | None = None
) -> Confidences | None:
    """Posteriors of the images that train, by the features of the network, among all images and classes.

    Where at least a tenth of the labels is estimated to be wrong, they are pooled with the `initial` ones, by frozen
    features: those of a network in training become overconfident. Where nearly all labels are right, frozen features
    would take images from their class from which the network learns most.
    """
    train, count = data.split.train, len(data.labels)
    classes, numbers = np.unique(data.labels[train], return_inverse=True)
    estimated = estimate_posteriors(
        features,
        torch.from_numpy(numbers),
        class_count=len(classes),
        groups=None if data.copies is None else torch.from_numpy(data.copies[train]),
        prior=None if data.prior is None else data.prior.take(train, classes=classes, labels=numbers),
    )
    found = confidences_for(loss, estimated)
    if found is None:
        return None
    placed: Confidences
    if isinstance(found, Tensor) and fit_in_memory(count, data.class_count):
        placed = torch.zeros(count, data.class_count)
        placed[np.ix_(train, classes)] = found
    else:
        top = TopConfidences.of([found]) if isinstance(found, Tensor) else found
        placed = top.place(torch.from_numpy(train), torch.from_numpy(classes), count=count)
    if initial is None or (estimated.noise_rate or 0) < _POOLED_FROM:
        return placed
    return pool_posteriors(initial, placed, class_count=data.class_count)
