"""Colours for a picture: drawn anew each time and blind to the kind, so that colour names nothing."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from retrieval_app.demo.drawing.sketch import Role

Colour = NDArray[np.float32]
"""Three sRGB values in 0-255, float32 (3,)."""

_TO_CONES = np.array(
    [[1.0, 0.3963377774, 0.2158037573], [1.0, -0.1055613458, -0.0638541728], [1.0, -0.0894841775, -1.2914855480]]
)
_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def mix_colour(*, lightness: float, chroma: float, hue: float) -> Colour:
    """Turn an OKLCH colour (hue in degrees) into sRGB (Ottosson, "A perceptual color space", 2020)."""
    angle = np.radians(hue)
    lab = np.array([lightness, chroma * np.cos(angle), chroma * np.sin(angle)])
    linear = np.clip(_TO_LINEAR @ (_TO_CONES @ lab) ** 3, 0.0, 1.0)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    colour: Colour = (255 * encoded).astype(np.float32)
    return colour


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one picture."""

    paint: dict[Role, Colour]
    """First colour of each role."""
    second: dict[Role, Colour]
    """Colour that the material of a role alternates with."""
    background: tuple[Colour, Colour]
    """The two colours of the background."""


def choose_palette(rng: Generator) -> Palette:
    """Draw colours whose object is light against dark or dark against light, in any hue."""
    vary = rng.uniform
    hue, light = vary(0, 360), vary(0.4, 0.84)
    back = vary(0.28, 0.98)
    while abs(back - light) < 0.17:
        back = vary(0.28, 0.98)
    spread = (0, 30, 60, 120, 150, 180, 210, 240, 300, 330)
    accent_hue, third_hue = (hue + float(rng.choice(spread)) for _ in range(2))
    accent_light = _contrast(rng, light, 0.13)
    chroma = vary(0.02, 0.19)
    paint = {
        Role.BODY: mix_colour(lightness=light, chroma=chroma, hue=hue),
        Role.ACCENT: mix_colour(lightness=accent_light, chroma=vary(0.03, 0.18), hue=accent_hue),
        Role.THIRD: mix_colour(lightness=_contrast(rng, light, 0.1), chroma=vary(0.04, 0.18), hue=third_hue),
        Role.DARK: mix_colour(lightness=vary(0.2, 0.32), chroma=vary(0, 0.05), hue=vary(0, 360)),
        Role.LIGHT: mix_colour(lightness=vary(0.91, 0.98), chroma=vary(0, 0.03), hue=vary(0, 360)),
        Role.INK: mix_colour(lightness=vary(0.16, 0.3), chroma=vary(0, 0.07), hue=hue),
        Role.OTHER: mix_colour(lightness=vary(0.4, 0.85), chroma=vary(0.02, 0.17), hue=vary(0, 360)),
        Role.OTHER_ACCENT: mix_colour(lightness=vary(0.3, 0.9), chroma=vary(0.02, 0.17), hue=vary(0, 360)),
    }
    second = dict(paint)
    for role, first in ((Role.BODY, light), (Role.ACCENT, accent_light)):
        step = vary(0.1, 0.22) * (1 if first < 0.62 else -1)
        turn = accent_hue if rng.random() < 0.3 else hue + vary(-30, 30)
        second[role] = mix_colour(lightness=first + step, chroma=vary(0.02, 0.16), hue=turn)
    back_hue, back_chroma = vary(0, 360), vary(0.0, 0.11)
    shift = vary(0.05, 0.14) * (1 if back > light else -1)
    behind = (
        mix_colour(lightness=back, chroma=back_chroma, hue=back_hue),
        mix_colour(
            lightness=float(np.clip(back + shift, 0.18, 1.0)), chroma=back_chroma, hue=back_hue + vary(-50, 50)
        ),
    )
    return Palette(paint=paint, second=second, background=behind)


def _contrast(rng: Generator, light: float, distance: float) -> float:
    other = float(rng.uniform(0.35, 0.9))
    while abs(other - light) < distance:
        other = float(rng.uniform(0.35, 0.9))
    return other
