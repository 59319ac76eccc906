"""Animals, told apart by outline, ears, wings and what is on their backs."""

import numpy as np

from retrieval_app.demo.drawing.shapes import Pair, curve, ellipse, lathe, place, polygon
from retrieval_app.demo.drawing.sketch import ACCENT, BODY, DARK, INK, LIGHT, THIRD, Pen


def _draw_eye(pen: Pen, centre: Pair, *, radius: float) -> None:
    pen.fill(ellipse(centre, (radius, radius)), LIGHT)
    pen.fill(ellipse(centre, (radius * 0.55, radius * 0.55)), DARK)


def draw_fish(pen: Pen) -> None:
    deep, fork = pen.vary(0.36, 0.56), pen.vary(0.36, 0.52)
    pen.fill(curve([(0.5, 0), (0.96, -fork), (0.86, 0), (0.96, fork)], closed=True, steps=6), ACCENT)
    fin = curve([(-0.3, -deep * 0.8), (0.06, -deep - pen.vary(0.18, 0.34)), (0.36, -deep * 0.6)])
    pen.fill(fin, ACCENT, tone=0.9)
    pen.fill([(-0.1, deep * 0.8), (0.1, deep + 0.2), (0.26, deep * 0.7)], ACCENT, tone=0.9)
    back = [(-0.95, 0.02), (-0.66, -deep * 0.66), (-0.15, -deep), (0.36, -deep * 0.6), (0.66, -0.08)]
    belly = [(0.66, 0.08), (0.36, deep * 0.6), (-0.15, deep), (-0.66, deep * 0.7)]
    pen.fill(curve([*back, *belly], closed=True), BODY)
    if pen.chance(0.5):
        for x in (-0.1, 0.2):
            high = deep * (0.8 - x * 0.8)
            pen.line(curve([(x, -high), (x + 0.1, 0), (x, high)]), ACCENT, width=0.09)
    pen.line(ellipse((-0.52, 0), (0.16, deep * 0.62), start=-70, stop=70), INK, width=0.04)
    _draw_eye(pen, (-0.62, -0.1), radius=0.1)


def draw_whale(pen: Pen) -> None:
    top, rise = pen.vary(-0.42, -0.3), pen.vary(-0.62, -0.46)
    fluke = [(0.86, -0.16), (0.62, rise - 0.08), (0.9, rise + 0.1), (1.18, rise - 0.1), (1.02, -0.14)]
    pen.fill(curve(fluke, closed=True, steps=6), BODY, tone=0.9)
    body = [
        (-1.0, 0.12), (-0.84, -0.24), (-0.4, top), (0.1, top * 0.7), (0.56, 0.02), (0.88, -0.22),
        (1.02, -0.16), (0.86, 0.3), (0.4, 0.6), (-0.4, 0.64), (-0.86, 0.46),
    ]  # fmt: skip
    pen.fill(curve(body, closed=True), BODY)
    belly = [(-0.95, 0.28), (-0.4, 0.34), (0.2, 0.4), (0.5, 0.52), (0.3, 0.61), (-0.4, 0.64), (-0.86, 0.46)]
    pen.fill(curve(belly, closed=True), LIGHT)
    pen.fill(curve([(-0.2, 0.3), (0.1, 0.46), (0.06, 0.76), (-0.16, 0.56)], closed=True), BODY, tone=0.8)
    pen.fill(ellipse((-0.62, 0.1), (0.06, 0.06)), DARK)
    if pen.chance(0.75):
        x = pen.vary(-0.5, -0.36)
        for side in (-1, 1):
            spray = curve([
                (x, top), (x + 0.04 * side, top - 0.28), (x + 0.26 * side, top - 0.4),
                (x + 0.36 * side, top - 0.22),
            ])  # fmt: skip
            pen.line(spray, LIGHT, width=0.07)


def draw_duck(pen: Pen) -> None:
    head, x, y = pen.vary(0.28, 0.36), pen.vary(-0.44, -0.34), pen.vary(-0.56, -0.44)
    pen.fill(curve([
        (x - head * 0.7, y - 0.06), (x - head - 0.2, y - 0.02), (x - head - 0.3, y + 0.1),
        (x - head * 0.8, y + 0.2),
    ], closed=True), ACCENT)  # fmt: skip
    body = [
        (x - 0.16, 0.0), (-0.7, 0.3), (-0.5, 0.7), (0.1, 0.8), (0.66, 0.62), (0.94, 0.16), (1.0, -0.2),
        (0.7, -0.02), (0.3, 0.06), (0.02, -0.06),
    ]  # fmt: skip
    pen.fill(curve(body, closed=True), BODY)
    pen.fill(ellipse((x, y), (head, head)), BODY)
    pen.fill(ellipse((x + 0.1, y + head * 0.95), (head * 0.62, 0.2)), BODY)
    wing = [(-0.16, 0.26), (0.2, 0.14), (0.7, 0.1), (0.54, 0.4), (0.14, 0.52)]
    pen.fill(curve(wing, closed=True), BODY if pen.chance(0.5) else ACCENT, tone=0.8)
    _draw_eye(pen, (x - 0.08, y - 0.06), radius=0.085)


def draw_owl(pen: Pen) -> None:
    half, tuft, eye = pen.vary(0.5, 0.62), pen.vary(0.14, 0.28), pen.vary(0.2, 0.25)
    for side in (-0.2, 0.2):
        pen.fill(ellipse((side, 0.94), (0.15, 0.09)), ACCENT)
    ears = [
        (0.0, -0.72), (half * 0.5, -0.78), (half * 0.86, -0.8 - tuft), (half * 0.95, -0.5), (half, 0.2),
        (half * 0.76, 0.74), (0.0, 0.94),
    ]  # fmt: skip
    pen.fill(lathe(ears), BODY)
    wing = curve([(half * 0.86, -0.16), (half + 0.14, 0.3), (half * 0.9, 0.74), (half * 0.56, 0.3)], closed=True)
    pen.fill_both(wing, BODY, tone=0.74)
    pen.fill(ellipse((0, 0.36), (half * 0.56, 0.44)), THIRD)
    for row, count in ((0.2, 2), (0.38, 3), (0.56, 2)):
        for x in (np.arange(count) - (count - 1) / 2) * 0.2:
            pen.line(ellipse((float(x), row), (0.07, 0.07), start=20, stop=160, count=8), INK, width=0.035)
    for side in (-1, 1):
        centre = (side * eye * 1.08, -0.38)
        pen.fill(ellipse(centre, (eye * 1.2, eye * 1.2)), ACCENT)
        _draw_eye(pen, centre, radius=eye * 0.92)
    pen.fill([(-0.09, -0.3), (0.09, -0.3), (0, -0.08)], THIRD, tone=0.85)


def _draw_muzzle(pen: Pen, *, y: float) -> None:
    pen.fill([(-0.09, y), (0.09, y), (0, y + 0.1)], ACCENT, tone=0.8)
    for side in (-1, 1):
        pen.line(ellipse((side * 0.1, y + 0.1), (0.1, 0.1), start=0, stop=180, count=12), INK, width=0.04)


def draw_cat(pen: Pen) -> None:
    wide, ear = pen.vary(0.72, 0.84), pen.vary(0.88, 1.02)
    outer = polygon((wide * 0.96, -0.1), (wide * 0.9, -ear), (wide * 0.18, -0.48))
    inner = polygon((wide * 0.84, -0.26), (wide * 0.8, -ear * 0.82), (wide * 0.38, -0.46))
    pen.fill_both(outer, BODY)
    pen.fill_both(inner, ACCENT)
    pen.fill(ellipse((0, 0.12), (wide, pen.vary(0.6, 0.7))), BODY)
    if pen.chance(0.5):
        for x in (-0.16, 0.0, 0.16):
            pen.line([(x, -0.46), (x * 0.8, -0.24)], ACCENT, width=0.07)
    pen.fill(ellipse((0, 0.38), (0.3, 0.22)), LIGHT)
    for side in (-1, 1):
        pen.fill(ellipse((side * 0.34, 0.02), (0.14, 0.15)), LIGHT)
        pen.fill(ellipse((side * 0.34, 0.02), (0.055, 0.13)), DARK)
        for drop in (0.26, 0.38):
            pen.line([(side * 0.34, drop + 0.04), (side * (wide + 0.2), drop * 1.5 - 0.14)], INK, width=0.03)
    _draw_muzzle(pen, y=0.24)


def draw_rabbit(pen: Pen) -> None:
    lean, long, wide = pen.vary(4, 20), pen.vary(0.44, 0.54), pen.vary(0.5, 0.6)
    for side in (-1, 1):
        ear = place(ellipse((0, -long), (0.18, long)), at=(side * 0.24, 0.0), turn=side * lean)
        inner = place(ellipse((0, -long), (0.09, long * 0.76)), at=(side * 0.24, 0.0), turn=side * lean)
        pen.fill(ear, BODY)
        pen.fill(inner, ACCENT)
    pen.fill(ellipse((0, 0.4), (wide, pen.vary(0.5, 0.58))), BODY)
    for side in (-1, 1):
        _draw_eye(pen, (side * 0.24, 0.28), radius=0.1)
    pen.fill(ellipse((0, 0.6), (0.26, 0.2)), LIGHT)
    pen.fill([(-0.08, 0.66), (0.08, 0.66), (0.07, 0.84), (-0.07, 0.84)], LIGHT, tone=1.1)
    _draw_muzzle(pen, y=0.48)


def draw_butterfly(pen: Pen) -> None:
    span, drop = pen.vary(0.86, 1.02), pen.vary(0.66, 0.86)
    upper = curve([
        (0.03, -0.1), (0.3, -0.6), (span * 0.8, -0.86), (span, -0.6), (span * 0.84, -0.1), (0.4, 0.1),
    ], closed=True)  # fmt: skip
    lower = curve([
        (0.03, 0.05), (0.4, 0.05), (span * 0.78, 0.22), (span * 0.7, drop * 0.86), (0.42, drop),
        (0.14, 0.5),
    ], closed=True)  # fmt: skip
    spot = pen.vary(0.1, 0.17)
    for flip in (1.0, -1.0):
        side = np.array([flip, 1.0])
        pen.fill(lower * side, ACCENT)
        pen.fill(upper * side, BODY)
        pen.fill(ellipse((flip * span * 0.66, -0.46), (spot, spot * 1.2)), THIRD)
        pen.fill(ellipse((flip * span * 0.5, 0.46), (spot * 0.8, spot * 0.8)), THIRD)
        pen.line(curve([(0, -0.5), (flip * 0.1, -0.74), (flip * 0.26, -0.9)]), DARK, width=0.045)
    pen.fill(ellipse((0, 0.02), (0.085, 0.5)), DARK)
    pen.fill(ellipse((0, -0.48), (0.11, 0.11)), DARK)


def draw_ladybird(pen: Pen) -> None:
    half, spot = pen.vary(0.66, 0.76), pen.vary(0.11, 0.17)
    for side in (-1, 1):
        for y, reach in ((-0.3, 0.2), (0.14, 0.28), (0.54, 0.22)):
            leg = curve([
                (side * half * 0.7, y), (side * (half + reach * 0.6), y - 0.04),
                (side * (half + reach), y + 0.14),
            ])  # fmt: skip
            pen.line(leg, DARK, width=0.07)
        pen.line(curve([(side * 0.14, -0.8), (side * 0.22, -1.0), (side * 0.4, -1.06)]), DARK, width=0.05)
    pen.fill(ellipse((0, -0.62), (0.4, 0.34)), DARK)
    for side in (-1, 1):
        pen.fill(ellipse((side * 0.18, -0.78), (0.07, 0.07)), LIGHT)
    pen.fill(ellipse((0, 0.16), (half, 0.76)), BODY)
    pen.line([(0, -0.58), (0, 0.9)], DARK, width=0.06)
    for x, y in ((0.32, -0.2), (0.4, 0.26), (0.24, 0.62))[: pen.count(2, 4)]:
        for side in (-1, 1):
            pen.fill(ellipse((side * x, y), (spot, spot)), DARK)
