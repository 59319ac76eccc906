"""What a linear classifier thinks of every row that has not seen it: exact leave-one-out, in closed form.

As in `training.leave_one_out`, but for stored vectors and without torch. With X centred and rows
A = [X (X'X + ridge)^-1/2, 1/sqrt N], a ridge regression of one-hot labels Y predicts A A'Y. The prediction for a set g
of rows that are left out together is Y_g - (I - A_g A_g')^-1 (Y_g - A_g A'Y) (Allen's PRESS, 1974), which by Woodbury's
identity is A_g (I - A_g'A_g)^-1 (A'Y - A_g'Y_g): whichever has the smaller matrix is solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from index.embedder import Vectors
from index.exact import Floats, Ids
from index.metrics import Labels
from index.progress import Progress, no_progress

RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # times the mean variance of a direction
TEMPERATURES = (1, 1.5, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100)
_ROWS_AT_ONCE = 4096
_VALUES_AT_ONCE = 1 << 22  # confidences in memory, and those that choose ridge and temperature
_LEAST_ROWS = 64
_ALONE = -1

Doubles: TypeAlias = npt.NDArray[np.float64]


class LeaveOneOut:
    """Confidences of N rows in C labels, each from all rows but itself and those left out with it.

    confidence = softmax(temperature * prediction); ridge and temperature are those of `RIDGES` and `TEMPERATURES` under
    which the given labels are likeliest, over a spread sample.

    A set of g rows costs D^2 g where it is larger than D, and g^3 where it is not. 200,000 rows of 64 numbers with 108
    labels take 4 s on one core and 50 MB beside them, a set of 20,000 among them or none.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64 in 0..count-1, each of which some row has.
        count: C.
        together: rows that are left out together, a set each, rising; no row is in two of them.
        progress: told (done, total) of the rows that are looked at, those of large sets again and again; it is told of
            `blocks` too.
    """

    def __init__(
        self,
        vectors: Vectors,
        labels: Labels,
        *,
        count: int,
        together: Sequence[Ids] = (),
        progress: Progress = no_progress,
    ) -> None:
        self._vectors, self._labels, self._count = vectors, labels, count
        self._together, self._set_of = together, np.full(len(labels), _ALONE, dtype=np.int64)
        for number, rows in enumerate(together):
            self._set_of[rows] = number
        asking = self._in_order(np.linspace(0, len(labels) - 1, self._sample_size).round().astype(np.int64))
        self._progress, self._done = progress, 0
        self._total = 2 * len(labels) + len(RIDGES) * len(asking)
        self._mean: Doubles = vectors.mean(axis=0, dtype=np.float64)
        self._share: Doubles = np.bincount(labels, minlength=count) / len(labels)
        self._variances, self._axes, self._targets = self._decompose()
        self.ridge, self.temperature = self._choose(asking)
        self._solve(self.ridge)

    def blocks(self) -> Iterator[tuple[Ids, Floats]]:
        """(rows, (B, C) float32 confidences) of all rows, a block at a time: N x C is never held.

        Rows that are alone come first, then set after set.
        """
        for rows, predictions in self._predict_all(self._in_order(np.arange(len(self._labels)))):
            yield rows, _softmax(self.temperature * predictions).astype(np.float32)

    @property
    def _sample_size(self) -> int:
        return min(len(self._labels), max(_LEAST_ROWS, _VALUES_AT_ONCE // self._count))

    def _in_order(self, rows: Ids) -> Ids:
        """The rows with those of a set beside each other, so that no set is solved twice."""
        return rows[np.argsort(self._set_of[rows], kind="stable")]

    def _tell(self, done: int) -> None:
        self._done += done
        self._progress(min(self._done, self._total), self._total)

    def _decompose(self) -> tuple[Doubles, Doubles, Doubles]:
        """Eigenvalues (D,) and axes (D, D) of X'X, and X'Y (D, C) along the axes."""
        width = self._vectors.shape[1]
        scatter, sums = np.zeros((width, width)), np.zeros((self._count, width))
        for rows in _blocks(np.arange(len(self._labels)), _ROWS_AT_ONCE):
            centred = self._vectors[rows] - self._mean
            scatter += centred.T @ centred
            _add_by_label(sums, centred, self._labels[rows])
            self._tell(len(rows))
        variances, axes = np.linalg.eigh(scatter)
        return variances.clip(min=0), axes, axes.T @ sums.T

    def _choose(self, rows: Ids) -> tuple[float, float]:
        """The ridge and the temperature of the lowest cross-entropy with the given labels of some rows."""
        found = []
        for ridge in RIDGES:
            self._solve(ridge)
            predictions = np.concatenate([part for _, part in self._predict_all(rows)])
            for temperature in TEMPERATURES:
                own = _softmax(temperature * predictions)[np.arange(len(rows)), self._labels[rows]]
                found.append((-float(np.log(own.clip(min=1e-30)).sum()), ridge, float(temperature)))
                self._tell(0)
        return min(found)[1:]

    def _solve(self, ridge: float) -> None:
        """The regression under a ridge."""
        shrink = 1 / (self._variances + ridge * max(float(self._variances.mean()), 1e-12))
        self._scale: Doubles = np.sqrt(shrink)
        intercept = self._share * np.sqrt(len(self._labels))
        self._weights: Doubles = np.vstack([self._targets * self._scale[:, None], intercept])  # A'Y, (D + 1, C)
        self._solved: tuple[int, Doubles] | None = None

    def _features(self, rows: Ids) -> Doubles:
        """(B, D + 1) rows of A."""
        rotated = (self._vectors[rows] - self._mean) @ self._axes
        rotated *= self._scale
        return np.hstack([rotated, np.full((len(rows), 1), 1 / np.sqrt(len(self._labels)))])

    def _predict_all(self, rows: Ids) -> Iterator[tuple[Ids, Doubles]]:
        size = min(_ROWS_AT_ONCE, max(_LEAST_ROWS, _VALUES_AT_ONCE // self._count))
        for block in _blocks(rows, size):
            yield block, self._predict(block)
            self._tell(len(block))

    def _predict(self, rows: Ids) -> Doubles:
        """(B, C) predictions for rows that were left out."""
        features, own = self._features(rows), (np.arange(len(rows)), self._labels[rows])
        leverage = np.einsum("bd,bd->b", features, features)
        left_out: Doubles = features @ self._weights
        left_out[own] -= leverage
        left_out /= (1 - leverage).clip(min=1e-9)[:, None]
        sets = self._set_of[rows]  # rising
        ends = np.flatnonzero(np.diff(sets)) + 1
        for places in np.split(np.arange(len(rows)), ends):
            if (number := int(sets[places[0]])) != _ALONE:
                left_out[places] = self._leave_out(number, rows[places], features[places])
        return left_out

    def _leave_out(self, number: int, rows: Ids, features: Doubles) -> Doubles:
        """(B, C) predictions for rows of a set that was left out, of which these are the features."""
        together = self._together[number]
        if len(together) == len(self._labels):  # nothing is left to learn from
            return np.zeros((len(rows), self._count))
        is_large = len(together) > features.shape[1]
        if self._solved is None or self._solved[0] != number:
            self._solved = number, self._weights_without(together) if is_large else self._predict_without(together)
            self._tell(0)
        solved = self._solved[1]
        return features @ solved if is_large else solved[np.searchsorted(together, rows)]

    def _weights_without(self, together: Ids) -> Doubles:
        """(D + 1, C) weights of the regression without a set."""
        kept, sums = np.eye(len(self._weights)), self._weights.T.copy()
        for rows in _blocks(together, _ROWS_AT_ONCE):
            features = self._features(rows)
            kept -= features.T @ features
            _add_by_label(sums, -features, self._labels[rows])
            self._tell(0)
        return np.asarray(np.linalg.solve(kept, sums.T), dtype=np.float64)

    def _predict_without(self, together: Ids) -> Doubles:
        """(g, C) predictions for the rows of a set that was left out."""
        features, targets = self._features(together), np.zeros((len(together), self._count))
        targets[np.arange(len(together)), self._labels[together]] = 1
        kept = np.eye(len(together)) - features @ features.T
        left_out: Doubles = targets - np.linalg.solve(kept, targets - features @ self._weights)
        return left_out


def _add_by_label(sums: Doubles, values: Doubles, labels: Labels) -> None:
    """Add each of (n, D) values to the one of (C, D) sums that is its label's."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sums[labels[order[starts]]] += np.add.reduceat(values[order], starts, axis=0)


def _blocks(rows: Ids, size: int) -> Iterator[Ids]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _softmax(values: Doubles) -> Doubles:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    softened: Doubles = powers / powers.sum(axis=1, keepdims=True)
    return softened
