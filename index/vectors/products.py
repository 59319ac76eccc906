"""Inner products: exact ones of pairs, fast ones with a proven bound on their error, and bounds from few dimensions.

Exact is: summed in float64 and rounded once to float32, so that equal rows tie wherever they stand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import Floats

Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
_UNIT = 2.0**-24  # of one rounding to float32
_SPARE_ROUNDINGS = 32  # of turning, of norms, of sums of parts
_LEAST, _LEAST_NORM = 1e-20, 1e-18  # more than underflow takes from products, and from norms
_LARGEST_NORM = 2.0**60
_ROWS_AT_ONCE = 4096
_FIT_ROWS = 8192
_PAIRS_AT_ONCE = 512  # whose rows stay in the processor's cache


def measure_cosines(rows: Floats, queries: Floats) -> Floats:
    """(..., C) float32 exact products of (..., C, D) unit rows with (..., D) unit queries, 1 at most."""
    # Not a product of matrices: BLAS would take other cores for it, and wait for them.
    exact = np.vecdot(rows.astype(np.float64), queries.astype(np.float64)[..., None, :])
    return limit_cosines(exact.astype(np.float32))


def limit_cosines(cosines: Floats) -> Floats:
    """The same array without what roundings of unit rows put above 1 or below -1."""
    np.maximum(cosines, -1, out=cosines)  # for a few numbers np.clip takes longer than both
    return np.minimum(cosines, 1, out=cosines)


def multiply_pairs(
    left: Floats,
    right: Floats,
    rows: npt.NDArray[np.integer],
    places: npt.NDArray[np.integer],
    *,
    scale: float = 1.0,
) -> Floats:
    """(n,) float32 exact products of `rows` of (N, D) with `places` of (M, D), scaled before they are rounded."""
    products = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        first, second = left[rows[part]].astype(np.float64), right[places[part]].astype(np.float64)
        products[part] = np.einsum("nd,nd->n", first, second) * scale
    return products


def measure_norms(rows: Floats) -> Doubles:
    """(N,) norms of (N, D) rows; not finite where a row is not."""
    norms = np.empty(len(rows))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[start : start + _ROWS_AT_ONCE].astype(np.float64)
        norms[start : start + len(block)] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return norms


def find_scale(norms: Doubles) -> float:
    """1 where no square of the (N,) norms is too large for float32, else the power of two that brings all below 1."""
    largest = float(norms.max(initial=0.0))
    return 1.0 if largest < _LARGEST_NORM else float(2.0 ** -int(np.frexp(largest)[1]))


def bound_error(norms: Doubles, *, largest: float, dim: int) -> Floats:
    """(N,) float32: how far the float32 product of a row with one of a norm up to `largest` may be from the exact one.

    However D products are summed, each is rounded at most D times, and their sizes add up to at most the product of
    the norms (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1).
    """
    return ((dim + _SPARE_ROUNDINGS) * _UNIT * 1.01 * norms * largest + _LEAST * max(1.0, largest)).astype(
        np.float32
    )


def find_axes(rows: Floats) -> Doubles:
    """(D, D) orthogonal axes, those along which some of the rows have the most energy first."""
    some = rows[:: max(1, len(rows) // _FIT_ROWS)].astype(np.float64)
    axes: Doubles = np.linalg.eigh(some.T @ some)[1][:, ::-1]
    return axes


def arrange(rows: Floats, order: Places, *, scale: float, axes: Doubles | None = None) -> Floats:
    """(n, D) float32 rows in an order, scaled, and turned to the axes: their products change by a few roundings."""
    arranged = np.empty((len(order), rows.shape[1]), dtype=np.float32)
    for start in range(0, len(order), _ROWS_AT_ONCE):
        block = rows[order[start : start + _ROWS_AT_ONCE]].astype(np.float64) * scale
        arranged[start : start + len(block)] = block if axes is None else block @ axes
    return arranged


@dataclass(frozen=True, slots=True)
class Heads:
    """The first m dimensions of rows, and the norm of the others.

    Products of two heads are upper bounds of the products of their rows, for by Cauchy and Schwarz the other
    dimensions add at most the product of their norms. With m = D they are the products.

    Attributes:
        values: (N, m + 1) float32, or the rows themselves where m = D.
        rows: (N, D) float32.
    """

    values: Floats
    rows: Floats

    @classmethod
    def cut(cls, rows: Floats, m: int) -> Heads:
        """The heads of (N, D) rows, 1 <= m <= D."""
        if m == rows.shape[1]:
            return cls(rows, rows)
        values = np.empty((len(rows), m + 1), dtype=np.float32)
        values[:, :m] = rows[:, :m]
        norms = np.sqrt(np.einsum("ij,ij->i", rows[:, m:], rows[:, m:]))
        values[:, m] = norms * np.float32(1 + rows.shape[1] * _UNIT) + np.float32(_LEAST_NORM)  # never too little
        return cls(values, rows)

    @property
    def whole(self) -> bool:
        """Whether products of heads are those of the rows."""
        return self.values is self.rows

    def complete(self, places: Places, other: Heads, other_places: Places, *, bounds: Floats) -> Floats:
        """(n,) float32 products of pairs of rows, from the products of their heads."""
        if self.whole:
            return bounds
        m = self.values.shape[1] - 1
        products: Floats = bounds - self.values[places, m] * other.values[other_places, m]
        for start in range(0, len(places), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            left, right = self.rows[places[part], m:], other.rows[other_places[part], m:]
            products[part] += np.einsum("ij,ij->i", left, right)
        return products
