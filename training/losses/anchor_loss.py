"""The loss of Proxy-Anchor and its kin, a chunk of classes at a time.

Every proxy has sums of its own over the batch, so nothing about one class is needed for another: the cosines of a chunk
are made, summed, turned into gradients, and dropped. All of that happens in the forward pass, so it costs the three
products that a plain loss costs too (cosines, gradient of the embeddings, gradient of the proxies), and not a fourth
that makes the cosines again; backward hands over what is there. Beside the gradients (those of the pull are
kept apart until |P+| is known), memory is that of one chunk, whatever the number of classes.

No maximum is searched before exp where none is needed: with alpha 32 no exponent exceeds 40. What belongs to a sample
or to a proxy (margins, weights, denominators) never passes over the (B, c) powers; it scales the narrow sides of the
products instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.losses.interface import Measured
from training.losses.pairs import PairChunk, Pairs

CHUNK_VALUES = 1 << 21  # cosines of a chunk on a CPU: 8 MiB
CHUNK_VALUES_ELSEWHERE = 1 << 24  # 64 MiB: a GPU wants few large products
SAFE_EXPONENTS = {torch.float32: 80.0, torch.float64: 700.0}  # exp of these and of minus these are normal numbers
LEAST_LENGTH = 1e-12  # as in torch.nn.functional.normalize


def anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    pairs: Pairs,
    *,
    alpha: float,
    margins: Tensor | float,
    sample_margins: Tensor | None = None,
    weights: Tensor | None = None,
    negative_weights: Tensor | None = None,
    negative_normalisation: str = "all",
) -> Measured:
    """Mean pull over the proxies that have positives, plus mean push over all proxies.

        1/|P+| sum_{p in P+} log(1 + sum_{x in X_p+} w_x w_xp exp(-alpha (s(x,p) - m_p)))
      + 1/|P|  sum_{p in P } log(1 + sum_{x in X_p-} v_x v_xp exp( alpha (s(x,p) + m_p)))

    A sum over nothing is exactly 0, and so is its gradient. A second derivative is refused (RuntimeError in the
    backward pass).

    Args:
        embeddings: (B, D), any norm.
        proxies: (C, D), any norm.
        pairs: X_p+, w_xp and v_xp.
        alpha: scale of the cosines s.
        margins: m, () or (C,).
        sample_margins: (B,) margins m_x of the push, instead of the proxies'.
        weights, negative_weights: (B,) w and v in 0..1; None: 1. No gradient flows into them.
        negative_normalisation: `all` divides the push by |P|, `present` by the proxies that have a negative.

    Returns:
        The loss in float32 whatever the autocast type, or in float64 for float64 embeddings; 0 for an empty batch.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        unit = nn.functional.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
        columns = alpha * torch.as_tensor(margins, dtype=unit.dtype, device=unit.device)
        push_columns, push_rows = columns, _log_weights(negative_weights, unit)
        if sample_margins is not None:
            push_columns = columns.new_zeros(())
            push_rows = alpha * sample_margins.to(unit.dtype) + (0 if push_rows is None else push_rows)
        terms = _Terms(pairs, alpha, _log_weights(weights, unit), negative_normalisation, torch.is_grad_enabled())
        return Measured(*_InChunks.apply(unit, proxies, columns, push_columns, push_rows, terms))


def classes_at_once(batch: int, device: torch.device) -> int:
    """How many classes make a chunk for so many samples."""
    values = CHUNK_VALUES if device.type == "cpu" else CHUNK_VALUES_ELSEWHERE
    return max(1, values // max(batch, 1))


def _log_weights(weights: Tensor | None, unit: Tensor) -> Tensor | None:
    """(B,) logarithms; a weight of 0 takes a sample's terms out of the sums, as far as the type can tell."""
    if weights is None:
        return None
    return weights.detach().to(unit.dtype).clamp(min=torch.finfo(unit.dtype).tiny).log()


@dataclass(frozen=True, slots=True)
class _Terms:
    pairs: Pairs
    alpha: float
    pull_rows: Tensor | None
    negative_normalisation: str
    keeps_gradients: bool


class _InChunks(torch.autograd.Function):
    """Exponents are -alpha s or alpha s, plus an offset of the proxy (`columns`) and one of the sample (`rows`)."""

    @staticmethod
    def forward(
        ctx: Any, unit: Tensor, proxies: Tensor, pull_columns: Tensor, push_columns: Tensor, push_rows: Tensor | None,
        terms: _Terms,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        keeps = terms.keeps_gradients and any(ctx.needs_input_grad)
        pull = _Side(unit, -terms.alpha, columns=pull_columns, rows=terms.pull_rows, keeps_gradients=keeps)
        push = _Side(unit, terms.alpha, columns=push_columns, rows=push_rows, keeps_gradients=keeps)
        sums = _Sums(proxies, terms, pull=pull, push=push, batch=len(unit))
        sums.add_all()
        pull_share, push_share = 1 / max(sums.with_positive, 1), 1 / max(sums.count_pushed(), 1)
        if keeps:
            pulled, pushed = pull.gradients(pull_share), push.gradients(push_share)
            by_proxy = sums.by_proxy(pull_share, push_share)
            ctx.save_for_backward(pulled[0] + pushed[0], by_proxy, pulled[1], *pushed[1:])
        ctx.mark_non_differentiable(sums.positives)
        return pull_share * pull.total + push_share * push.total, sums.positives

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only where a graph of the gradients is asked for; what is kept has none
            raise RuntimeError("this loss has no second derivative: ask for its gradients without create_graph")
        found = ctx.saved_tensors
        if grad.device.type == "cpu" and grad.item() == 1:  # as in training: no second (C, D) tensor then
            return (*found, None)
        return (*(None if part is None else part * grad.to(part.dtype) for part in found), None)


class _Side:
    """One of the two sums, the pull or the push: its value, and its gradients added up over chunks.

    Args:
        unit: (B, D) normalised samples.
        scale: of their cosines in the exponents, alpha or -alpha.
        columns, rows: () or (C,), and (B,) offsets of the exponents; None: 0.
    """

    def __init__(
        self, unit: Tensor, scale: float, *, columns: Tensor, rows: Tensor | None, keeps_gradients: bool
    ) -> None:
        self.keeps_gradients, self._scale, self._columns, self._rows = keeps_gradients, scale, columns, rows
        self._is_bounded = is_bounded(len(unit), abs(scale), columns, rows)
        self._factors = rows.exp() if rows is not None and self._is_bounded else None  # (B,) beside the powers
        self.scaled = scale * unit
        self._weighed = self._times_factors(self.scaled)
        self.total, self._by_unit = unit.new_zeros(()), torch.zeros_like(unit)
        self._by_columns = torch.zeros_like(columns) if columns.requires_grad else None
        self._by_rows = torch.zeros_like(rows) if rows is not None and rows.requires_grad else None

    def add(
        self,
        logits: Tensor,
        places: Tensor | slice,
        *,
        weights: Tensor | None,
        directions: Tensor,
        lengths: Tensor,
    ) -> Tensor | None:
        """Add the sums of c proxies; (c, D) their gradient, where gradients are kept.

        Args:
            logits: (B, c) cosines times the scale, minus infinity outside the sum; overwritten.
            places: of the proxies among all.
            weights: (B, c) of the terms; None: 1.
            directions: (c, D) the proxies, normalised; overwritten.
            lengths: (c, 1) their norms.
        """
        powers, shares = self._add_values(logits, places, weights=weights)
        if not self.keeps_gradients:
            return None
        if self._by_rows is not None:
            self._by_rows.addmv_(powers, shares)
        gradient = powers.T @ self._weighed
        along = (gradient * directions).sum(dim=1, keepdim=True)
        gradient.addcmul_(directions, along, value=-1).mul_(shares[:, None] / lengths)
        self._by_unit.addmm_(powers, directions.mul_(shares[:, None]))
        return gradient

    def _add_values(
        self, logits: Tensor, places: Tensor | slice, *, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(B, c) powers and (c,) shares: the gradient of log(1 + sum) by a logit is factor x power x share."""
        has_columns = self._columns.ndim > 0
        offsets = self._columns[places] if has_columns else self._columns
        if self._is_bounded:
            powers = _weigh(logits.exp_(), weights)
            scales = offsets.exp()
            sums = scales * (powers.sum(dim=0) if self._factors is None else self._factors @ powers)
            denominators, values = 1 + sums, sums.log1p()
        else:
            logits += offsets if self._rows is None else offsets + self._rows[:, None]
            tops = logits.amax(dim=0).clamp(min=0)
            powers = _weigh(logits.sub_(tops).exp_(), weights)
            scales, sums = torch.ones_like(tops), powers.sum(dim=0)  # over exp(tops), and so is the 1
            denominators = (-tops).exp() + sums
            values = tops + denominators.log()
        self.total += values.sum()
        if self._by_columns is not None:
            slopes = sums / denominators
            self._by_columns[places if has_columns else ...] += slopes if has_columns else slopes.sum()
        return powers, scales / denominators

    def gradients(self, share: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """That of the sum by samples, columns and rows, times the share that counts; None where there is none."""
        by_rows = None if self._by_rows is None else self._times_factors(self._by_rows) * share
        by_columns = None if self._by_columns is None else self._by_columns * share
        return self._times_factors(self._by_unit) * (share * self._scale), by_columns, by_rows

    def _times_factors(self, values: Tensor) -> Tensor:
        """(B, ...) values of the samples times their factors."""
        if self._factors is None:
            return values
        return values * self._factors.view(-1, *(1,) * (values.ndim - 1))


def _weigh(powers: Tensor, weights: Tensor | None) -> Tensor:
    return powers if weights is None else powers.mul_(weights)


def is_bounded(batch: int, alpha: float, columns: Tensor, rows: Tensor | None) -> bool:
    """Whether no sum of exponentials can leave the range of its type, so that they are added up as they are."""
    largest = alpha + math.log(max(batch, 1))
    for offsets in (columns, rows):
        if offsets is not None and offsets.numel():
            largest += max(0.0, offsets.max().item())
    return largest <= SAFE_EXPONENTS[columns.dtype]


class _Sums:
    """Both sums over all chunks of proxies."""

    def __init__(self, proxies: Tensor, terms: _Terms, *, pull: _Side, push: _Side, batch: int) -> None:
        self._proxies, self._terms, self._pull, self._push, self._batch = proxies, terms, pull, push, batch
        self._by_proxy = torch.empty_like(proxies) if push.keeps_gradients else None
        self._pulled: list[tuple[Tensor, Tensor]] = []  # apart: their share is known in the end
        self.with_positive = self._without_negative = 0
        self.positives = torch.zeros(batch, dtype=torch.int64, device=proxies.device)

    def add_all(self) -> None:
        """Chunk after chunk; an empty batch costs nothing and has no gradient."""
        step = classes_at_once(self._batch, self._proxies.device)
        for start in range(0, len(self._proxies), step):
            places = slice(start, min(start + step, len(self._proxies)))
            if self._batch:
                self._add(places)
            elif self._by_proxy is not None:
                self._by_proxy[places] = 0

    def _add(self, places: slice) -> None:
        push = self._push
        proxies = self._proxies[places].to(push.scaled.dtype)
        lengths = torch.linalg.vector_norm(proxies, dim=1, keepdim=True).clamp_(min=LEAST_LENGTH)
        directions = proxies / lengths
        logits = push.scaled @ directions.T
        found = self._terms.pairs.chunk(places.start, places.stop, dtype=logits.dtype)
        if len(found.columns):
            self._add_pull(logits, found, places.start, directions=directions, lengths=lengths)
        gradient = push.add(logits, places, weights=found.push_weights, directions=directions, lengths=lengths)
        if gradient is not None and self._by_proxy is not None:
            torch.mul(gradient, 1 / len(self._proxies), out=self._by_proxy[places])

    def _add_pull(
        self, logits: Tensor, found: PairChunk, start: int, *, directions: Tensor, lengths: Tensor
    ) -> None:
        """Add the sums of the proxies with a positive, and take their positives out of the logits of the push."""
        columns, positive = found.columns, found.positive
        is_every = len(columns) == logits.shape[1]
        chosen = logits if is_every else logits[:, columns]
        gradient = self._pull.add(
            (-chosen).masked_fill_(~positive, -math.inf), start + columns, weights=found.pull_weights,
            directions=directions[columns], lengths=lengths[columns],
        )  # fmt: skip
        chosen.masked_fill_(positive, -math.inf)
        if not is_every:
            logits.index_copy_(1, columns, chosen)
        if gradient is not None:
            self._pulled.append((start + columns, gradient))
        self.with_positive += len(columns)
        self.positives += positive.sum(dim=1)
        if self._terms.negative_normalisation == "present":
            self._without_negative += int(positive.all(dim=0).sum())

    def count_pushed(self) -> int:
        """What the push is divided by: all proxies, or those that have a negative."""
        return len(self._proxies) - self._without_negative if self._batch else 0

    def by_proxy(self, pull_share: float, push_share: float) -> Tensor:
        """(C, D) gradient of both by the proxies."""
        assert self._by_proxy is not None
        if push_share * len(self._proxies) != 1:
            self._by_proxy *= push_share * len(self._proxies)
        for places, pulled in self._pulled:
            self._by_proxy.index_add_(0, places, pulled.to(self._by_proxy.dtype), alpha=pull_share)
        return self._by_proxy
