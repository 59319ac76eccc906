"""Which samples are positive for which proxies, and how much each pair counts, a chunk of proxies at a time.

So the loss of Proxy-Anchor and its kin holds matrices of B samples and some proxies, never of all: neither a mask nor
confidences are (B, C), unless they are given as such.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PairChunk:
    """The pairs of B samples with c proxies that follow each other.

    Attributes:
        columns: (K,) int64 of 0..c-1, rising: the proxies among them that have a positive.
        positive: (B, K) bool; every other pair of the chunk is negative.
        pull_weights: (B, K) of the positive pairs; None: 1.
        push_weights: (B, c) of the negative pairs; None: 1.
    """

    columns: Tensor
    positive: Tensor
    pull_weights: Tensor | None = None
    push_weights: Tensor | None = None


class Pairs(Protocol):
    """All pairs of a batch."""

    def chunk(self, start: int, stop: int, *, dtype: torch.dtype) -> PairChunk:
        """Those with the proxies start..stop-1, weights in this type."""


class LabelPairs:
    """A sample is positive for the proxy of its label alone.

    Args:
        labels: (B,) int64.
    """

    def __init__(self, labels: Tensor) -> None:
        self._labels, self._present = labels, labels.unique()
        self._sorted: list[int] = self._present.tolist()

    def chunk(self, start: int, stop: int, *, dtype: torch.dtype) -> PairChunk:
        classes = self._present[bisect_left(self._sorted, start) : bisect_left(self._sorted, stop)]
        return PairChunk(classes - start, self._labels[:, None] == classes)


class ClassColumns(Protocol):
    """(B, C) confidences of a batch that are made as they are read, some classes at a time."""

    def columns(self, start: int, stop: int) -> Tensor:
        """(B, stop - start) in 0..1, of the classes start..stop-1."""


class ConfidencePairs:
    """A sample is positive for the proxies whose class it shows with a confidence above lambda, strictly.

    A pair counts as much as the smoothing function says: w = sigmoid(beta (c - lambda)) where it is positive and 1 - w
    where it is negative. Both are sigmoid(beta |c - lambda|), at least a half: nothing underflows.

    Args:
        confidences: (B, C) in 0..1, or its columns on demand.
    """

    def __init__(self, confidences: Tensor | ClassColumns, *, lambda_: float, beta: float) -> None:
        self._confidences, self._lambda, self._beta = confidences, lambda_, beta

    def chunk(self, start: int, stop: int, *, dtype: torch.dtype) -> PairChunk:
        found = read_columns(self._confidences, start, stop)
        positive = positive_proxies(found, lambda_=self._lambda)
        columns = positive.any(dim=0).nonzero()[:, 0]
        evidence = self._beta * (found.to(dtype) - self._lambda)
        pull_weights = evidence[:, columns].sigmoid_()
        return PairChunk(columns, positive[:, columns], pull_weights, evidence.neg_().sigmoid_())


def read_columns(confidences: Tensor | ClassColumns, start: int, stop: int) -> Tensor:
    """(B, stop - start) confidences in the classes start..stop-1, constants to autograd."""
    if isinstance(confidences, Tensor):
        return confidences.detach()[:, start:stop]
    return confidences.columns(start, stop).detach()


def positive_proxies(confidences: Tensor, *, lambda_: float) -> Tensor:
    """(B, C) bool: the proxies a sample is positive for, confidence strictly above lambda; may be several or none."""
    return torch.gt(confidences, lambda_)
