"""Vessels: things that hold a drink, told apart by handle, spout, neck and foot."""

import numpy as np

from retrieval_app.demo.drawing.shapes import Points, box, curve, ellipse, lathe, polygon, ribbon
from retrieval_app.demo.drawing.sketch import ACCENT, BODY, DARK, INK, LIGHT, Pen


def _trace_wall(top: tuple[float, float], bottom: tuple[float, float], *, dip: float) -> Points:
    base = ellipse((0, bottom[1]), (bottom[0], dip), start=0, stop=180)
    lid = ellipse((0, top[1]), (top[0], dip), start=180, stop=0)
    return np.vstack([base, lid])


def _draw_opening(pen: Pen, *, half: float, y: float, dip: float) -> None:
    pen.fill(ellipse((0, y), (half, dip)), BODY, tone=1.18)
    pen.fill(ellipse((0, y + dip * 0.06), (half * 0.86, dip * 0.78)), DARK, tone=1.3)


def draw_mug(pen: Pen) -> None:
    half, tall, taper = pen.vary(0.5, 0.68), pen.vary(0.6, 0.85), pen.vary(0.84, 1.04)
    dip = half * pen.vary(0.16, 0.28)
    loop = ellipse(
        (half * 0.94, pen.vary(-0.05, 0.1)), (pen.vary(0.3, 0.48), tall * pen.vary(0.5, 0.66)), start=-95, stop=95
    )
    pen.line(loop, BODY, width=pen.vary(0.11, 0.18), tone=0.86)
    pen.fill(_trace_wall((half, -tall), (half * taper, tall), dip=dip), BODY)
    if pen.chance(0.45):
        y, thick, middle = pen.vary(-0.2, 0.2), pen.vary(0.12, 0.3), half * (1 + taper) / 2
        pen.fill(_trace_wall((middle, y - thick), (middle, y + thick), dip=dip), ACCENT)
    _draw_opening(pen, half=half, y=-tall, dip=dip)


def draw_teacup(pen: Pen) -> None:
    half, deep = pen.vary(0.62, 0.76), pen.vary(0.62, 0.8)
    dip = half * pen.vary(0.16, 0.26)
    pen.fill(ellipse((0, deep + 0.1), (pen.vary(0.98, 1.12), pen.vary(0.15, 0.22))), ACCENT)
    pen.fill(ellipse((0, deep + 0.06), (0.55, 0.08)), ACCENT, tone=0.82)
    loop = ellipse((half * 0.86, deep * 0.22), (pen.vary(0.26, 0.36), pen.vary(0.2, 0.28)), start=-120, stop=110)
    pen.line(loop, BODY, width=pen.vary(0.08, 0.12), tone=0.86)
    foot = pen.vary(0.24, 0.34)
    side = [(half * 0.97, deep * 0.25), (half * 0.74, deep * 0.68), (foot, deep), (foot, deep + 0.1)]
    pen.fill(lathe([(half, -0.12), *side]), BODY)
    _draw_opening(pen, half=half, y=-0.12, dip=dip)
    if pen.chance(0.4):
        for x in (-0.2, 0.0, 0.2):
            pen.line(curve([(x, -0.5), (x + 0.07, -0.65), (x - 0.05, -0.8), (x + 0.04, -0.98)]), LIGHT, width=0.05)


def draw_jug(pen: Pen) -> None:
    belly, neck, lip = pen.vary(0.52, 0.64), pen.vary(0.26, 0.34), pen.vary(0.36, 0.46)
    grip = [(neck, -0.78), (neck + 0.42, -0.72), (neck + pen.vary(0.5, 0.62), -0.25), (belly * 0.9, 0.25)]
    pen.line(curve(grip), BODY, width=pen.vary(0.1, 0.15), tone=0.84)
    profile = [
        (lip, -0.95), (neck, -0.6), (belly * 0.8, -0.15), (belly, 0.3), (belly * 0.84, 0.74),
        (belly * 0.6, 0.95),
    ]  # fmt: skip
    pen.fill(lathe(profile), BODY)
    beak = pen.vary(0.24, 0.36)
    outer = [(-neck * 0.95, -0.5), (-lip - beak * 0.5, -0.8), (-lip - beak, -1.04)]
    pen.fill(curve([*outer, (-lip * 0.4, -0.99), (0, -0.9), (-0.05, -0.7)], closed=True), BODY)
    pen.fill(ellipse((-0.06, -0.96), (lip + 0.02, 0.09)), DARK, tone=1.3)
    if pen.chance(0.5):
        thick = pen.vary(0.06, 0.14)
        pen.fill(_trace_wall((belly * 0.97, 0.2 - thick), (belly * 0.985, 0.2 + thick), dip=0.1), ACCENT)


def draw_teapot(pen: Pen) -> None:
    wide, tall = pen.vary(0.6, 0.72), pen.vary(0.5, 0.62)
    loop = ellipse((wide * 0.9, 0.05), (pen.vary(0.36, 0.46), pen.vary(0.34, 0.44)), start=-115, stop=115)
    pen.line(loop, ACCENT, width=pen.vary(0.1, 0.14))
    rise = pen.vary(-0.5, -0.3)
    spout = [(-wide * 0.6, 0.36), (-wide - 0.18, 0.2), (-wide - 0.28, -0.12), (-wide - 0.5, rise)]
    pen.fill(ribbon(spout, [0.46, 0.32, 0.2, 0.16]), BODY, tone=0.88)
    pen.fill(box((-0.32, tall - 0.04), (0.32, tall + 0.16), radius=0.05), ACCENT, tone=0.9)
    pen.fill(ellipse((0, 0.08), (wide, tall)), BODY)
    pen.fill(ellipse((0, -tall * 0.74), (wide * 0.56, 0.17), start=180, stop=360), ACCENT)
    pen.fill(box((-wide * 0.6, -tall * 0.76), (wide * 0.6, -tall * 0.64), radius=0.05), ACCENT, tone=0.85)
    knob = pen.vary(0.09, 0.13)
    pen.fill(ellipse((0, -tall * 0.74 - 0.2), (knob, knob)), ACCENT)


def draw_bottle(pen: Pen) -> None:
    half, neck, shoulder = pen.vary(0.28, 0.4), pen.vary(0.1, 0.14), pen.vary(-0.36, -0.08)
    profile = [
        (neck, -1.0), (neck, shoulder - 0.22), (half * 0.7, shoulder - 0.04), (half, shoulder + 0.18),
        (half, 0.6), (half, 0.92), (half * 0.9, 1.0), (0.0, 1.0),
    ]  # fmt: skip
    pen.fill(lathe(profile), BODY)
    pen.fill(box((-neck - 0.05, -1.06), (neck + 0.05, -0.86), radius=0.03), ACCENT)
    if pen.chance(0.75):
        top = shoulder + pen.vary(0.3, 0.4)
        pen.fill(box((-half, top), (half, top + pen.vary(0.3, 0.46))), LIGHT)
        pen.fill(box((-half * 0.6, top + 0.1), (half * 0.6, top + 0.18)), ACCENT)
    pen.line([(-half * 0.66, shoulder + 0.18), (-half * 0.66, 0.82)], BODY, width=0.06, tone=1.35)


def draw_vase(pen: Pen) -> None:
    lip, neck, belly, foot = pen.vary(0.3, 0.44), pen.vary(0.15, 0.22), pen.vary(0.5, 0.66), pen.vary(0.24, 0.34)
    high = pen.vary(-0.12, 0.16)
    profile = [
        (lip, -1.0), (neck, -0.72), (neck * 1.15, -0.5), (belly * 0.82, high - 0.26), (belly, high),
        (belly * 0.8, high + 0.4), (foot, 0.85), (foot * 1.2, 1.0), (0.0, 1.0),
    ]  # fmt: skip
    pen.fill(lathe(profile), BODY)
    pen.fill(ellipse((0, -1.0), (lip, 0.08)), DARK, tone=1.3)
    if pen.chance(0.7):
        thick = pen.vary(0.05, 0.12)
        pen.fill(_trace_wall((belly * 0.97, high - thick), (belly * 0.97, high + thick), dip=0.08), ACCENT)
    if pen.chance(0.5):
        pen.fill(_trace_wall((neck * 1.04, -0.66), (neck * 1.08, -0.56), dip=0.03), ACCENT)


def draw_wine_glass(pen: Pen) -> None:
    half, waist, fall = pen.vary(0.4, 0.54), pen.vary(-0.02, 0.14), pen.vary(0.78, 0.96)
    level = pen.vary(0.25, 0.6)
    pen.fill(ellipse((0, 0.95), (pen.vary(0.38, 0.5), pen.vary(0.07, 0.12))), LIGHT)
    pen.line([(0, waist), (0, 0.92)], LIGHT, width=pen.vary(0.07, 0.11), tone=0.92)
    rim, low = half * fall, -1.0 + (1.0 + waist) * level
    bowl = lathe([(rim, -1.0), (half, -0.55), (half * 0.8, waist - 0.24), (0.07, waist)])
    pen.fill(bowl, LIGHT, tone=0.94)
    side = np.interp(low, [-1.0, -0.55, waist - 0.24], [rim, half, half * 0.8]) * 0.93
    pen.fill(lathe([(side, low), (half * 0.76, waist - 0.22), (0.05, waist - 0.04)]), BODY)
    pen.fill(ellipse((0, low), (side, 0.07)), BODY, tone=0.8)
    pen.line(bowl[: len(bowl) // 2], INK, width=0.03)
    pen.line(bowl[len(bowl) // 2 :], INK, width=0.03)
    pen.line(ellipse((0, -1.0), (rim, 0.07)), INK, width=0.03)


def draw_watering_can(pen: Pen) -> None:
    half, tall, dip = pen.vary(0.42, 0.52), pen.vary(0.4, 0.52), 0.1
    end = (-half - pen.vary(0.55, 0.7), -tall - pen.vary(0.1, 0.3))
    pen.line(polygon((-half * 0.8, tall * 0.6), end), BODY, width=pen.vary(0.11, 0.15), tone=0.85)
    slope = np.array(end) - (-half * 0.8, tall * 0.6)
    slope /= np.linalg.norm(slope)
    across = np.array([-slope[1], slope[0]])
    tip = np.array(end)
    pen.fill(
        np.vstack(
            [
                tip - 0.08 * across,
                tip + 0.08 * across,
                tip + 0.2 * slope + 0.24 * across,
                tip + 0.2 * slope - 0.24 * across,
            ]
        ),
        ACCENT,
    )
    loop = ellipse((half * 0.75, -tall * 0.2), (pen.vary(0.48, 0.58), pen.vary(0.58, 0.7)), start=-160, stop=80)
    pen.line(loop, ACCENT, width=pen.vary(0.08, 0.12))
    pen.fill(_trace_wall((half * pen.vary(0.8, 0.95), -tall), (half, tall), dip=dip), BODY)
    if pen.chance(0.6):
        pen.fill(_trace_wall((half * 0.98, tall * 0.4), (half, tall * 0.62), dip=dip), ACCENT)
    _draw_opening(pen, half=half * 0.82, y=-tall, dip=dip)
