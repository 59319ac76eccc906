"""Outlines in a unit plane (x right, y down): every function returns points, float64 (N, 2)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Points = NDArray[np.float64]
Pair = tuple[float, float]


def ellipse(
    centre: Pair, radii: Pair, *, start: float = 0.0, stop: float = 360.0, turn: float = 0.0, count: int = 36
) -> Points:
    """Trace an elliptic arc from `start` to `stop` degrees (0 is right, 90 is down), then turn it."""
    angles = np.radians(np.linspace(start, stop, count))
    points = np.column_stack([radii[0] * np.cos(angles), radii[1] * np.sin(angles)])
    return place(points, at=centre, turn=turn)


def box(corner: Pair, opposite: Pair, *, radius: float = 0.0) -> Points:
    """Trace a rectangle between two corners, its own corners rounded by `radius`."""
    (left, right), (top, bottom) = sorted((corner[0], opposite[0])), sorted((corner[1], opposite[1]))
    if radius <= 0:
        return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    radius = min(radius, (right - left) / 2, (bottom - top) / 2)
    centres = [
        (right - radius, bottom - radius), (left + radius, bottom - radius),
        (left + radius, top + radius), (right - radius, top + radius),
    ]  # fmt: skip
    arcs = [
        ellipse(centre, (radius, radius), start=90.0 * i, stop=90.0 * i + 90, count=7)
        for i, centre in enumerate(centres)
    ]
    return np.vstack(arcs)


def polygon(*corners: Pair) -> Points:
    """Join corners by straight edges."""
    return np.array(corners, dtype=np.float64)


def curve(through: ArrayLike, *, closed: bool = False, steps: int = 8) -> Points:
    """Trace a Catmull-Rom spline through the given points."""
    knots = np.asarray(through, dtype=np.float64)
    ends = (knots[-1], knots[0], knots[1]) if closed else (knots[0], knots[-1], knots[-1])
    padded = np.vstack([ends[0], knots, ends[1], ends[2]])
    spans = len(knots) if closed else len(knots) - 1
    before, first, second, after = (padded[i : i + spans, None, :] for i in range(4))
    t = np.linspace(0.0, 1.0, steps, endpoint=False)[None, :, None]
    traced = 0.5 * (
        2 * first
        + (second - before) * t
        + (2 * before - 5 * first + 4 * second - after) * t**2
        + (3 * first - before - 3 * second + after) * t**3
    )
    flat: Points = traced.reshape(-1, 2)
    return flat if closed else np.vstack([flat, knots[-1]])


def lathe(profile: Sequence[Pair], *, smooth: bool = True) -> Points:
    """Trace a shape symmetric about x = 0 from its (half width, y) profile, listed from top to bottom."""
    right = curve(profile) if smooth else np.array(profile, dtype=np.float64)
    return np.vstack([right, mirror(right)[::-1]])


def barrel(top: Pair, bottom: Pair, *, dips: Pair) -> Points:
    """Trace a round wall between two (half width, y) levels, seen a little from below and from above."""
    lid = ellipse((0, top[1]), (top[0], dips[0]), start=180, stop=360)
    return np.vstack([lid, ellipse((0, bottom[1]), (bottom[0], dips[1]), start=0, stop=180)])


def ribbon(path: ArrayLike, widths: ArrayLike) -> Points:
    """Trace a band of varying width along a smooth path; `widths` has one full width per path point."""
    spine = curve(path)
    knots = np.linspace(0.0, 1.0, len(np.asarray(path)))
    half = np.interp(np.linspace(0.0, 1.0, len(spine)), knots, np.asarray(widths, dtype=np.float64)) / 2
    along = np.gradient(spine, axis=0)
    normal = np.column_stack([-along[:, 1], along[:, 0]]) / (np.linalg.norm(along, axis=1)[:, None] + 1e-9)
    return np.vstack([spine + normal * half[:, None], (spine - normal * half[:, None])[::-1]])


def polar(radii: ArrayLike, *, centre: Pair = (0.0, 0.0), turn: float = -90.0) -> Points:
    """Trace a closed outline from radii at equal angles; the first lies at `turn` degrees."""
    values = np.asarray(radii, dtype=np.float64)
    angles = np.radians(turn) + np.arange(len(values)) * 2 * np.pi / len(values)
    traced: Points = np.column_stack([values * np.cos(angles), values * np.sin(angles)]) + centre
    return traced


def mirror(points: Points) -> Points:
    """Reflect points in the line x = 0."""
    reflected: Points = points * np.array([-1.0, 1.0])
    return reflected


def place(points: Points, *, at: Pair = (0.0, 0.0), turn: float = 0.0, scale: float = 1.0) -> Points:
    """Scale about the origin, turn clockwise by degrees, then move to `at`."""
    cosine, sine = np.cos(np.radians(turn)) * scale, np.sin(np.radians(turn)) * scale
    moved: Points = points @ np.array([[cosine, sine], [-sine, cosine]]) + at
    return moved
