"""Leave-one-out confidences of a linear classifier, exact and in closed form.

With rows x_i centred on their weighted mean, weights w_i of mean 1 and f_i = [x_i (X'WX + ridge)^-1/2, 1/sqrt N], a
ridge regression of one-hot labels Y predicts F F'WY. Without a set g of rows it predicts for them, by Woodbury's
identity, F_g (I - F_g'W_g F_g)^-1 (F'WY - F_g'W_g Y_g), which equals Y_g - Z (Y_g - F_g F'WY) with
Z = (I - F_g F_g'W_g)^-1 (Allen's PRESS, 1974): whichever has the smaller matrix is solved. So a wrong label does not
support itself, at the cost of one eigendecomposition.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TypeAlias

import numpy as np

from index.arrays import Doubles, Floats, Ids, Labels, normalise_rows, rows_by_value

RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0)  # times the mean variance of a direction; where the choice begins
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 32.0, 40.0, 50.0, 64.0, 80.0, 100.0)
_MOST_RIDGE, _MOST_TEMPERATURE = 1e4, 1e5  # and 1 over them: beyond, hardly anything changes but the scale
_SAMPLE = 20_000  # rows that choose ridge and temperature
_ROWS_AT_ONCE = 4096
_VALUES_AT_ONCE = 1 << 22  # confidences in memory
_MOST_CHOOSING = 1 << 23  # confidences that choose
_LEAST_ROWS = 64
_LEAST_LOG = np.log(1e-30)  # of a probability
_ALONE = -1

Tell: TypeAlias = Callable[[int], None]
"""Callback with the number of rows finished since the last call."""


def _nothing(_: int) -> None:
    """No-op progress."""


class LeaveOneOut:
    """Leave-one-out confidences of N rows in C labels; rows of one group are left out together.

    confidence = softmax(temperature * prediction); ridge and temperature are those of two grids under which the given
    labels are likeliest, over a spread sample; a grid goes on beyond `RIDGES` or `TEMPERATURES` where its end is the
    likeliest. A set of g rows costs D^2 g where it is larger than D, and g^2 D where it is not.

    Args:
        groups: (N,); rows of one group are left out together, or duplicates would predict each other.
        weights: (N,) above 0, how much each row counts; None: 1 / rows of its label, as the shrinkage else pulls
            predictions towards frequent labels, and right labels of few rows look like mistakes.
        ridges: candidates, ascending; a single one is taken. Label errors between similar labels favour a large one.
    """

    def __init__(
        self,
        features: Floats,
        labels: Labels,
        *,
        count: int,
        groups: Ids | None = None,
        weights: Doubles | None = None,
        ridges: Sequence[float] = RIDGES,
        tell: Tell = _nothing,
    ) -> None:
        self._rows, self._width = normalise_rows(features), features.shape[1]
        self._basis: Doubles | None = None
        if len(features) < self._width:  # they span N directions at most: the same products, far cheaper
            basis = np.linalg.qr(self._rows.T.astype(np.float64)).Q
            self._rows, self._basis = self._rows @ basis, basis
        self._labels, self.count, self._tell = labels, count, tell
        self._sets = [] if groups is None else [rows for rows in rows_by_value(groups) if len(rows) > 1]
        self._set_of = np.full(len(labels), _ALONE, dtype=np.int64)
        for number, rows in enumerate(self._sets):
            self._set_of[rows] = number
        given = 1 / np.bincount(labels, minlength=count)[labels] if weights is None else weights
        self._fit(given, ridges)

    def reweighted(self, weights: Doubles, *, ridges: Sequence[float]) -> "LeaveOneOut":
        """Copy that is fitted with other (N,) weights."""
        other = copy(self)
        other._fit(weights, ridges)
        return other

    def _fit(self, weights: Doubles, ridges: Sequence[float]) -> None:
        labels, count = self._labels, self.count
        self._parts: Doubles = weights / weights.mean()
        self._share: Doubles = np.bincount(labels, weights=self._parts, minlength=count) / len(labels)
        # The mean (D,); eigenvalues (D,) and axes (D, D) of X'WX, and X'WY (D, C) along the axes.
        rows, parts = self._rows, self._parts
        self._mean = sum((parts[some] @ rows[some] for some in _all(rows)), np.zeros(rows.shape[1])) / len(rows)
        scatter, sums = np.zeros((rows.shape[1],) * 2), np.zeros((count, rows.shape[1]))
        for some in _all(rows):
            centred = rows[some] - self._mean
            weighted = centred * parts[some, None]
            scatter += weighted.T @ centred
            add_by_label(sums, weighted, labels[some])
            self._tell(0)
        variances, self._axes = np.linalg.eigh(scatter)
        self._variances, self._targets = variances.clip(min=0), self._axes.T @ sums.T
        self.ridge, self.temperature = self._choose(ridges)
        self._solve(self.ridge)

    def blocks(self) -> Iterator[tuple[Ids, Floats]]:
        """(rows, (B, C) float32 confidences), block by block: rows that are alone, then set after set."""
        for rows in self._blocks(np.argsort(self._set_of, kind="stable")):
            yield rows, self.confidences(rows)
            self._tell(len(rows))

    def confidences(self, rows: Ids) -> Floats:
        """(B,) row numbers to (B, C) float32 confidences, which sum to 1."""
        return softmax(self.temperature * self._predict(rows))

    def confidences_unseen(self, label: int, *, most: int | None = None) -> tuple[Ids, Floats]:
        """(n,) rows of a label, `most` or more of many, and (n, C) float32 confidences without all of it."""
        together = rows = np.flatnonzero(self._labels == label)
        if len(rows) > self._width:
            rows = rows[:: max(1, len(rows) // (most or len(rows)))]
            predictions = self._features(rows) @ self._weights_without(together)
        else:
            predictions = self._leave_set_out(rows, rows)[1] @ self._weights
        predictions[:, label] = -np.inf
        return rows, softmax(self.temperature * predictions)

    def predict(self, features: Floats) -> Floats:
        """(B, D) float32 of other images to (B, C) float32 confidences, from all rows."""
        rows = normalise_rows(features)
        along = self._scale_rows(rows if self._basis is None else rows @ self._basis)
        return softmax(self.temperature * (along @ self._weights))

    def _blocks(self, rows: Ids) -> Iterator[Ids]:
        return cut_rows(rows, min(_ROWS_AT_ONCE, max(_LEAST_ROWS, _VALUES_AT_ONCE // self.count)))

    def _choose(self, ridges: Sequence[float]) -> tuple[float, float]:
        """The ridge and the temperature of the lowest cross-entropy with the given labels of some rows."""
        size = count_choosing(len(self._labels), self.count)
        rows = np.linspace(0, len(self._labels) - 1, size).round().astype(np.int64)
        rows = rows[np.argsort(self._set_of[rows], kind="stable")]
        found = {ridge: self._choose_temperature(ridge, rows) for ridge in ridges}
        while True:
            best = min(found, key=lambda ridge: found[ridge][0])
            beyond = beyond_grid(best, sorted(found), most=_MOST_RIDGE)
            if beyond is None:
                return best, found[best][1]
            found[beyond] = self._choose_temperature(beyond, rows)

    def _choose_temperature(self, ridge: float, rows: Ids) -> tuple[float, float]:
        """The lowest cross-entropy under a ridge, and its temperature."""
        self._solve(ridge)
        blocks = []
        for block in self._blocks(rows):
            blocks.append((block, self._predict(block)))
            self._tell(len(block))

        def find_loss(temperature: float) -> float:
            loss = 0.0
            for block, predictions in blocks:
                likely = log_softmax(temperature * predictions, self._labels[block]).clip(min=_LEAST_LOG)
                loss -= float(likely @ self._parts[block])
                self._tell(0)
            return loss

        grid = list(TEMPERATURES)
        loss, best = find_least(grid, find_loss)
        while (beyond := beyond_grid(best, grid, most=_MOST_TEMPERATURE)) is not None:
            grid = sorted([*grid, beyond])
            if (further := find_loss(beyond)) < loss:
                loss, best = further, beyond
        return loss, best

    def _solve(self, ridge: float) -> None:
        mean_variance = float(self._variances.sum()) / self._width
        self._scale: Doubles = np.sqrt(1 / (self._variances + ridge * max(mean_variance, 1e-12)))
        intercept = self._share * np.sqrt(len(self._labels))
        self._weights: Doubles = np.vstack([self._targets * self._scale[:, None], intercept])  # F'WY, (D + 1, C)
        self._solved: tuple[int, Doubles] | None = None

    def _features(self, rows: Ids) -> Doubles:
        """(B, D + 1) rows of F."""
        return self._scale_rows(self._rows[rows])

    def _scale_rows(self, rows: Floats | Doubles) -> Doubles:
        """(B, D + 1) as rows of F, of (B, D) rows of unit norm."""
        rotated = (rows - self._mean) @ self._axes
        rotated *= self._scale
        return np.hstack([rotated, np.full((len(rows), 1), 1 / np.sqrt(len(self._labels)))])

    def _predict(self, rows: Ids) -> Doubles:
        """(B, C) predictions for rows that were left out."""
        features, given, sets = self._features(rows), self._labels[rows], self._set_of[rows]
        leverage = np.einsum("bd,bd->b", features, features) * self._parts[rows]
        leverage[sets != _ALONE] = 0
        small: list[tuple[Ids, Ids, Doubles]] = []
        large: list[tuple[Ids, Doubles]] = []
        for number in np.unique(sets[sets != _ALONE]).tolist():
            positions, together = np.flatnonzero(sets == number), self._sets[number]
            if len(together) > self._width or len(together) == len(self._labels):
                large.append((positions, features[positions] @ self._weights_of_others(number)))
            else:
                solved, features[positions] = self._leave_set_out(together, rows[positions])
                small.append((positions, together, solved))
        left_out: Doubles = features @ self._weights
        left_out[np.arange(len(rows)), given] -= leverage
        left_out /= (1 - leverage).clip(min=1e-9)[:, None]
        for positions, together, solved in small:
            labels, of_set = np.unique(self._labels[together], return_inverse=True)
            given_of_set = (of_set[:, None] == np.arange(len(labels))).astype(np.float64)
            left_out[np.ix_(positions, labels)] -= solved @ given_of_set
            left_out[positions, given[positions]] += 1
        for positions, predictions in large:
            left_out[positions] = predictions
        return left_out

    def _leave_set_out(self, together: Ids, rows: Ids) -> tuple[Doubles, Doubles]:
        """(r, g) rows Z of (I - F_g F_g'W_g)^-1 and (r, D + 1) Z F_g, for r of the g ascending rows of a set."""
        features = self._features(together)
        kept = np.eye(len(together)) - features @ features.T * self._parts[together]
        chosen = np.searchsorted(together, rows)
        solved: Doubles = np.asarray(np.linalg.solve(kept.T, np.eye(len(together))[:, chosen]).T, dtype=np.float64)
        return solved, solved @ features

    def _weights_of_others(self, number: int) -> Doubles:
        """(D + 1, C) weights of the regression without a set, kept until the next one."""
        solved = self._solved
        if solved is None or solved[0] != number:
            together = self._sets[number]
            nothing_left = len(together) == len(self._labels)
            others = np.zeros_like(self._weights) if nothing_left else self._weights_without(together)
            self._solved = solved = number, others
        return solved[1]

    def _weights_without(self, together: Ids) -> Doubles:
        """(D + 1, C) weights of the regression without some rows."""
        kept, sums = np.eye(len(self._weights)), self._weights.T.copy()
        for rows in cut_rows(together, _ROWS_AT_ONCE):
            features = self._features(rows)
            weighted = features * self._parts[rows, None]
            kept -= weighted.T @ features
            add_by_label(sums, -weighted, self._labels[rows])
            self._tell(0)
        return np.asarray(np.linalg.solve(kept, sums.T), dtype=np.float64)


def count_choosing(images: int, count: int) -> int:
    """Number of rows that choose ridge and temperature; `tell` is called with it for each of the ridges."""
    return min(images, _SAMPLE, max(_LEAST_ROWS, _MOST_CHOOSING // count))


def find_least(grid: Sequence[float], find_loss: Callable[[float], float]) -> tuple[float, float]:
    """The least loss over an ascending grid, and where: of every third value, then of those around the best one.

    >>> find_least((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), lambda value: (value - 4.9) ** 2)[1]
    5.0
    """
    losses = {place: find_loss(grid[place]) for place in range(1 if len(grid) > 1 else 0, len(grid), 3)}
    middle = min(losses, key=losses.__getitem__)
    for place in range(max(0, middle - 2), min(len(grid), middle + 3)):
        if place not in losses:
            losses[place] = find_loss(grid[place])
    best = min(sorted(losses), key=losses.__getitem__)
    return losses[best], grid[best]


def beyond_grid(best: float, grid: Sequence[float], *, most: float) -> float | None:
    """Next value beyond a grid whose best value is at an end; None if it is inside, or at `most` or its inverse.

    >>> beyond_grid(10.0, (0.1, 1.0, 10.0), most=1e5), beyond_grid(1.0, (0.1, 1.0, 10.0), most=1e5)
    (100.0, None)
    """
    if len(grid) == 1:
        return None
    if best == grid[-1] and best < most:
        return best * (grid[-1] / grid[-2])
    if best == grid[0] and best > 1 / most:
        return best * (grid[0] / grid[1])
    return None


def add_by_label(sums: Doubles, values: Doubles, labels: Labels) -> None:
    """Add each of (n, D) values to its label's row of the (C, D) sums."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sums[labels[order[starts]]] += np.add.reduceat(values[order], starts, axis=0)


def _all(rows: Floats) -> Iterator[Ids]:
    return cut_rows(np.arange(len(rows)), _ROWS_AT_ONCE)


def cut_rows(rows: Ids, size: int) -> Iterator[Ids]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def log_softmax(values: Doubles, labels: Labels) -> Doubles:
    """(B,) logarithms of the shares that (B, C) logits give to (B,) labels, in float64."""
    values = values - values.max(axis=1, keepdims=True)
    logs: Doubles = values[np.arange(len(labels)), labels] - np.log(np.exp(values).sum(axis=1))
    return logs


def softmax(values: Doubles) -> Floats:
    """(B, C) logits to (B, C) float32 shares, rows sum to 1."""
    powers: Floats = (values - values.max(axis=1, keepdims=True)).astype(np.float32)
    np.exp(powers, out=powers)
    powers /= powers.sum(axis=1, keepdims=True)
    return powers
