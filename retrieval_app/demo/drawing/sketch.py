"""A sketch: the ordered parts that an object is made of, before it has colours, a pose or a place."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike

from retrieval_app.demo.drawing.shapes import Points


class Role(IntEnum):
    """What a part is painted with; the scene decides the colours, so that no kind owns a colour."""

    HOLE = 0
    BODY = 1
    ACCENT = 2
    THIRD = 3
    DARK = 4
    LIGHT = 5
    INK = 6
    OTHER = 7
    OTHER_ACCENT = 8


HOLE, BODY, ACCENT, THIRD, DARK, LIGHT, INK, OTHER, OTHER_ACCENT = Role


@dataclass(frozen=True, slots=True)
class Part:
    """One filled outline or one stroked path."""

    points: Points
    """Outline or path, float64 (N, 2)."""
    role: Role
    """What it is painted with; `HOLE` shows the background again."""
    tone: float = 1.0
    """Factor on the brightness of the paint."""
    width: float | None = None
    """Stroke width in the unit of the points; None fills the outline."""
    outlined: bool = True
    """Whether a picture drawn with ink outlines gives this part one."""


_FINE = 0.062


class Pen:
    """Draws the parts of an object, the hindmost first, its proportions decided by a generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.vary = rng.uniform
        self.parts: list[Part] = []

    def chance(self, share: float) -> bool:
        """True in this share of all pictures."""
        return self.rng.random() < share

    def count(self, low: int, high: int) -> int:
        """A number from `low` to below `high`."""
        return int(self.rng.integers(low, high))

    def fill(self, points: ArrayLike, role: Role, *, tone: float = 1.0, outlined: bool = True) -> None:
        """Add a filled outline."""
        self.parts.append(Part(np.asarray(points, dtype=np.float64), role, tone, outlined=outlined))

    def fill_both(self, points: ArrayLike, role: Role, *, tone: float = 1.0) -> None:
        """Add a filled outline and its reflection in the line x = 0."""
        for side in (1.0, -1.0):
            self.fill(np.asarray(points) * (side, 1.0), role, tone=tone)

    def line(self, points: ArrayLike, role: Role, *, width: float, tone: float = 1.0) -> None:
        """Add a stroked path with round ends; fine strokes are details, which ink would drown."""
        outlined = width > _FINE and role is not Role.INK
        self.parts.append(Part(np.asarray(points, dtype=np.float64), role, tone, width, outlined))


def transform(part: Part, *, matrix: Points, offset: Points) -> Part:
    """Map a part by `points @ matrix + offset`; stroke widths grow with the root of the area."""
    width = None if part.width is None else part.width * float(np.sqrt(abs(np.linalg.det(matrix))))
    return replace(part, points=part.points @ matrix + offset, width=width)
