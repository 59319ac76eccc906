"""Surface patterns: fields in 0-1, float32 (H, W), that say where the second colour shows.

Every pattern takes the picture's coordinates `x` and `y`, float32 (H, W) in 0-1, and a generator.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

Field = NDArray[np.float32]
Pattern = Callable[[Field, Field, Generator], Field]


def _turn(x: Field, y: Field, rng: Generator) -> tuple[Field, Field]:
    angle = rng.uniform(0, np.pi)
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return cosine * x + sine * y, cosine * y - sine * x


def _soften(field: Field, sharpness: float) -> Field:
    softened: Field = np.clip(np.float32(sharpness) * field + np.float32(0.5), 0.0, 1.0)
    return softened


def _wave(position: Field, cycles: float, phase: float = 0.0) -> Field:
    wave: Field = np.sin(position * np.float32(2 * np.pi * cycles) + np.float32(phase))
    return wave


def draw_clouds(x: Field, y: Field, rng: Generator) -> Field:
    """Draw smooth random blobs."""
    cells = int(rng.integers(3, 8))
    coarse = Image.fromarray(rng.random((cells, cells), dtype=np.float32))
    height, width = x.shape
    clouds: Field = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    return clouds.clip(0, 1)


def draw_stripes(x: Field, y: Field, rng: Generator) -> Field:
    """Draw parallel stripes at any angle."""
    along, _ = _turn(x, y, rng)
    return _soften(_wave(along, rng.uniform(5, 12), rng.uniform(0, 6)) + np.float32(rng.uniform(-0.5, 0.5)), 2.5)


def draw_dots(x: Field, y: Field, rng: Generator) -> Field:
    """Draw a lattice of round dots."""
    along, across = _turn(x, y, rng)
    cycles = rng.uniform(5, 9)
    return _soften(_wave(along, cycles) * _wave(across, cycles) - np.float32(rng.uniform(0.2, 0.5)), 4)


def draw_checks(x: Field, y: Field, rng: Generator) -> Field:
    """Draw a chessboard or a woven plaid."""
    along, across = _turn(x, y, rng)
    cycles = rng.uniform(2.5, 7)
    if rng.random() < 0.5:
        return _soften(_wave(along, cycles) * _wave(across, cycles), 5)
    woven: Field = np.float32(0.5) * (_soften(_wave(along, cycles), 3) + _soften(_wave(across, cycles), 3))
    return woven


def draw_wood(x: Field, y: Field, rng: Generator) -> Field:
    """Draw wavering grain."""
    along, _ = _turn(x, y, rng)
    bent = along + np.float32(0.12) * draw_clouds(x, y, rng)
    return _soften(_wave(bent, rng.uniform(9, 16)) + np.float32(0.6) * _wave(bent, rng.uniform(2, 4)), 0.45)


def draw_metal(x: Field, y: Field, rng: Generator) -> Field:
    """Draw the broad bright and dark bands of polished metal."""
    along, _ = _turn(x, y, rng)
    band = _wave(along, rng.uniform(1.2, 2.4), rng.uniform(0, 6))
    return _soften(band * np.abs(band), 0.55)


def draw_ramp(x: Field, y: Field, rng: Generator) -> Field:
    """Draw one even gradient from edge to edge."""
    along, _ = _turn(x, y, rng)
    low, high = along.min(), along.max()
    ramp: Field = (along - low) / (high - low)
    return ramp if rng.random() < 0.5 else 1 - ramp


def draw_marble(x: Field, y: Field, rng: Generator) -> Field:
    """Draw veins that follow the edges of clouds."""
    veins = np.abs(_wave(draw_clouds(x, y, rng) + np.float32(0.5) * x, rng.uniform(1.5, 3)))
    marble: Field = (1 - veins) ** 2
    return marble


def draw_speckles(x: Field, y: Field, rng: Generator) -> Field:
    """Draw fine random grains."""
    height, width = x.shape
    coarse = Image.fromarray(rng.random((48, 48), dtype=np.float32))
    return _soften(np.asarray(coarse.resize((width, height), Image.Resampling.BILINEAR)) - np.float32(0.62), 4)


def draw_horizon(x: Field, y: Field, rng: Generator) -> Field:
    """Draw a ground below a sky, each with a gentle gradient."""
    level, slope = np.float32(rng.uniform(0.5, 0.85)), np.float32(rng.uniform(-0.12, 0.12))
    return _soften(y - level + slope * (x - np.float32(0.5)), 60) * np.float32(0.8) + np.float32(0.2) * (1 - y)


def draw_glow(x: Field, y: Field, rng: Generator) -> Field:
    """Draw a round glow around a random centre."""
    left, top = rng.uniform(0.2, 0.8, 2).astype(np.float32)
    glow: Field = np.exp(((x - left) ** 2 + (y - top) ** 2) * np.float32(-rng.uniform(3, 9)))
    return glow


def draw_bokeh(x: Field, y: Field, rng: Generator) -> Field:
    """Draw soft discs of many sizes, as lights out of focus."""
    field = np.zeros_like(x)
    for left, top, radius, strength in rng.uniform((0, 0, 0.05, 0.3), (1, 1, 0.17, 0.9), (9, 4)).astype(
        np.float32
    ):
        distance = np.sqrt((x - left) ** 2 + (y - top) ** 2)
        field += strength * _soften(radius - distance, 25)
    return field.clip(0, 1)


MATERIALS: tuple[Pattern, ...] = (
    draw_stripes, draw_dots, draw_checks, draw_wood, draw_metal, draw_ramp, draw_marble, draw_speckles
)  # fmt: skip
BACKDROPS: tuple[Pattern, ...] = (
    draw_clouds, draw_stripes, draw_checks, draw_wood, draw_ramp, draw_marble, draw_speckles, draw_horizon,
    draw_glow, draw_bokeh, draw_dots, draw_horizon, draw_clouds, draw_ramp,
)  # fmt: skip
