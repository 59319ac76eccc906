"""Animals, told apart by outline, ears, wings and what is on their backs."""

import numpy as np
from numpy.random import Generator

from retrieval_app.demo.drawing.shapes import Pair, curve, ellipse, lathe, mirror, place, polygon
from retrieval_app.demo.drawing.sketch import Drawer, Role, Sketch


def _draw_eye(sketch: Sketch, centre: Pair, *, radius: float) -> None:
    sketch.fill(ellipse(centre, (radius, radius)), Role.LIGHT)
    sketch.fill(ellipse(centre, (radius * 0.55, radius * 0.55)), Role.DARK)


def draw_fish(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    deep, fork = vary(0.36, 0.56), vary(0.36, 0.52)
    sketch.fill(curve([
        (0.5, 0), (0.96, -fork), (0.86, 0), (0.96, fork),
    ], closed=True, steps=6), Role.ACCENT)  # fmt: skip
    fin = curve([(-0.3, -deep * 0.8), (0.06, -deep - vary(0.18, 0.34)), (0.36, -deep * 0.6)])
    sketch.fill(fin, Role.ACCENT, tone=0.9)
    sketch.fill(polygon((-0.1, deep * 0.8), (0.1, deep + 0.2), (0.26, deep * 0.7)), Role.ACCENT, tone=0.9)
    back = [(-0.95, 0.02), (-0.66, -deep * 0.66), (-0.15, -deep), (0.36, -deep * 0.6), (0.66, -0.08)]
    belly = [(0.66, 0.08), (0.36, deep * 0.6), (-0.15, deep), (-0.66, deep * 0.7)]
    sketch.fill(curve([*back, *belly], closed=True), Role.BODY)
    if rng.random() < 0.5:
        for x in (-0.1, 0.2):
            high = deep * (0.8 - x * 0.8)
            sketch.line(curve([(x, -high), (x + 0.1, 0), (x, high)]), Role.ACCENT, width=0.09)
    sketch.line(ellipse((-0.52, 0), (0.16, deep * 0.62), start=-70, stop=70), Role.INK, width=0.04)
    _draw_eye(sketch, (-0.62, -0.1), radius=0.1)


def draw_whale(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    top, rise = vary(-0.42, -0.3), vary(-0.62, -0.46)
    fluke = [(0.86, -0.16), (0.62, rise - 0.08), (0.9, rise + 0.1), (1.18, rise - 0.1), (1.02, -0.14)]
    sketch.fill(curve(fluke, closed=True, steps=6), Role.BODY, tone=0.9)
    body = [
        (-1.0, 0.12), (-0.84, -0.24), (-0.4, top), (0.1, top * 0.7), (0.56, 0.02), (0.88, -0.22),
        (1.02, -0.16), (0.86, 0.3), (0.4, 0.6), (-0.4, 0.64), (-0.86, 0.46),
    ]  # fmt: skip
    sketch.fill(curve(body, closed=True), Role.BODY)
    belly = [(-0.95, 0.28), (-0.4, 0.34), (0.2, 0.4), (0.5, 0.52), (0.3, 0.61), (-0.4, 0.64), (-0.86, 0.46)]
    sketch.fill(curve(belly, closed=True), Role.LIGHT)
    sketch.fill(curve([
        (-0.2, 0.3), (0.1, 0.46), (0.06, 0.76), (-0.16, 0.56),
    ], closed=True), Role.BODY, tone=0.8)  # fmt: skip
    sketch.fill(ellipse((-0.62, 0.1), (0.06, 0.06)), Role.DARK)
    if rng.random() < 0.75:
        x = vary(-0.5, -0.36)
        for side in (-1, 1):
            spray = curve([
                (x, top), (x + 0.04 * side, top - 0.28), (x + 0.26 * side, top - 0.4),
                (x + 0.36 * side, top - 0.22),
            ])  # fmt: skip
            sketch.line(spray, Role.LIGHT, width=0.07)


def draw_duck(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    head, x, y = vary(0.28, 0.36), vary(-0.44, -0.34), vary(-0.56, -0.44)
    sketch.fill(curve([
        (x - head * 0.7, y - 0.06), (x - head - 0.2, y - 0.02), (x - head - 0.3, y + 0.1),
        (x - head * 0.8, y + 0.2),
    ], closed=True), Role.ACCENT)  # fmt: skip
    body = [
        (x - 0.16, 0.0), (-0.7, 0.3), (-0.5, 0.7), (0.1, 0.8), (0.66, 0.62), (0.94, 0.16), (1.0, -0.2),
        (0.7, -0.02), (0.3, 0.06), (0.02, -0.06),
    ]  # fmt: skip
    sketch.fill(curve(body, closed=True), Role.BODY)
    sketch.fill(ellipse((x, y), (head, head)), Role.BODY)
    sketch.fill(ellipse((x + 0.1, y + head * 0.95), (head * 0.62, 0.2)), Role.BODY)
    wing = [(-0.16, 0.26), (0.2, 0.14), (0.7, 0.1), (0.54, 0.4), (0.14, 0.52)]
    sketch.fill(curve(wing, closed=True), Role.BODY if rng.random() < 0.5 else Role.ACCENT, tone=0.8)
    _draw_eye(sketch, (x - 0.08, y - 0.06), radius=0.085)


def draw_owl(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, tuft, eye = vary(0.5, 0.62), vary(0.14, 0.28), vary(0.2, 0.25)
    for side in (-0.2, 0.2):
        sketch.fill(ellipse((side, 0.94), (0.15, 0.09)), Role.ACCENT)
    ears = [
        (0.0, -0.72), (half * 0.5, -0.78), (half * 0.86, -0.8 - tuft), (half * 0.95, -0.5), (half, 0.2),
        (half * 0.76, 0.74), (0.0, 0.94),
    ]  # fmt: skip
    sketch.fill(lathe(ears), Role.BODY)
    wing = curve([
        (half * 0.86, -0.16), (half + 0.14, 0.3), (half * 0.9, 0.74), (half * 0.56, 0.3),
    ], closed=True)  # fmt: skip
    for points in (wing, mirror(wing)):
        sketch.fill(points, Role.BODY, tone=0.74)
    sketch.fill(ellipse((0, 0.36), (half * 0.56, 0.44)), Role.THIRD)
    for row, count in ((0.2, 2), (0.38, 3), (0.56, 2)):
        for x in (np.arange(count) - (count - 1) / 2) * 0.2:
            sketch.line(ellipse((float(x), row), (0.07, 0.07), start=20, stop=160, count=8), Role.INK, width=0.035)
    for side in (-1, 1):
        centre = (side * eye * 1.08, -0.38)
        sketch.fill(ellipse(centre, (eye * 1.2, eye * 1.2)), Role.ACCENT)
        _draw_eye(sketch, centre, radius=eye * 0.92)
    sketch.fill(polygon((-0.09, -0.3), (0.09, -0.3), (0, -0.08)), Role.THIRD, tone=0.85)


def _draw_muzzle(sketch: Sketch, *, y: float) -> None:
    sketch.fill(polygon((-0.09, y), (0.09, y), (0, y + 0.1)), Role.ACCENT, tone=0.8)
    for side in (-1, 1):
        mouth = ellipse((side * 0.1, y + 0.1), (0.1, 0.1), start=0, stop=180, count=12)
        sketch.line(mouth, Role.INK, width=0.04)


def draw_cat(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    wide, ear = vary(0.72, 0.84), vary(0.88, 1.02)
    outer = polygon((wide * 0.96, -0.1), (wide * 0.9, -ear), (wide * 0.18, -0.48))
    inner = polygon((wide * 0.84, -0.26), (wide * 0.8, -ear * 0.82), (wide * 0.38, -0.46))
    for flip in (outer, mirror(outer)):
        sketch.fill(flip, Role.BODY)
    for flip in (inner, mirror(inner)):
        sketch.fill(flip, Role.ACCENT)
    sketch.fill(ellipse((0, 0.12), (wide, vary(0.6, 0.7))), Role.BODY)
    if rng.random() < 0.5:
        for x in (-0.16, 0.0, 0.16):
            sketch.line(polygon((x, -0.46), (x * 0.8, -0.24)), Role.ACCENT, width=0.07)
    sketch.fill(ellipse((0, 0.38), (0.3, 0.22)), Role.LIGHT)
    for side in (-1, 1):
        sketch.fill(ellipse((side * 0.34, 0.02), (0.14, 0.15)), Role.LIGHT)
        sketch.fill(ellipse((side * 0.34, 0.02), (0.055, 0.13)), Role.DARK)
        for drop in (0.26, 0.38):
            whisker = polygon((side * 0.34, drop + 0.04), (side * (wide + 0.2), drop * 1.5 - 0.14))
            sketch.line(whisker, Role.INK, width=0.03)
    _draw_muzzle(sketch, y=0.24)


def draw_rabbit(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    lean, long, wide = vary(4, 20), vary(0.44, 0.54), vary(0.5, 0.6)
    for side in (-1, 1):
        ear = place(ellipse((0, -long), (0.18, long)), at=(side * 0.24, 0.0), turn=side * lean)
        inner = place(ellipse((0, -long), (0.09, long * 0.76)), at=(side * 0.24, 0.0), turn=side * lean)
        sketch.fill(ear, Role.BODY)
        sketch.fill(inner, Role.ACCENT)
    sketch.fill(ellipse((0, 0.4), (wide, vary(0.5, 0.58))), Role.BODY)
    for side in (-1, 1):
        _draw_eye(sketch, (side * 0.24, 0.28), radius=0.1)
    sketch.fill(ellipse((0, 0.6), (0.26, 0.2)), Role.LIGHT)
    sketch.fill(polygon((-0.08, 0.66), (0.08, 0.66), (0.07, 0.84), (-0.07, 0.84)), Role.LIGHT, tone=1.1)
    _draw_muzzle(sketch, y=0.48)


def draw_butterfly(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    span, drop = vary(0.86, 1.02), vary(0.66, 0.86)
    upper = curve([
        (0.03, -0.1), (0.3, -0.6), (span * 0.8, -0.86), (span, -0.6), (span * 0.84, -0.1), (0.4, 0.1),
    ], closed=True)  # fmt: skip
    lower = curve([
        (0.03, 0.05), (0.4, 0.05), (span * 0.78, 0.22), (span * 0.7, drop * 0.86), (0.42, drop),
        (0.14, 0.5),
    ], closed=True)  # fmt: skip
    spot = vary(0.1, 0.17)
    for flip in (1.0, -1.0):
        side = np.array([flip, 1.0])
        sketch.fill(lower * side, Role.ACCENT)
        sketch.fill(upper * side, Role.BODY)
        sketch.fill(ellipse((flip * span * 0.66, -0.46), (spot, spot * 1.2)), Role.THIRD)
        sketch.fill(ellipse((flip * span * 0.5, 0.46), (spot * 0.8, spot * 0.8)), Role.THIRD)
        feeler = curve([(0, -0.5), (flip * 0.1, -0.74), (flip * 0.26, -0.9)])
        sketch.line(feeler, Role.DARK, width=0.045)
    sketch.fill(ellipse((0, 0.02), (0.085, 0.5)), Role.DARK)
    sketch.fill(ellipse((0, -0.48), (0.11, 0.11)), Role.DARK)


def draw_ladybird(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, spot = vary(0.66, 0.76), vary(0.11, 0.17)
    for side in (-1, 1):
        for y, reach in ((-0.3, 0.2), (0.14, 0.28), (0.54, 0.22)):
            leg = curve([
                (side * half * 0.7, y), (side * (half + reach * 0.6), y - 0.04),
                (side * (half + reach), y + 0.14),
            ])  # fmt: skip
            sketch.line(leg, Role.DARK, width=0.07)
        sketch.line(curve([
            (side * 0.14, -0.8), (side * 0.22, -1.0), (side * 0.4, -1.06),
        ]), Role.DARK, width=0.05)  # fmt: skip
    sketch.fill(ellipse((0, -0.62), (0.4, 0.34)), Role.DARK)
    for side in (-1, 1):
        sketch.fill(ellipse((side * 0.18, -0.78), (0.07, 0.07)), Role.LIGHT)
    sketch.fill(ellipse((0, 0.16), (half, 0.76)), Role.BODY)
    sketch.line(polygon((0, -0.58), (0, 0.9)), Role.DARK, width=0.06)
    for x, y in ((0.32, -0.2), (0.4, 0.26), (0.24, 0.62))[: int(rng.integers(2, 4))]:
        for side in (-1, 1):
            sketch.fill(ellipse((side * x, y), (spot, spot)), Role.DARK)


DRAWERS: dict[str, Drawer] = {
    "fish": draw_fish,
    "whale": draw_whale,
    "duck": draw_duck,
    "owl": draw_owl,
    "cat": draw_cat,
    "rabbit": draw_rabbit,
    "butterfly": draw_butterfly,
    "ladybird": draw_ladybird,
}
