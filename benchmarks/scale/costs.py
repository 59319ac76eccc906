"""What a quantity costs at any number of images: a fixed part, and a part for each unit of the work that it grows with.

Cost = fixed + each x work(images, widths); both parts are fitted to measurements of small galleries, neither below 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from index.vectors.kinds.kind import Wanted
from index.vectors.kinds.lists import count_lists
from index.vectors.kinds.registry import KINDS

KMEANS_ROUNDS = 10  # of faiss, as it comes
ROW_BYTES = 300  # of a catalogue, about: how reading a gallery is divided among its rows and its vectors
Widths = Sequence[int]
Work = Callable[[int, Widths], float]


def _rows(images: int, widths: Widths) -> float:
    """One for each image."""
    return images


def _numbers(images: int, widths: Widths) -> float:
    """One for each number of the vectors that a search by kind passes, which are the first ones."""
    return images * widths[0]


def _all_numbers(images: int, widths: Widths) -> float:
    """One for each number of all vectors."""
    return images * sum(widths)


def _stored(images: int, widths: Widths) -> float:
    """The bytes of rows, of vectors and of their ids."""
    return images * (ROW_BYTES + sum(4 * width + 8 for width in widths))


def _lists(images: int, widths: Widths) -> float:
    """The numbers of the vectors in as many lists as a search looks into, which is the same few of 4 sqrt(N)."""
    return images / count_lists(images) * widths[0] + count_lists(images) * widths[0]


def _clustering(images: int, widths: Widths) -> float:
    """Products of vectors with centres: in k-means over the training rows, then once for every vector."""
    lists = count_lists(images)
    trained = min(images, KINDS["ivf"].count_training_rows(images))
    return (KMEANS_ROUNDS * trained + images) * lists * sum(widths)


def _graph(images: int, widths: Widths) -> float:
    """Each vector is put into a graph whose depth grows with the logarithm of the vectors."""
    return images * math.log2(max(2, images)) * sum(widths)


def _descent(images: int, widths: Widths) -> float:
    """The logarithm of the vectors."""
    return math.log2(max(2, images)) * widths[0]


def _held(kind: str) -> Work:
    """The bytes that the kind's own plan says of all outputs."""
    return lambda images, widths: float(
        sum(KINDS[kind].plan(Wanted(images, width))[0].memory_bytes for width in widths)
    )


APPROXIMATE = ("hnsw", "ivf", "pq")
GROWTHS: Mapping[str, Work] = {
    "images": _rows, "numbers": _numbers, "all numbers": _all_numbers, "stored bytes": _stored, "lists": _lists,
    "clustering": _clustering, "graph": _graph, "descent": _descent,
    **{f"{kind} plan": _held(kind) for kind in APPROXIMATE},
}  # fmt: skip
"""The works that a cost may grow with, by name."""

BUILDING = {"flat": "images", "hnsw": "graph", "ivf": "clustering", "pq": "clustering"}
SEARCHING = {"flat": "numbers", "hnsw": "descent", "ivf": "lists", "pq": "lists"}


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost in seconds or bytes.

    Attributes:
        fixed: whatever the number of images.
        each: for each unit of the work.
        growth: the work's name, one of `GROWTHS`.
    """

    fixed: float
    each: float
    growth: str = "images"

    def __post_init__(self) -> None:
        if self.growth not in GROWTHS:
            raise ValueError(f"growth must be one of {', '.join(GROWTHS)}, got {self.growth!r}")
        if not (self.fixed >= 0 and self.each >= 0):
            raise ValueError(f"a cost is never below 0, got {self.fixed} and {self.each} for each")

    def at(self, images: int, widths: Widths) -> float:
        """What it comes to for so many images, with vectors of these widths."""
        return self.fixed + self.each * GROWTHS[self.growth](images, widths)

    def reach(self, limit: float, widths: Widths, *, most: int = 10**12) -> int | None:
        """The most images for which it stays within a limit; None where even `most` do, 0 where none does."""
        if self.at(most, widths) <= limit:
            return None
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle, widths) <= limit else (low, middle)
        return low


def fit_cost(measured: Mapping[int, float], widths: Widths, *, growth: str = "images") -> Cost:
    """The cost whose relative errors at the measured numbers of images have the least squares.

    Raises:
        ValueError: fewer than two numbers of images were measured, or a cost is not above 0.
    """
    if len(measured) < 2 or min(measured.values()) <= 0:
        raise ValueError(
            f"a cost is fitted to two numbers of images or more, with costs above 0; got {dict(measured)}"
        )
    works = np.array([GROWTHS[growth](images, widths) for images in measured])
    values = np.array(list(measured.values()), dtype=np.float64)
    scale = works.max()
    (fixed, each), _ = nnls(np.stack([1 / values, works / scale / values], axis=1), np.ones(len(values)))
    return Cost(float(fixed), float(each / scale), growth)
