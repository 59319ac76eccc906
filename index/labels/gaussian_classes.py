"""Confidences of Gaussian classes by cross-validation: each tenth of the rows is predicted from the other nine.

With x a row, W the scatter within labels and B the one between them, a basis is taken in which W is 1 and B diagonal:
psi_d. There labels are drawn from N(0, psi_d) and rows of a label from N(label, 1), so that after n rows of mean a

    x_d ~ N(n psi_d / (n psi_d + 1) a_d, 1 + psi_d / (n psi_d + 1))

(probabilistic linear discriminant analysis: Ioffe, 2006). A label of few rows is thus known less well, instead of
being less likely. Unlike a regression's, the logarithms of these probabilities separate far labels from very far ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from index.arrays import Doubles, Floats, Ids, Labels, normalise_rows
from index.labels.leave_one_out import Tell, add_by_label, cut_rows, find_least, log_softmax, softmax

FOLDS = 10
SHRINKAGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # candidates for W, towards a sphere, in mean variances of a direction
_TEMPERATURES = np.geomspace(0.02, 3, 28).tolist()
CHOOSING = 3  # folds by which shrinkage and temperature are chosen
_WIDTH = 512  # directions of the most variance that are looked at
_ROWS_AT_ONCE = 4096
_VALUES_AT_ONCE = 1 << 22  # confidences in memory
_MOST_CHOOSING = 1 << 21  # confidences of a fold that choose
_LEAST_SPREAD = 1e-4  # psi below which a direction tells no labels apart
_LEAST_LOG = np.log(1e-12)  # of a probability
_HALF_A_ROW = 0.5  # labels of less weight do not say how labels are spread

Scored: TypeAlias = list[tuple[Doubles, Ids, Doubles]]
"""(B, C) log likelihoods, with their (B,) rows and weights."""


class GaussianClasses:
    """Gaussian classes: confidences of N rows in C labels, each from rows of other folds.

    confidence of c = softmax(temperature * log likelihood of c + prior * log n_c), with a prior of 0..1; shrinkage and
    temperature are those of two grids under which the given labels of three folds are likeliest. Rows of one of the
    (N,) groups are in one fold. `tell` is called with the number of finished rows.
    """

    def __init__(
        self, features: Floats, labels: Labels, *, count: int, prior: float, groups: Ids | None, tell: Tell
    ) -> None:
        self._rows, self._axes = _reduce(features)
        self._labels, self._count, self._tell = labels, count, tell
        self._images = np.bincount(labels, minlength=count)
        self._prior: Doubles = prior * np.log(np.maximum(self._images, 1))
        self._groups = np.arange(len(labels)) if groups is None else groups
        self._fold_of, self._folds = _assign_folds(labels, self._groups)
        self._balance: Doubles = 1 / np.sqrt(self._images[labels])
        self._weigh(np.ones(len(labels)), SHRINKAGES)

    def weigh(self, weights: Doubles) -> None:
        """Count every row by its (N,) weight in 0..1 from now on."""
        self._weigh(weights, (self.shrinkage,))

    def blocks(self) -> Iterator[tuple[Ids, "_Classes | None"]]:
        """(rows, their classes, fitted without their fold), by fold and group; None where all rows are one group."""
        for fold in range(self._folds):
            classes = _fit(self._without(fold), self.shrinkage) if self._folds > 1 else None
            of_fold = np.flatnonzero(self._fold_of == fold)
            for rows in self._cut(of_fold[np.argsort(self._groups[of_fold], kind="stable")]):
                yield rows, classes

    def confidences(self, rows: Ids, classes: "_Classes | None") -> Floats:
        """(B, C) float32 confidences of a block; without classes all labels are equally likely."""
        scores = np.zeros((len(rows), self._count))
        if classes is not None:
            scores = classes.log_likelihood(self._rows[rows].astype(np.float64))
        return softmax(self.temperature * scores + self._prior)

    def predict(self, features: Floats) -> Iterator[tuple[slice, Floats]]:
        """(rows, (B, C) float32 confidences) of (M, D) other images, from all rows."""
        classes = _fit(self._sums, self.shrinkage)
        for rows in self._cut(np.arange(len(features))):
            values = normalise_rows(features[rows])
            scores = classes.log_likelihood((values if self._axes is None else values @ self._axes).astype(np.float64))
            yield slice(rows[0], rows[-1] + 1), softmax(self.temperature * scores + self._prior)

    def _weigh(self, weights: Doubles, shrinkages: tuple[float, ...]) -> None:
        self._weights = weights
        self._sums = self._add_up(np.arange(len(self._labels)))
        self.shrinkage, self.temperature = self._choose(shrinkages) if self._folds > 1 else (shrinkages[0], 0.0)

    def _cut(self, rows: Ids) -> Iterator[Ids]:
        return cut_rows(rows, min(_ROWS_AT_ONCE, max(1, _VALUES_AT_ONCE // self._count)))

    def _add_up(self, rows: Ids) -> "_Sums":
        """Weights and sums of the rows of every label, and their scatter about 0."""
        width = self._rows.shape[1]
        found = _Sums(
            np.bincount(self._labels[rows], self._weights[rows], self._count).astype(np.float64),
            np.zeros((self._count, width)),
            np.zeros((width, width)),
        )
        for some in cut_rows(rows, _ROWS_AT_ONCE):
            values = self._rows[some].astype(np.float64)
            weighted = values * self._weights[some, None]
            found.scatter[:] += weighted.T @ values
            add_by_label(found.rows, weighted, self._labels[some])
            self._tell(0)
        return found

    def _without(self, fold: int) -> "_Sums":
        one = self._add_up(np.flatnonzero(self._fold_of == fold))
        return _Sums(
            (self._sums.weights - one.weights).clip(min=0), self._sums.rows - one.rows, self._sums.scatter - one.scatter
        )

    def _choose(self, shrinkages: tuple[float, ...]) -> tuple[float, float]:
        """The shrinkage and the temperature of the lowest cross-entropy with the given labels of some folds."""
        best = (np.inf, 0.0, 0.0)
        folds = []
        for fold in range(min(CHOOSING, self._folds)):
            rows = np.flatnonzero(self._fold_of == fold)
            most = count_choosing(len(rows), self._count)
            rows = rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
            folds.append((self._without(fold), rows, self._weights[rows] * self._balance[rows]))
        for shrinkage in shrinkages:
            scored = []
            for sums, rows, parts in folds:
                scored.append((_fit(sums, shrinkage).log_likelihood(self._rows[rows].astype(np.float64)), rows, parts))
                self._tell(len(rows))

            def find_loss(temperature: float, scored: Scored = scored) -> float:
                loss = 0.0
                for scores, rows, parts in scored:
                    likely = log_softmax(temperature * scores + self._prior, self._labels[rows])
                    loss -= float(likely.clip(min=_LEAST_LOG) @ parts)
                return loss

            loss, temperature = find_least(_TEMPERATURES, find_loss)
            best = min(best, (loss, shrinkage, temperature))
        return best[1:]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Class statistics of weighted rows: (C,) weights, (C, d) sums and (d, d) scatter about 0."""

    weights: Doubles
    rows: Doubles
    scatter: Doubles


@dataclass(frozen=True, slots=True)
class _Classes:
    """Labels in the basis."""

    middle: Doubles  # (d,) mean of the labels' means
    axes: Doubles  # (d, r) the basis
    scaled: Doubles  # (C, r) means over variances
    inverse: Doubles  # (C, r) 1 over variances
    constant: Doubles  # (C,) what depends on the label alone; -inf for labels of no row

    def log_likelihood(self, rows: Doubles) -> Doubles:
        """(B, d) to (B, C) log likelihoods, without terms that all labels share."""
        along = (rows - self.middle) @ self.axes
        found: Doubles = along @ self.scaled.T - 0.5 * np.square(along) @ self.inverse.T + self.constant
        return found


def count_choosing(images: int, count: int) -> int:
    """Number of a fold's rows that choose shrinkage and temperature; `tell` is called with it for each shrinkage."""
    return min(images, max(1, _MOST_CHOOSING // count))


def _fit(sums: _Sums, shrinkage: float) -> _Classes:
    weights, total, width = sums.weights, sums.weights.sum(), len(sums.scatter)
    means = sums.rows / np.maximum(weights, 1e-9)[:, None]
    within = sums.scatter - (means.T * weights) @ means
    within /= max(total - np.count_nonzero(weights), total / 10, 1e-9)
    spread = weights >= min(_HALF_A_ROW, weights.max())
    middle = means[spread].mean(axis=0)
    means = np.where((weights > 0)[:, None], means - middle, 0.0)
    shrunk = within + shrinkage * max(np.trace(within) / width, 1e-9) * np.eye(width)
    axes, between = _diagonalise(means[spread], shrunk)
    noise = np.einsum("dr,dr->r", axes, within @ axes) * np.mean(1 / weights[spread])
    psi = between / spread.sum() - noise
    axes, psi = axes[:, psi > _LEAST_SPREAD], psi[psi > _LEAST_SPREAD]
    known = weights[:, None] * psi / (weights[:, None] * psi + 1)
    inverse = 1 / (1 + psi / (weights[:, None] * psi + 1))
    placed = known * (means @ axes)
    constant = 0.5 * (np.log(inverse) - np.square(placed) * inverse).sum(axis=1)
    return _Classes(middle, axes, placed * inverse, inverse, np.where(weights > 0, constant, -np.inf))


def _diagonalise(means: Doubles, within: Doubles) -> tuple[Doubles, Doubles]:
    """(d, r) axes along which (d, d) `within` is 1 and the scatter of (c, d) means diagonal, and (r,) that scatter."""
    root = np.linalg.cholesky(within)
    whitened = np.linalg.solve(root, means.T)
    if len(means) < len(within):  # the smaller one of the two matrices that have the same eigenvalues
        between, turned = np.linalg.eigh(whitened.T @ whitened)
        kept = between > max(1e-9 * between[-1], 1e-15)
        between, turned = between[kept], whitened @ (turned[:, kept] / np.sqrt(between[kept]))
    else:
        between, turned = np.linalg.eigh(whitened @ whitened.T)
    return np.linalg.solve(root.T, turned), between


def _reduce(features: Floats) -> tuple[Floats, Floats | None]:
    """(N, d) float32 along the (D, d) directions of the most variance, of (N, D) rows of unit norm, and these axes."""
    rows = normalise_rows(features)
    if rows.shape[1] <= _WIDTH:
        return rows, None
    middle, scatter = rows.mean(axis=0, dtype=np.float64), np.zeros((rows.shape[1],) * 2)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        values = rows[start : start + _ROWS_AT_ONCE] - middle
        scatter += values.T @ values
    axes = np.linalg.eigh(scatter)[1][:, -_WIDTH:].astype(np.float32)
    return np.asarray(rows @ axes, dtype=np.float32), axes


def _assign_folds(labels: Labels, groups: Ids) -> tuple[Ids, int]:
    """Fold of each row, and their number; the folds are deterministic, and spread the rows of every label."""
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    folds = min(FOLDS, len(first))
    order = np.lexsort((np.random.default_rng(0).random(len(first)), labels[first]))
    fold_of = np.empty(len(first), dtype=np.int64)
    fold_of[order] = np.arange(len(first)) % folds
    return fold_of[group_of], folds
