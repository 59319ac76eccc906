"""What a linear classifier thinks of every image that has not seen it: exact leave-one-out, in closed form.

A ridge regression of the one-hot labels on the features is solved once. Its prediction for an image that is left out
follows from the residual r and the hat matrix H = X (X'X + ridge)^-1 X' + 1/N without fitting again (Allen's PRESS,
1974): y - (I - H_gg)^-1 r_g for a set g of images that are left out together, (z - h y) / (1 - h) for one alone.
So a wrong label cannot vouch for itself, at the price of one eigendecomposition of (F, F).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0)  # times the mean variance of a feature direction
TEMPERATURES = (1, 1.5, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100)
_SAMPLE = 20_000  # images that choose ridge and temperature
_BLOCK = 4096  # images at once


class LeaveOneOut:
    """Confidences of N images in C classes, each from all images but itself (and those left out with it).

    confidence = softmax(temperature * prediction); ridge and temperature are those of `RIDGES` and `TEMPERATURES`
    under which the given labels are likeliest. Both are two numbers for all images, so they tell nothing of one.

    Args:
        features: (N, F) floating; rows are L2-normalised here.
        labels: (N,) int64 given labels in 0..class_count-1.
        class_count: C.
        groups: (N,) int64; images of one group are left out together (copies of one picture would vouch for each
            other). None: every image is alone.
        weights: (N,) above 0, how much each image counts in the regression; None: all the same.
        ridge: taken instead of the likeliest one. Mistakes between similar classes make a large one likely, under which
            it cannot tell them.

    Attributes:
        ridge, temperature: as chosen.
        own: (N,) float32 confidence in the given label; computed when it is first asked for.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        class_count: int,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
        ridge: float | None = None,
    ) -> None:
        self._unit, self._width = nn.functional.normalize(features.float()), features.shape[1]
        if len(features) < self._width:  # the images span N directions at most: the same products, far cheaper
            basis = torch.linalg.qr(self._unit.double().T).Q  # (F, N)
            self._unit = self._unit.double() @ basis
        self._labels, self._class_count = labels, class_count
        given = torch.ones(len(labels), device=labels.device) if weights is None else weights
        self._parts = given.double() / given.double().mean()  # (N,) of mean 1
        self._mean = self._average_features()
        self._share = torch.bincount(labels, weights=self._parts, minlength=class_count) / len(labels)
        self._variances, self._axes, self._targets = self._decompose()
        self._together = [] if groups is None else _rows_of_groups(groups)
        self.ridge, self.temperature = self._choose(RIDGES if ridge is None else (ridge,))
        self._solve(self.ridge)

    @cached_property
    def own(self) -> Tensor:
        return torch.cat([c.gather(1, self._labels[rows, None])[:, 0] for rows, c in self.blocks()])

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, (B, C) float32 confidences) of all images in order, a block at a time: N x C is never held."""
        for rows in torch.arange(len(self._labels), device=self._labels.device).split(_BLOCK):
            yield rows, self.confidences(rows)

    def confidences(self, rows: Tensor) -> Tensor:
        """(B,) row numbers to (B, C) float32 confidences, which sum to 1."""
        return torch.softmax(self.temperature * self._predict(rows, self._rotate(rows)), dim=1).float()

    def _average_features(self) -> Tensor:
        """(F,) float64 weighted mean of the unit features."""
        total = torch.zeros(self._unit.shape[1], dtype=torch.float64, device=self._unit.device)
        for rows in torch.arange(len(self._labels), device=self._labels.device).split(_BLOCK):
            total += self._parts[rows] @ self._unit[rows].double()
        return total / len(self._labels)

    def _decompose(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues (F,) and axes (F, F) of X'WX, and X'WY (F, C) along the axes, X centred; float64."""
        width = self._unit.shape[1]
        scatter = self._mean.new_zeros(width, width)
        sums = self._mean.new_zeros(self._class_count, width)
        for rows in torch.arange(len(self._labels), device=self._labels.device).split(_BLOCK):
            centred = self._unit[rows].double() - self._mean
            weighted = self._parts[rows, None] * centred
            scatter += weighted.T @ centred
            sums.index_add_(0, self._labels[rows], weighted)
        variances, axes = torch.linalg.eigh(scatter)
        return variances.clamp(min=0), axes, axes.T @ sums.T

    def _rotate(self, rows: Tensor) -> Tensor:
        """(B, F) float64 centred features along the axes."""
        return (self._unit[rows].double() - self._mean) @ self._axes

    def _solve(self, ridge: float) -> None:
        """The regression under a ridge, and the predictions of the images that are left out with others."""
        mean_variance = self._variances.sum() / self._width
        self._shrink = 1 / (self._variances + ridge * mean_variance.clamp(min=1e-12))  # (F,)
        self._weights = self._targets * self._shrink[:, None]  # (F, C) along the axes
        self._joint: dict[int, Tensor] = {}
        for rows in self._together:
            self._joint.update(zip(rows.tolist(), self._leave_out_together(rows), strict=True))

    def _leave_out_together(self, rows: Tensor) -> Tensor:
        rotated, targets = self._rotate(rows), self._one_hot(rows)
        if len(rows) == len(self._labels):  # nothing is left to learn from
            return torch.zeros_like(targets)
        hat = ((rotated * self._shrink) @ rotated.T + 1 / len(self._labels)) * self._parts[rows]
        residual = targets - (rotated @ self._weights + self._share)
        identity = torch.eye(len(rows), dtype=hat.dtype, device=hat.device)
        return targets - torch.linalg.solve(identity - hat, residual)

    def _predict(self, rows: Tensor, rotated: Tensor) -> Tensor:
        """(B, C) float64 regression outputs for images that were left out."""
        targets = self._one_hot(rows)
        hat = ((rotated.square() @ self._shrink + 1 / len(self._labels)) * self._parts[rows])[:, None]
        left_out = (rotated @ self._weights + self._share - hat * targets) / (1 - hat).clamp(min=1e-9)
        if self._joint:
            for position, row in enumerate(rows.tolist()):
                if row in self._joint:
                    left_out[position] = self._joint[row]
        return left_out

    def _one_hot(self, rows: Tensor) -> Tensor:
        return nn.functional.one_hot(self._labels[rows], self._class_count).double()

    def _choose(self, ridges: Sequence[float]) -> tuple[float, float]:
        """The ridge and the temperature of the lowest cross-entropy with the given labels, over a spread sample."""
        count = len(self._labels)
        rows = torch.linspace(0, count - 1, steps=min(count, _SAMPLE), dtype=torch.float64).round().long()
        rows = rows.to(self._labels.device)
        rotated = torch.cat([self._rotate(part) for part in rows.split(_BLOCK)])
        found: list[tuple[float, float, float]] = []
        for ridge in ridges:
            self._solve(ridge)
            predictions = self._predict(rows, rotated)
            for temperature in TEMPERATURES:
                losses = nn.functional.cross_entropy(
                    temperature * predictions, self._labels[rows], reduction="none"
                )
                found.append(((losses @ self._parts[rows]).item(), ridge, float(temperature)))
        return min(found)[1:]


def _rows_of_groups(groups: Tensor) -> list[Tensor]:
    """The row numbers of every group of two or more."""
    _, number, sizes = groups.unique(return_inverse=True, return_counts=True)
    order = number.argsort(stable=True)
    return [rows for rows in order.split(sizes.tolist()) if len(rows) > 1]
