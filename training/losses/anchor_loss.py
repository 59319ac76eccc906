"""Loss of Proxy-Anchor and its variants, computed in chunks of classes.

Every proxy has sums of its own over the batch. So the cosines of a chunk are computed, summed, turned into gradients,
and dropped, all in the forward pass. That costs the three products of a plain loss (cosines, gradients of embeddings
and proxies), and the memory of one chunk beside the gradients (those of the pull are kept apart until |P+| is known).
Neither a mask nor confidences are (B, C), unless they are given so.

exp needs no maximum where exponents are bounded: with alpha 32 none exceeds 40. Factors of a proxy (margins,
denominators) scale the narrow sides of the products instead of the (B, c) powers.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from training.losses.interface import ClassColumns, read_columns

CHUNK_VALUES = 1 << 21  # cosines of a chunk on a CPU: 8 MiB
CHUNK_VALUES_ELSEWHERE = 1 << 24  # 64 MiB: a GPU wants few large products
SAFE_EXPONENTS = {torch.float32: 80.0, torch.float64: 700.0}  # exp of these and of minus these are normal numbers
LEAST_LENGTH = 1e-12  # as in torch.nn.functional.normalize

Pairs: TypeAlias = Callable[[int, int, torch.dtype], tuple[Tensor, Tensor, Tensor | None, Tensor | None]]
"""Pairs of B samples with the c proxies start..stop-1, weights in a type: `pairs(start, stop, dtype)` are

    columns (K,) int64 of 0..c-1, sorted: the proxies with a positive
    positive (B, K) bool; every other pair of the chunk is negative
    pull_weights (B, K) of the positive pairs, and push_weights (B, c) of the negative ones; None: 1
"""


def label_pairs(labels: Tensor) -> Pairs:
    """Pairs by label: a sample is positive for the proxy of its own label, of (B,) int64, alone."""
    present = labels.unique()
    known: list[int] = present.tolist()

    def pairs(start: int, stop: int, _: torch.dtype) -> tuple[Tensor, Tensor, None, None]:
        classes = present[bisect_left(known, start) : bisect_left(known, stop)]
        return classes - start, labels[:, None] == classes, None, None

    return pairs


def confidence_pairs(confidences: Tensor | ClassColumns, *, lambda_: float, beta: float) -> Pairs:
    """Pairs by confidence: a sample is positive for the proxies of classes with a confidence above lambda.

    Weights are w = sigmoid(beta (c - lambda)) of positive pairs and 1 - w of negative ones: both are sigmoid(beta |c -
    lambda|), at least a half, so that nothing underflows. `confidences` are (B, C) in 0..1, or columns.
    """

    def pairs(start: int, stop: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = read_columns(confidences, start, stop)
        positive = torch.gt(found, lambda_)
        columns = positive.any(dim=0).nonzero()[:, 0]
        evidence = beta * (found.to(dtype) - lambda_)
        pull_weights = evidence[:, columns].sigmoid_()
        return columns, positive[:, columns], pull_weights, evidence.neg_().sigmoid_()

    return pairs


def anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    pairs: Pairs,
    *,
    alpha: float,
    margins: Tensor | float,
    sample_margins: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
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
        The loss, float32 whatever the autocast type, or float64 for float64 embeddings; 0 for an empty batch. And (B,)
        int64, the number of proxies that each sample is positive for.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        unit = nn.functional.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
        columns = alpha * torch.as_tensor(margins, dtype=unit.dtype, device=unit.device)
        push_columns, push_rows = columns, None
        if sample_margins is not None:
            push_columns, push_rows = columns.new_zeros(()), alpha * sample_margins.to(unit.dtype)
        found: tuple[Tensor, Tensor] = _ChunkedLoss.apply(
            unit, proxies, columns, push_columns, push_rows, pairs, alpha, torch.is_grad_enabled()
        )
        return found


class _ChunkedLoss(torch.autograd.Function):
    """Exponents are -alpha s or alpha s, with offsets of the proxy (`columns`) and of the sample (`rows`)."""

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
        pulled: list[tuple[Tensor, Tensor | None]] = []  # apart: their share is known in the end
        positives = torch.zeros(batch, dtype=torch.int64, device=proxies.device)
        with_positive, push_share = 0, 1 / max(classes, 1)
        values = CHUNK_VALUES if unit.device.type == "cpu" else CHUNK_VALUES_ELSEWHERE
        step = max(1, values // max(batch, 1))
        for start in range(0, classes if batch else 0, step):
            places = slice(start, min(start + step, classes))
            directions = proxies[places].to(unit.dtype)  # (c, D)
            lengths = torch.linalg.vector_norm(directions, dim=1, keepdim=True).clamp_(min=LEAST_LENGTH)
            directions = directions / lengths
            logits = push.scaled @ directions.T  # (B, c)
            columns, positive, pull_weights, push_weights = pairs(places.start, places.stop, logits.dtype)
            if len(columns):
                chosen = logits if len(columns) == logits.shape[1] else logits[:, columns]
                pull_logits = (-chosen).masked_fill_(~positive, -math.inf)
                where = start + columns
                pulled.append(
                    (where, pull.add(pull_logits, where, pull_weights, lengths[columns], directions[columns]))
                )
                with_positive += len(columns)
                positives += positive.sum(dim=1)
                chosen.masked_fill_(positive, -math.inf)
                if chosen is not logits:
                    logits.index_copy_(1, columns, chosen)
            gradient = push.add(logits, places, push_weights, lengths, directions)
            if by_proxy is not None and gradient is not None:
                torch.mul(gradient, push_share, out=by_proxy[places])
        pull_share = 1 / max(with_positive, 1)
        if by_proxy is not None:
            for where, gradient in pulled:
                if gradient is not None:
                    by_proxy.index_add_(0, where, gradient.to(by_proxy.dtype), alpha=pull_share)
            by_pull, by_push = pull.gradients(pull_share), push.gradients(push_share)
            ctx.save_for_backward(by_pull[0] + by_push[0], by_proxy, by_pull[1], *by_push[1:])
        ctx.mark_non_differentiable(positives)
        return pull_share * pull.total + push_share * push.total, positives

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only with create_graph; kept tensors carry no graph
            raise RuntimeError("this loss has no second derivative: ask for its gradients without create_graph")
        found, others = ctx.saved_tensors, (None,) * 3
        if grad.device.type == "cpu" and grad.item() == 1:  # as in training: no second (C, D) tensor then
            return (*found, *others)
        return (*(None if part is None else part * grad.to(part.dtype) for part in found), *others)


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
        largest = abs(scale) + math.log(max(len(unit), 1))
        for offsets in (columns, rows):
            if offsets is not None and offsets.numel():
                largest += max(0.0, offsets.max().item())
        self._is_bounded = largest <= SAFE_EXPONENTS[columns.dtype]  # then no maximum is needed
        self.scaled, self.total = scale * unit, unit.new_zeros(())
        self._by_unit = torch.zeros_like(unit)
        self._by_columns = torch.zeros_like(columns) if columns.requires_grad else None
        self._by_rows = torch.zeros_like(rows) if rows is not None and rows.requires_grad else None

    def add(
        self, logits: Tensor, places: Tensor | slice, weights: Tensor | None, lengths: Tensor, directions: Tensor
    ) -> Tensor | None:
        """Add the sums of c proxies; returns (c, D) their gradient, where gradients are kept.

        Args:
            logits: (B, c) cosines times the scale, minus infinity outside the sum; overwritten.
            places: of the proxies among all.
            weights: (B, c) of the terms; None: 1.
            lengths: (c, 1) norms of the proxies.
            directions: (c, D) the proxies, normalised; overwritten.
        """
        has_columns = self._columns.ndim > 0
        offsets = self._columns[places] if has_columns else self._columns
        if self._rows is not None:
            logits += self._rows[:, None]
        if self._is_bounded:
            tops, scales = torch.zeros_like(offsets), offsets.exp()
        else:
            logits += offsets
            tops = logits.amax(dim=0).clamp(min=0)
            logits -= tops
            scales = torch.ones_like(tops)
        powers = logits.exp_()  # (B, c)
        if weights is not None:
            powers.mul_(weights)
        # log(1 + sum) = tops + log(1 + sums + exp(-tops) - 1): exact for small sums, and over exp(tops) for large ones
        sums = scales * powers.sum(dim=0)
        excess = sums + (-tops).expm1()
        self.total += (tops + excess.log1p()).sum()
        if self._by_columns is not None:
            slopes = sums / (1 + excess)
            self._by_columns[places if has_columns else ...] += slopes if has_columns else slopes.sum()
        if not self._keeps:
            return None
        shares = scales / (1 + excess)  # the gradient by a logit is power x share
        if self._by_rows is not None:
            self._by_rows.addmv_(powers, shares)
        gradient = powers.T @ self.scaled
        along = (gradient * directions).sum(dim=1, keepdim=True)
        gradient.addcmul_(directions, along, value=-1).mul_(shares[:, None] / lengths)
        self._by_unit.addmm_(powers, directions.mul_(shares[:, None]))
        return gradient

    def gradients(self, share: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradient of the sum by samples, columns and rows, times a factor; None without one."""
        by_columns = None if self._by_columns is None else self._by_columns * share
        return (
            self._by_unit * (share * self._scale),
            by_columns,
            None if self._by_rows is None else self._by_rows * share,
        )
