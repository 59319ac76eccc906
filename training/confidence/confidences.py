"""Label confidences of phase 1: the confidence module, leave-one-out, and what losses read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from index.labels.leave_one_out import LeaveOneOut, LeftOut, SumMoments, own_against_others, sum_moments
from training.backbone.extract import FeatureSource
from training.losses.interface import ClassColumns

KEPT = 64


@dataclass(frozen=True, slots=True)
class TopConfidences:
    """(N, C) confidences as the K largest of every image, and the mean of all others.

    A small deviation from the paper. Of confidences that sum to 1 none of the others is above 1 / 64, where the weights
    1 - w of Smooth Proxy-Anchor (beta 100, lambda 0.1) lie between .9997 and 1. The confidence module may exceed that.

    Attributes:
        classes, values: (N, K) int64, and float32 in 0..1.
        rest: (N,) float32 in 0..1, the mean of the others.
    """

    classes: Tensor
    values: Tensor
    rest: Tensor

    @classmethod
    def of(cls, blocks: Iterable[Tensor]) -> TopConfidences:
        """From (B, C) blocks of confidences of all images."""
        parts = []
        for block in blocks:
            values, classes = block.topk(min(KEPT, block.shape[1]), dim=1)
            others = max(block.shape[1] - values.shape[1], 1)
            rest = (block.sum(dim=1, dtype=torch.float64) - values.sum(dim=1, dtype=torch.float64)) / others
            parts.append((classes, values, rest.clamp(min=0).to(values.dtype)))
        return cls(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def take(self, rows: Tensor) -> TopConfidences:
        """Those of some images."""
        return TopConfidences(*(part[rows] for part in self._parts()))

    def to(self, device: torch.device) -> TopConfidences:
        """The same on a device."""
        return TopConfidences(*(part.to(device) for part in self._parts()))

    def columns(self, start: int, stop: int) -> Tensor:
        """(N, stop - start) of the classes start..stop-1."""
        found = self.rest[:, None].repeat(1, stop - start)
        inside = (start <= self.classes) & (self.classes < stop)
        found[inside.nonzero()[:, 0], self.classes[inside] - start] = self.values[inside]
        return found

    def place(self, rows: Tensor, classes: Tensor, *, count: int) -> TopConfidences:
        """As `rows` (N,) of `count` images, 0 for the others; class c becomes `classes[c]`."""
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

    def columns(self, features: Tensor) -> ModuleColumns:
        """The same confidences of (B, F) features by columns: (B, C) is never held."""
        hidden = nn.functional.relu(self.reduce(features))
        return ModuleColumns(hidden, self.classify.weight, self.classify.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) features to (B, C) confidences in 0..1."""
        return torch.sigmoid(self.logits(features))


@dataclass(frozen=True, slots=True)
class ModuleColumns:
    """(B, C) confidences as factors: (B, hidden) after the ReLU, weight (C, hidden) and bias (C,)."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def columns(self, start: int, stop: int) -> Tensor:
        """(B, stop - start) in 0..1, of the classes start..stop-1."""
        return nn.functional.linear(self.hidden, self.weight[start:stop], self.bias[start:stop]).sigmoid_()


_FIXED_VALUES = 1 << 28  # N x C confidences that are kept in memory at most: 1 GiB
_BLOCK_VALUES = 1 << 24  # of a block: 64 MiB
_BLOCK_ROWS = 4096


class Confidences(Protocol):
    """Confidences of every training image in every class, from phase 1."""

    def batch(self, rows: Tensor, features: Tensor) -> Tensor | ClassColumns:
        """(B, C) in 0..1 of the images `rows` (B,) seen as `features` (B, F), at once or by columns."""

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, (B, C)) of all images in order, block by block, by their centre crops."""


class ViewConfidences:
    """The confidence module, computed anew for every view."""

    def __init__(self, module: ConfidenceModule, centre: Tensor) -> None:
        self._module, self._centre = module, centre

    @torch.no_grad()
    def batch(self, rows: Tensor, features: Tensor) -> ClassColumns:
        return self._module.columns(features)

    @torch.inference_mode()
    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = rows_at_once(self._module.classify.out_features)
        for rows in torch.arange(len(self._centre), device=self._centre.device).split(size):
            yield rows, self._module(self._centre[rows])


def fit_in_memory(count: int, class_count: int) -> bool:
    """Whether N x C confidences are kept in memory."""
    return count * class_count <= _FIXED_VALUES


def rows_at_once(class_count: int) -> int:
    """Images per block of confidences."""
    return max(1, min(_BLOCK_ROWS, _BLOCK_VALUES // class_count))


class FixedConfidences:
    """(N, C) confidences in memory, which do not depend on the view."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def batch(self, rows: Tensor, features: Tensor) -> Tensor:
        return self.values[rows]

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.arange(len(self.values), device=self.values.device).split(4096):
            yield rows, self.values[rows]


class LeaveOneOutConfidences:
    """Leave-one-out confidences, computed on demand; the view does not matter."""

    def __init__(self, left_out: LeaveOneOut, *, count: int, device: torch.device) -> None:
        self._left_out, self._count, self._device = left_out, count, device

    def batch(self, rows: Tensor, features: Tensor) -> ClassColumns:
        return _LeftOutColumns(self._left_out.leave_out(rows.cpu().numpy()), self._device)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.arange(self._count, device=self._device).split(rows_at_once(self._left_out.count)):
            yield rows, torch.from_numpy(self._left_out.confidences(rows.cpu().numpy())).to(self._device)


@dataclass(frozen=True, slots=True)
class _LeftOutColumns:
    """Leave-one-out confidences of some images, by columns."""

    found: LeftOut
    device: torch.device

    def columns(self, start: int, stop: int) -> Tensor:
        """(B, stop - start) in 0..1, of the classes start..stop-1."""
        return torch.from_numpy(self.found.confidences(start, stop)).to(self.device)


@dataclass(frozen=True, slots=True)
class LabelConfidences:
    """Label confidences of the N training images, from phase 1.

    Attributes:
        own: (N,) float32 confidence of every image in its own label.
        by_class: confidences in all classes.
        weights: (N,) float32 in 0..1 for weighted losses: the confidence of the module; of leave-one-out
            (p(y) / (p(y) + max of p(c) over other c))^2, as its p(y) alone is small for right labels too where classes
            are many, alike or rare.
    """

    own: Tensor
    by_class: Confidences
    weights: Tensor

    @classmethod
    def of(cls, confidences: Confidences, labels: Tensor, *, against_others: bool = False) -> LabelConfidences:
        """With weights by the own confidences, alone or against those in other classes."""
        own, weights = [], []
        for rows, found in confidences.blocks():
            own.append(found.gather(1, labels[rows, None])[:, 0])
            if against_others:
                against = own_against_others(found.cpu().numpy(), labels[rows].cpu().numpy())
                weights.append(torch.from_numpy(against).to(found.device).square())
        return cls(torch.cat(own), confidences, torch.cat(weights or own))


def confidences_of_module(module: ConfidenceModule, source: FeatureSource, labels: Tensor) -> LabelConfidences:
    """Confidences of a trained confidence module."""
    return LabelConfidences.of(make_confidences(module, source), labels)


def leave_one_out_confidences(
    source: FeatureSource, labels: Tensor, *, class_count: int, groups: Tensor | None,
    moments: SumMoments = sum_moments,
) -> LabelConfidences:  # fmt: skip
    """Confidences of a classifier fitted without the image and its near-duplicates (`groups`)."""
    device, given = source.centre.device, labels.cpu().numpy()
    left_out = LeaveOneOut(
        source.centre.float().cpu().numpy(),
        given,
        count=class_count,
        groups=None if groups is None else groups.cpu().numpy(),
        moments=moments,
    )
    if not fit_in_memory(len(given), class_count):
        asked = LeaveOneOutConfidences(left_out, count=len(given), device=device)
        return LabelConfidences.of(asked, labels, against_others=True)
    values = np.empty((len(given), class_count), dtype=np.float32)
    for rows, confidences in left_out.blocks():
        values[rows] = confidences
    return LabelConfidences.of(FixedConfidences(torch.from_numpy(values).to(device)), labels, against_others=True)


def make_confidences(module: ConfidenceModule, source: FeatureSource) -> Confidences:
    """Fixed where every image has one view and they fit into memory."""
    if source.views == 1 and fit_in_memory(len(source.centre), module.classify.out_features):
        return FixedConfidences(compute_confidences(module, source.centre))
    return ViewConfidences(module, source.centre)


@torch.inference_mode()
def compute_confidences(module: ConfidenceModule, features: Tensor) -> Tensor:
    """(N, F) features to (N, C) confidences, in blocks."""
    return torch.cat([module(part) for part in features.split(rows_at_once(module.classify.out_features))])


def rows_to_trust(own_confidences: Tensor, *, min_confidence: float) -> Tensor:
    """Sorted int64 rows of the (N,) samples whose own label has at least this confidence.

    The "without noise" variants of Smooth Proxy-Anchor's Table 1, where lambda_c is 0.1.
    """
    return torch.nonzero(own_confidences >= min_confidence)[:, 0]
