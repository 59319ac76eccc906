"""A sketch: the ordered parts that an object is made of, before it has colours, a pose or a place."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

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


class Sketch:
    """Collects the parts of an object, the hindmost first."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def fill(self, points: Points, role: Role, *, tone: float = 1.0, outlined: bool = True) -> None:
        """Add a filled outline."""
        self.parts.append(Part(points, role, tone, outlined=outlined))

    def line(self, points: Points, role: Role, *, width: float, tone: float = 1.0) -> None:
        """Add a stroked path with round ends; fine strokes are details, which ink would drown."""
        self.parts.append(Part(points, role, tone, width, outlined=width > _FINE and role is not Role.INK))


Drawer = Callable[[Sketch, np.random.Generator], None]


def transform(part: Part, *, matrix: Points, offset: Points) -> Part:
    """Map a part by `points @ matrix + offset`; stroke widths grow with the root of the area."""
    width = None if part.width is None else part.width * float(np.sqrt(abs(np.linalg.det(matrix))))
    return replace(part, points=part.points @ matrix + offset, width=width)
