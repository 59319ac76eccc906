"""Confidences of many images in many classes, of which only the largest are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

KEPT = 64


@dataclass(frozen=True, slots=True)
class TopConfidences:
    """(N, C) confidences as the K largest of every image, and one number for all its others: their mean.

    A deviation from the paper, small where it matters. Of confidences that sum to 1 none of the others is above 1 / 64,
    where the weights 1 - w of Smooth Proxy-Anchor (beta 100, lambda 0.1) all lie between .9997 and 1. A confidence
    module may believe an image to be of more than 64 classes: those beyond count by their mean, as positive or not.

    Attributes:
        classes, values: (N, K) int64, and float32 in 0..1.
        rest: (N,) float32 in 0..1, the mean of the others.
    """

    classes: Tensor
    values: Tensor
    rest: Tensor

    @classmethod
    def of(cls, blocks: Iterable[Tensor]) -> TopConfidences:
        """From (B, C) confidences of all images, block after block."""
        parts = [_choose_top(block) for block in blocks]
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
        """As `rows` (N,) of `count` images, 0 of the others, where class c is the class `classes[c]` of more."""
        wider = [torch.zeros(count, *part.shape[1:], dtype=part.dtype) for part in self._parts()]
        for whole, part in zip(wider, (classes[self.classes], self.values, self.rest), strict=True):
            whole[rows] = part
        return TopConfidences(*wider)

    def _parts(self) -> list[Tensor]:
        return [getattr(self, part.name) for part in fields(self)]


def _choose_top(block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, classes = block.topk(min(KEPT, block.shape[1]), dim=1)
    others = max(block.shape[1] - values.shape[1], 1)
    rest = ((block.sum(dim=1, dtype=torch.float64) - values.sum(dim=1, dtype=torch.float64)) / others).clamp(min=0)
    return classes, values, rest.to(values.dtype)
