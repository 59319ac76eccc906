"""What a linear classifier thinks of every row that has not seen it: exact leave-one-out, in closed form.

As in `training.leave_one_out`, but for stored vectors and without torch: with the hat matrix
H = X (X'X + ridge)^-1 X' + 1/N of a ridge regression of one-hot labels, the prediction for a set g of rows that are
left out together is y - (I - H_gg)^-1 r_g (Allen's PRESS, 1974).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from index.embedder import Vectors
from index.exact import Floats, Ids
from index.metrics import Labels

RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # times the mean variance of a direction
TEMPERATURES = (1, 1.5, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100)
_ROWS_AT_ONCE = 4096
_VALUES_AT_ONCE = 1 << 22  # confidences in memory, and those that choose ridge and temperature
_LEAST_ROWS = 64

Doubles: TypeAlias = npt.NDArray[np.float64]


class LeaveOneOut:
    """Confidences of N rows in C labels, each from all rows but itself and those left out with it.

    confidence = softmax(temperature * prediction); ridge and temperature are those of `RIDGES` and `TEMPERATURES` under
    which the given labels are likeliest, over a spread sample.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64 in 0..count-1, each of which some row has.
        count: C.
        together: rows that are left out together, a set each; no row is in two of them.
    """

    def __init__(self, vectors: Vectors, labels: Labels, *, count: int, together: Sequence[Ids] = ()) -> None:
        self._vectors, self._labels, self._count = vectors, labels, count
        self._together = together
        self._set_of = {
            row: (number, place) for number, rows in enumerate(together) for place, row in enumerate(rows.tolist())
        }
        self._mean: Doubles = vectors.mean(axis=0, dtype=np.float64)
        self._share: Doubles = np.bincount(labels, minlength=count) / len(labels)
        scatter, sums = np.zeros((vectors.shape[1],) * 2), np.zeros((count, vectors.shape[1]))
        for rows in _blocks(len(labels), _ROWS_AT_ONCE):
            centred = vectors[rows] - self._mean
            scatter += centred.T @ centred
            np.add.at(sums, labels[rows], centred)
        variances, self._axes = np.linalg.eigh(scatter)
        self._variances = variances.clip(min=0)
        self._targets: Doubles = self._axes.T @ sums.T  # (D, C)
        self.ridge, self.temperature = self._choose()
        self._solve(self.ridge)

    def blocks(self) -> Iterator[tuple[Ids, Floats]]:
        """(rows, (B, C) float32 confidences) of all rows in order, a block at a time: N x C is never held."""
        for rows in _blocks(len(self._labels), self._block_rows):
            yield rows, _softmax(self.temperature * self._predict(rows)).astype(np.float32)

    @property
    def _block_rows(self) -> int:
        return min(_ROWS_AT_ONCE, max(_LEAST_ROWS, _VALUES_AT_ONCE // self._count))

    def _choose(self) -> tuple[float, float]:
        """The ridge and the temperature of the lowest cross-entropy with the given labels."""
        size = min(len(self._labels), max(_LEAST_ROWS, _VALUES_AT_ONCE // self._count))
        rows = np.linspace(0, len(self._labels) - 1, size).round().astype(np.int64)
        found = []
        for ridge in RIDGES:
            self._solve(ridge)
            predictions = self._predict(rows)
            for temperature in TEMPERATURES:
                own = _softmax(temperature * predictions)[np.arange(size), self._labels[rows]]
                found.append((-float(np.log(own.clip(min=1e-30)).sum()), ridge, float(temperature)))
        return min(found)[1:]

    def _solve(self, ridge: float) -> None:
        """The regression under a ridge."""
        self._shrink: Doubles = 1 / (self._variances + ridge * max(float(self._variances.mean()), 1e-12))
        self._weights: Doubles = self._targets * self._shrink[:, None]

    def _leave_out(self, rows: Ids) -> Doubles:
        """(B, C) predictions for rows that were left out together."""
        rotated, targets = self._rotate(rows), np.zeros((len(rows), self._count))
        targets[np.arange(len(rows)), self._labels[rows]] = 1
        if len(rows) == len(self._labels):  # nothing is left to learn from
            return np.zeros_like(targets)
        hat = (rotated * self._shrink) @ rotated.T + 1 / len(self._labels)
        residual = targets - (rotated @ self._weights + self._share)
        left: Doubles = targets - np.linalg.solve(np.eye(len(rows)) * (1 + 1e-9) - hat, residual)
        return left

    def _rotate(self, rows: Ids) -> Doubles:
        rotated: Doubles = (self._vectors[rows] - self._mean) @ self._axes
        return rotated

    def _predict(self, rows: Ids) -> Doubles:
        """(B, C) predictions for rows that were left out."""
        rotated, own = self._rotate(rows), (np.arange(len(rows)), self._labels[rows])
        hat = np.square(rotated) @ self._shrink + 1 / len(self._labels)
        left_out: Doubles = rotated @ self._weights + self._share
        left_out[own] -= hat
        left_out /= (1 - hat).clip(min=1e-9)[:, None]
        joint: dict[int, Doubles] = {}  # of the sets of these rows only: of all it would be as large as N x C
        for place, row in enumerate(rows.tolist() if self._set_of else ()):
            if row in self._set_of:
                number, within = self._set_of[row]
                if number not in joint:
                    joint[number] = self._leave_out(self._together[number])
                left_out[place] = joint[number][within]
        return left_out


def _blocks(count: int, size: int) -> Iterator[Ids]:
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


def _softmax(values: Doubles) -> Doubles:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    softened: Doubles = powers / powers.sum(axis=1, keepdims=True)
    return softened
