"""Label confidences of phase 1: the confidence module, leave-one-out, and what losses read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn

from index.arrays import Floats, Ids, Labels, Mask
from index.labels.label_errors import apply_decisions_to_p_error, second_pass
from index.labels.noise_model import MOST_VALUES, LabelPrior, NoiseModel, fit_frequency_model
from index.labels.simulated_noise import ErrorCalibration, LabelScores, estimate_p_error, score_labels
from index.progress import Progress, no_progress
from training.losses.interface import read_columns

KEPT = 64
_NEGLIGIBLE = 1e-3  # posteriors; the product of two images without them is at most .002 smaller


@dataclass(frozen=True, slots=True)
class TopConfidences:
    """(N, C) confidences as the K largest of every image, and the mean of all others.

    A small deviation from the paper. Of confidences that sum to 1 the others are below 1 / 64, where the weights
    1 - w of Smooth Proxy-Anchor (beta 100, lambda 0.1) lie between .9997 and 1. The confidence module may exceed that.

    Attributes:
        classes, values: (N, K) int64, and float32 in 0..1.
        rest: (N,) float32 in 0..1, the mean of the others.
    """

    classes: Tensor
    values: Tensor
    rest: Tensor

    @classmethod
    def of(cls, blocks: Iterable[Tensor]) -> "TopConfidences":
        """Confidences from (B, C) blocks over all images."""
        parts = []
        for block in blocks:
            values, classes = block.topk(min(KEPT, block.shape[1]), dim=1)
            others = max(block.shape[1] - values.shape[1], 1)
            rest = (block.sum(dim=1, dtype=torch.float64) - values.sum(dim=1, dtype=torch.float64)) / others
            parts.append((classes, values, rest.clamp(min=0).to(values.dtype)))
        return cls(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def device(self) -> torch.device:
        return self.classes.device

    def take(self, rows: Tensor) -> "TopConfidences":
        """Confidences of some images."""
        return TopConfidences(*(part[rows] for part in self._parts()))

    def to(self, device: torch.device) -> "TopConfidences":
        """Copy on a device."""
        return TopConfidences(*(part.to(device) for part in self._parts()))

    def columns(self, start: int, stop: int) -> Tensor:
        """(N, stop - start) of the classes start..stop-1."""
        found = self.rest[:, None].repeat(1, stop - start)
        inside = (start <= self.classes) & (self.classes < stop)
        found[inside.nonzero()[:, 0], self.classes[inside] - start] = self.values[inside]
        return found

    def place(self, rows: Tensor, classes: Tensor, *, count: int) -> "TopConfidences":
        """Confidences of `count` images: these at `rows` (N,), 0 for the others; class c becomes `classes[c]`."""
        wider = [torch.zeros(count, *part.shape[1:], dtype=part.dtype) for part in self._parts()]
        for whole, part in zip(wider, (classes[self.classes], self.values, self.rest), strict=True):
            whole[rows] = part
        return TopConfidences(*wider)

    def _parts(self) -> list[Tensor]:
        return [getattr(self, part.name) for part in fields(self)]


class ConfidenceModule(nn.Module):
    """Linear(F, hidden), ReLU, Linear(hidden, C), sigmoid: the confidence of a sample in each class."""

    def __init__(self, feature_dim: int, *, hidden: int, class_count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.reduce = nn.Linear(feature_dim, hidden)
        self.classify = nn.Linear(hidden, class_count)
        nn.init.kaiming_normal_(self.reduce.weight, nonlinearity="relu", generator=generator)
        nn.init.xavier_uniform_(self.classify.weight, generator=generator)
        nn.init.zeros_(self.reduce.bias)
        nn.init.zeros_(self.classify.bias)

    def logits(self, features: Tensor) -> Tensor:
        """(B, F) features to (B, C) logits."""
        return self.classify(nn.functional.relu(self.reduce(features)))

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) features to (B, C) confidences in 0..1."""
        return torch.sigmoid(self.logits(features))


_FIXED_VALUES = 1 << 28  # N x C confidences that are kept in memory at most: 1 GiB
_BLOCK_VALUES = 1 << 24  # of a block: 64 MiB
_BLOCK_ROWS = 4096
_MOST_TRANSITIONS = 4096  # classes whose transitions are a matrix
NO_NOISE = NoiseModel(0.0, 1.0, np.zeros((1, 1)))
Confidences = Tensor | TopConfidences
"""(N, C) confidences; those that do not fit into memory as the largest of every image."""


def fit_in_memory(count: int, class_count: int) -> bool:
    """Whether N x C confidences are kept in memory."""
    return count * class_count <= _FIXED_VALUES


def rows_at_once(class_count: int) -> int:
    """Images per block of confidences."""
    return max(1, min(_BLOCK_ROWS, _BLOCK_VALUES // class_count))


def take_rows(confidences: Confidences, rows: Tensor) -> Confidences:
    """Confidences of some images."""
    return confidences[rows] if isinstance(confidences, Tensor) else confidences.take(rows)


@dataclass(frozen=True, slots=True)
class LabelConfidences:
    """Label confidences of the N training images, from phase 1.

    `own` (N,) float32 in 0..1 is the module's confidence in the image's label, or its own posterior; `by_class` has all
    classes. `noise` is the noise model of the posteriors, `noise_rate` the estimated share of wrong labels among those
    that other images have, images that show no class among them; both are None for the confidence module.
    """

    own: Tensor
    by_class: Confidences
    class_count: int
    noise: NoiseModel | None = None
    noise_rate: float | None = None

    @classmethod
    def of(
        cls,
        by_class: Confidences,
        labels: Tensor,
        *,
        class_count: int,
        noise: NoiseModel | None = None,
        noise_rate: float | None = None,
    ) -> "LabelConfidences":
        """Label confidences from confidences in all classes and (N,) labels."""
        all_classes = cls(torch.empty(0), by_class, class_count, noise, noise_rate)
        own = [found.gather(1, labels[rows, None])[:, 0] for rows, found in all_classes.blocks()]
        return replace(all_classes, own=torch.cat(own))

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, (B, C)) of all images in order, block by block."""
        rows = torch.arange(len(self.by_class), device=self.by_class.device)
        for part in rows.split(rows_at_once(self.class_count)):
            yield part, read_columns(take_rows(self.by_class, part), 0, self.class_count)

    def to_json(self) -> dict[str, float | None]:
        """Mean confidence in the labels, with the estimated noise rate and the power of posteriors, for the report."""
        found: dict[str, float | None] = {"mean": float(self.own.cpu().numpy().mean())}
        return found if self.noise is None else {**found, "noise_rate": self.noise_rate, "power": self.noise.power}

    def posteriors(self) -> csr_array | None:
        """(N, C) float32 posteriors of the true class, without those below .001; None for the confidence module."""
        if self.noise is None:
            return None
        blocks = (block.cpu().numpy() for _, block in self.blocks())
        return vstack([csr_array(np.where(block < _NEGLIGIBLE, 0, block)) for block in blocks], format="csr")


@torch.inference_mode()
def confidences_of_module(module: ConfidenceModule, features: Tensor, labels: Tensor) -> LabelConfidences:
    """Confidences of a trained confidence module for (N, F) features with (N,) labels."""
    class_count = module.classify.out_features
    blocks = (module(part) for part in features.split(rows_at_once(class_count)))
    fits = fit_in_memory(len(features), class_count)
    by_class = torch.cat(list(blocks)) if fits else TopConfidences.of(blocks)
    return LabelConfidences.of(by_class, labels, class_count=class_count)


def estimate_posteriors(
    features: Tensor,
    labels: Tensor,
    *,
    class_count: int,
    groups: Tensor | None,
    prior: LabelPrior | None = None,
    progress: Progress = no_progress,
) -> LabelConfidences:
    """Posteriors of the true class, given the label and the confidences of the label-error detection's two passes.

    The noise model's rate and power are fitted by maximum likelihood. Posteriors of an image that shows no class (see
    `index.labels.simulated_noise`) with probability p are multiplied by 1 - p. Near-duplicates (equal `groups`) are
    left out together; a label that no other image has is taken as right.

    Features are (N, F), labels and groups (N,) int64; without groups every image is alone. The `prior` are
    probabilities that labels are right, from those who set them.
    """
    device, given, count = features.device, labels.cpu().numpy(), len(labels)
    own_groups = None if groups is None else groups.cpu().numpy()
    # Leave-one-out predicts a label that an image outside the own group has, too.
    pairs = np.unique(np.stack([given, np.arange(count) if own_groups is None else own_groups], axis=1), axis=0)
    known = (np.bincount(pairs[:, 0], minlength=given.max() + 1)[given] > 1) & (class_count > 1)
    if not known.any():
        one_hot = nn.functional.one_hot(labels, class_count).float()
        return LabelConfidences.of(one_hot, labels, class_count=class_count, noise=NO_NOISE, noise_rate=0.0)
    p_right = None if prior is None else prior.p_right
    source = features.float().cpu().numpy()
    passes = second_pass(source, given, count=class_count, groups=own_groups, p_right=p_right, progress=progress)
    fitted = np.flatnonzero(known)
    if fit_in_memory(count, class_count) and class_count <= _MOST_TRANSITIONS:
        found = passes.hold(passes.blocks())
        calibration, noise = estimate_p_error(found[fitted], given[fitted])
        model = _PosteriorModel(noise, calibration, given, known, prior)
        for rows in np.array_split(np.arange(count), -(-count // rows_at_once(class_count))):
            found[rows] = model.posteriors(found[rows], rows)
        by_class: Confidences = torch.from_numpy(found)
    else:
        fitted = fitted[:: max(1, len(fitted) // max(1, MOST_VALUES // class_count))]
        sample = np.empty((len(fitted), class_count), dtype=np.float32)
        for rows, confidences in passes.blocks():
            inside = np.isin(rows, fitted)
            sample[np.searchsorted(fitted, rows[inside])] = confidences[inside]
        noise = fit_frequency_model(sample, given[fitted], count=class_count)
        scores = LabelScores.by_frequency(given[fitted], count=class_count)
        scores.add(np.arange(len(fitted)), sample)
        calibration = scores.calibrate(model_rate=noise.noise_rate)
        model, order = _PosteriorModel(noise, calibration, given, known, prior), list[Ids]()
        top = TopConfidences.of(model.posterior_blocks(passes.blocks(), order))
        by_class = top.take(torch.from_numpy(np.concatenate(order).argsort()))
    rate = apply_decisions_to_p_error(calibration.p_error, None if p_right is None else p_right[fitted])
    return LabelConfidences.of(
        by_class.to(device), labels, class_count=class_count, noise=noise, noise_rate=float(rate.mean())
    )


def pool_posteriors(first: Confidences, second: Confidences, *, class_count: int) -> Confidences:
    """Logarithmic opinion pool (Genest and Zidek 1986) of two (N, C) posteriors: their geometric mean, normalised.

    The sum of a row, the probability that the image shows a class, is the geometric mean of both sums; 0 where no class
    is possible by both. A tensor `second` is overwritten.
    """

    def pool(rows: Tensor) -> Tensor:
        a, b = (read_columns(take_rows(one, rows), 0, class_count) for one in (first, second))
        mean, shows_one = a.sqrt() * b.sqrt(), (a.sum(dim=1, keepdim=True) * b.sum(dim=1, keepdim=True)).sqrt()
        return mean * (shows_one / mean.sum(dim=1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny))

    blocks = torch.arange(len(first)).split(rows_at_once(class_count))
    if not isinstance(second, Tensor):
        return TopConfidences.of(pool(rows) for rows in blocks)
    for rows in blocks:
        second[rows] = pool(rows)
    return second


@dataclass(frozen=True, slots=True)
class _PosteriorModel:
    """Posteriors of N images with these labels; a label of which nothing is `known` (N,) is taken as right."""

    noise: NoiseModel
    calibration: ErrorCalibration
    labels: Labels
    known: Mask
    prior: LabelPrior | None

    def posteriors(self, confidences: Floats, rows: Ids) -> Floats:
        """(B, C) posteriors from (B, C) confidences of the images `rows` (B,)."""
        found, labels, known = np.zeros(confidences.shape, dtype=np.float32), self.labels[rows], self.known[rows]
        found[~known, labels[~known]] = 1
        confidences, labels = confidences[known], labels[known]
        scores = score_labels(confidences, labels[:, None])[:, 0]
        shows_one = 1 - self.calibration.apply(scores, confidences.max(axis=1)).p_no_class
        prior = None if self.prior is None else self.prior.at(rows[known])
        if prior is not None:
            shows_one[prior.p_right == 1] = 1  # a person has seen what it shows
        found[known] = self.noise.posterior(confidences, labels, prior) * shows_one[:, None]
        return found

    def posterior_blocks(self, blocks: Iterable[tuple[Ids, Floats]], order: list[Ids]) -> Iterator[Tensor]:
        """(B, C) posteriors of all images, block by block; the rows of each are added to `order`."""
        for rows, confidences in blocks:
            order.append(rows)
            yield torch.from_numpy(self.posteriors(confidences, rows))


def rows_to_trust(own_confidences: Tensor, *, min_confidence: float) -> Tensor:
    """Sorted int64 rows of the (N,) samples whose own label has at least this confidence.

    The "without noise" variants of Smooth Proxy-Anchor's Table 1, where lambda_c is 0.1.
    """
    return torch.nonzero(own_confidences >= min_confidence)[:, 0]
