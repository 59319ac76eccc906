"""Loss of Proxy-Anchor and its variants, computed in chunks of classes.

Every proxy has sums of its own over the batch, so the cosines of a chunk are computed, summed, turned into gradients,
and dropped, all in the forward pass. That costs the three products of a plain loss (cosines, gradients of embeddings
and proxies), and the memory of one chunk beside the gradients (those of the pull are kept apart until |P+| is known).
Neither a mask nor confidences are (B, C), unless they are given so.

exp needs no maximum where exponents are bounded: with alpha 32 none exceeds 40. Factors of a sample or a proxy
(margins, weights, denominators) scale the narrow sides of the products instead of the (B, c) powers.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from training.losses.interface import ClassColumns, Measured, read_columns

CHUNK_VALUES = 1 << 21  # cosines of a chunk on a CPU: 8 MiB
CHUNK_VALUES_ELSEWHERE = 1 << 24  # 64 MiB: a GPU wants few large products
SAFE_EXPONENTS = {torch.float32: 80.0, torch.float64: 700.0}  # exp of these and of minus these are normal numbers
LEAST_LENGTH = 1e-12  # as in torch.nn.functional.normalize


@dataclass(frozen=True, slots=True)
class PairChunk:
    """Pairs of B samples with c consecutive proxies.

    Attributes:
        columns: (K,) int64 of 0..c-1, sorted: the proxies with a positive.
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
    """Pairs by label: a sample is positive for the proxy of its own label, of (B,) int64, alone."""

    def __init__(self, labels: Tensor) -> None:
        self._labels, self._present = labels, labels.unique()
        self._sorted: list[int] = self._present.tolist()

    def chunk(self, start: int, stop: int, *, dtype: torch.dtype) -> PairChunk:
        classes = self._present[bisect_left(self._sorted, start) : bisect_left(self._sorted, stop)]
        return PairChunk(classes - start, self._labels[:, None] == classes)


class ConfidencePairs:
    """Pairs by confidence: a sample is positive for the proxies of classes with a confidence above lambda.

    Weights are w = sigmoid(beta (c - lambda)) of positive pairs and 1 - w of negative ones: both are sigmoid(beta |c -
    lambda|), at least a half, so that nothing underflows. `confidences` are (B, C) in 0..1, or columns.
    """

    def __init__(self, confidences: Tensor | ClassColumns, *, lambda_: float, beta: float) -> None:
        self._confidences, self._lambda, self._beta = confidences, lambda_, beta

    def chunk(self, start: int, stop: int, *, dtype: torch.dtype) -> PairChunk:
        found = read_columns(self._confidences, start, stop)
        positive = torch.gt(found, self._lambda)
        columns = positive.any(dim=0).nonzero()[:, 0]
        evidence = self._beta * (found.to(dtype) - self._lambda)
        pull_weights = evidence[:, columns].sigmoid_()
        return PairChunk(columns, positive[:, columns], pull_weights, evidence.neg_().sigmoid_())


def anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    pairs: Pairs,
    *,
    alpha: float,
    margins: Tensor | float,
    sample_margins: Tensor | None = None,
) -> Measured:
    """Mean pull over the proxies with positives, plus mean push over all proxies.

        1/|P+| sum_{p in P+} log(1 + sum_{x in X_p+} w_xp exp(-alpha (s(x,p) - m_p)))
      + 1/|P|  sum_{p in P } log(1 + sum_{x in X_p-} v_xp exp( alpha (s(x,p) + m_p)))

    An empty sum is exactly 0, and so is its gradient. A second derivative is a RuntimeError in the backward pass.

    Args:
        embeddings, proxies: (B, D) and (C, D), any norm.
        pairs: X_p+, w_xp and v_xp.
        margins: m, () or (C,).
        sample_margins: (B,) margins m_x of the push, instead of the proxies'.

    Returns:
        float32 whatever the autocast type, or float64 for float64 embeddings; 0 for an empty batch.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        unit = nn.functional.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
        columns = alpha * torch.as_tensor(margins, dtype=unit.dtype, device=unit.device)
        push_columns, push_rows = columns, None
        if sample_margins is not None:
            push_columns, push_rows = columns.new_zeros(()), alpha * sample_margins.to(unit.dtype)
        return Measured(
            *_ChunkedSums.apply(unit, proxies, columns, push_columns, push_rows, pairs, alpha, torch.is_grad_enabled())
        )


class _ChunkedSums(torch.autograd.Function):
    """Sums of exponentials of -alpha s or alpha s, with offsets of the proxy (`columns`) and of the sample (`rows`)."""

    @staticmethod
    def forward(
        ctx: Any,
        unit: Tensor,
        proxies: Tensor,
        pull_columns: Tensor,
        push_columns: Tensor,
        push_rows: Tensor | None,
        pairs: Pairs,
        alpha: float,
        keeps: bool,
    ) -> tuple[Tensor, Tensor]:
        keeps = keeps and any(ctx.needs_input_grad)
        pull = _Side(unit, -alpha, columns=pull_columns, rows=None, keeps_gradients=keeps)
        push = _Side(unit, alpha, columns=push_columns, rows=push_rows, keeps_gradients=keeps)
        batch, classes = len(unit), len(proxies)
        by_proxy = (torch.empty_like if batch else torch.zeros_like)(proxies) if keeps else None
        pulled: list[tuple[Tensor, Tensor]] = []  # apart: their share is known in the end
        positives = torch.zeros(batch, dtype=torch.int64, device=proxies.device)
        with_positive, push_share = 0, 1 / max(classes, 1)
        values = CHUNK_VALUES if unit.device.type == "cpu" else CHUNK_VALUES_ELSEWHERE
        step = max(1, values // max(batch, 1))
        for start in range(0, classes if batch else 0, step):
            places = slice(start, min(start + step, classes))
            lengths, directions = _normalise(proxies[places].to(unit.dtype))
            logits = push.scaled @ directions.T
            found = pairs.chunk(places.start, places.stop, dtype=logits.dtype)
            if len(found.columns):
                gradient = _add_pull(pull, logits, found, start, lengths=lengths, directions=directions)
                pulled += [] if gradient is None else [(start + found.columns, gradient)]
                positives += found.positive.sum(dim=1)
                with_positive += len(found.columns)
            gradient = push.add(logits, places, weights=found.push_weights, lengths=lengths, directions=directions)
            if by_proxy is not None and gradient is not None:
                torch.mul(gradient, push_share, out=by_proxy[places])
        pull_share = 1 / max(with_positive, 1)
        if by_proxy is not None:
            for columns, gradient in pulled:
                by_proxy.index_add_(0, columns, gradient.to(by_proxy.dtype), alpha=pull_share)
            by_pull, by_push = pull.gradients(pull_share), push.gradients(push_share)
            ctx.save_for_backward(by_pull[0] + by_push[0], by_proxy, by_pull[1], *by_push[1:])
        ctx.mark_non_differentiable(positives)
        return pull_share * pull.total + push_share * push.total, positives

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only where a graph of the gradients is asked for; what is kept has none
            raise RuntimeError("this loss has no second derivative: ask for its gradients without create_graph")
        found, others = ctx.saved_tensors, (None,) * 3
        if grad.device.type == "cpu" and grad.item() == 1:  # as in training: no second (C, D) tensor then
            return (*found, *others)
        return (*(None if part is None else part * grad.to(part.dtype) for part in found), *others)


def _normalise(proxies: Tensor) -> tuple[Tensor, Tensor]:
    """(c, 1) norms of (c, D) proxies, and (c, D) of unit length."""
    lengths = torch.linalg.vector_norm(proxies, dim=1, keepdim=True).clamp_(min=LEAST_LENGTH)
    return lengths, proxies / lengths


def _add_pull(
    pull: "_Side", logits: Tensor, found: PairChunk, start: int, *, lengths: Tensor, directions: Tensor
) -> Tensor | None:
    """Add the sums of the proxies with a positive, and remove their positives from the (B, c) logits of the push."""
    columns, is_every = found.columns, len(found.columns) == logits.shape[1]
    chosen = logits if is_every else logits[:, columns]
    gradient = pull.add(
        (-chosen).masked_fill_(~found.positive, -math.inf),
        start + columns,
        weights=found.pull_weights,
        lengths=lengths[columns],
        directions=directions[columns],
    )
    chosen.masked_fill_(found.positive, -math.inf)
    if not is_every:
        logits.index_copy_(1, columns, chosen)
    return gradient


class _Side:
    """One of the two sums, pull or push: its value, and its gradients accumulated over chunks.

    Args:
        unit: (B, D) normalised samples.
        scale: of their cosines in the exponents, alpha or -alpha.
        columns, rows: () or (C,), and (B,) offsets of the exponents; None: 0.
    """

    def __init__(
        self, unit: Tensor, scale: float, *, columns: Tensor, rows: Tensor | None, keeps_gradients: bool
    ) -> None:
        self._keeps, self._scale, self._columns, self._rows = keeps_gradients, scale, columns, rows
        self._is_bounded = _is_bounded(len(unit), abs(scale), columns, rows)
        self._factors = rows.exp()[:, None] if rows is not None and self._is_bounded else None  # beside the powers
        self.scaled = scale * unit
        self._weighed = self._times_factors(self.scaled)
        self.total, self._by_unit = unit.new_zeros(()), torch.zeros_like(unit)
        self._by_columns = torch.zeros_like(columns) if columns.requires_grad else None
        self._by_rows = torch.zeros_like(rows) if rows is not None and rows.requires_grad else None

    def add(
        self, logits: Tensor, places: Tensor | slice, *, weights: Tensor | None, lengths: Tensor, directions: Tensor
    ) -> Tensor | None:
        """Add the sums of c proxies; returns (c, D) their gradient, where gradients are kept.

        Args:
            logits: (B, c) cosines times the scale, minus infinity outside the sum; overwritten.
            places: of the proxies among all.
            weights: (B, c) of the terms; None: 1.
            lengths: (c, 1) norms of the proxies.
            directions: (c, D) the proxies, normalised; overwritten.
        """
        powers, shares = self._add_values(logits, places, weights=weights)
        if not self._keeps:
            return None
        if self._by_rows is not None:
            self._by_rows.addmv_(powers, shares)
        gradient = powers.T @ self._weighed
        along = (gradient * directions).sum(dim=1, keepdim=True)
        gradient.addcmul_(directions, along, value=-1).mul_(shares[:, None] / lengths)
        self._by_unit.addmm_(powers, directions.mul_(shares[:, None]))
        return gradient

    def _add_values(self, logits: Tensor, places: Tensor | slice, *, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, c) powers and (c,) shares: the gradient of log(1 + sum) by a logit is factor x power x share."""
        has_columns = self._columns.ndim > 0
        offsets = self._columns[places] if has_columns else self._columns
        tops = None
        if not self._is_bounded:
            logits += offsets if self._rows is None else offsets + self._rows[:, None]
            tops = logits.amax(dim=0).clamp(min=0)
            logits.sub_(tops)
        powers = logits.exp_()
        if weights is not None:
            powers.mul_(weights)
        if tops is None:
            scales = offsets.exp()
            sums = scales * (powers.sum(dim=0) if self._factors is None else self._factors[:, 0] @ powers)
            denominators, values = 1 + sums, sums.log1p()
        else:
            scales, sums = torch.ones_like(tops), powers.sum(dim=0)  # over exp(tops), and so is the 1
            denominators = (-tops).exp() + sums
            values = tops + denominators.log()
        self.total += values.sum()
        if self._by_columns is not None:
            slopes = sums / denominators
            self._by_columns[places if has_columns else ...] += slopes if has_columns else slopes.sum()
        return powers, scales / denominators

    def gradients(self, share: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradient of the sum by samples, columns and rows, times a factor; None where there is none."""
        by_rows = None if self._by_rows is None else self._times_factors(self._by_rows[:, None])[:, 0] * share
        by_columns = None if self._by_columns is None else self._by_columns * share
        return self._times_factors(self._by_unit) * (share * self._scale), by_columns, by_rows

    def _times_factors(self, values: Tensor) -> Tensor:
        """(B, n) values of the samples times their factors."""
        return values if self._factors is None else values * self._factors


def _is_bounded(batch: int, alpha: float, columns: Tensor, rows: Tensor | None) -> bool:
    """Whether sums of exponentials stay in the range of their type, so that no maximum is needed."""
    largest = alpha + math.log(max(batch, 1))
    for offsets in (columns, rows):
        if offsets is not None and offsets.numel():
            largest += max(0.0, offsets.max().item())
    return largest <= SAFE_EXPONENTS[columns.dtype]
