"""Vessels: things that hold a drink, told apart by handle, spout, neck and foot."""

import numpy as np
from numpy.random import Generator

from retrieval_app.demo.drawing.shapes import Points, box, curve, ellipse, lathe, polygon, ribbon
from retrieval_app.demo.drawing.sketch import Drawer, Role, Sketch


def _trace_wall(top: tuple[float, float], bottom: tuple[float, float], *, dip: float) -> Points:
    """Trace a round wall seen a little from above between two (half width, y) levels."""
    base = ellipse((0, bottom[1]), (bottom[0], dip), start=0, stop=180)
    lid = ellipse((0, top[1]), (top[0], dip), start=180, stop=0)
    return np.vstack([base, lid])


def _draw_opening(sketch: Sketch, *, half: float, y: float, dip: float) -> None:
    sketch.fill(ellipse((0, y), (half, dip)), Role.BODY, tone=1.18)
    sketch.fill(ellipse((0, y + dip * 0.06), (half * 0.86, dip * 0.78)), Role.DARK, tone=1.3)


def draw_mug(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, tall, taper = vary(0.5, 0.68), vary(0.6, 0.85), vary(0.84, 1.04)
    dip = half * vary(0.16, 0.28)
    loop = ellipse((half * 0.94, vary(-0.05, 0.1)), (vary(0.3, 0.48), tall * vary(0.5, 0.66)), start=-95, stop=95)
    sketch.line(loop, Role.BODY, width=vary(0.11, 0.18), tone=0.86)
    sketch.fill(_trace_wall((half, -tall), (half * taper, tall), dip=dip), Role.BODY)
    if rng.random() < 0.45:
        y, thick, middle = vary(-0.2, 0.2), vary(0.12, 0.3), half * (1 + taper) / 2
        sketch.fill(_trace_wall((middle, y - thick), (middle, y + thick), dip=dip), Role.ACCENT)
    _draw_opening(sketch, half=half, y=-tall, dip=dip)


def draw_teacup(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, deep = vary(0.62, 0.76), vary(0.62, 0.8)
    dip = half * vary(0.16, 0.26)
    sketch.fill(ellipse((0, deep + 0.1), (vary(0.98, 1.12), vary(0.15, 0.22))), Role.ACCENT)
    sketch.fill(ellipse((0, deep + 0.06), (0.55, 0.08)), Role.ACCENT, tone=0.82)
    loop = ellipse((half * 0.86, deep * 0.22), (vary(0.26, 0.36), vary(0.2, 0.28)), start=-120, stop=110)
    sketch.line(loop, Role.BODY, width=vary(0.08, 0.12), tone=0.86)
    foot = vary(0.24, 0.34)
    side = [(half * 0.97, deep * 0.25), (half * 0.74, deep * 0.68), (foot, deep), (foot, deep + 0.1)]
    sketch.fill(lathe([(half, -0.12), *side]), Role.BODY)
    _draw_opening(sketch, half=half, y=-0.12, dip=dip)
    if rng.random() < 0.4:
        for x in (-0.2, 0.0, 0.2):
            steam = curve([(x, -0.5), (x + 0.07, -0.65), (x - 0.05, -0.8), (x + 0.04, -0.98)])
            sketch.line(steam, Role.LIGHT, width=0.05)


def draw_jug(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    belly, neck, lip = vary(0.52, 0.64), vary(0.26, 0.34), vary(0.36, 0.46)
    grip = [(neck, -0.78), (neck + 0.42, -0.72), (neck + vary(0.5, 0.62), -0.25), (belly * 0.9, 0.25)]
    sketch.line(curve(grip), Role.BODY, width=vary(0.1, 0.15), tone=0.84)
    profile = [
        (lip, -0.95), (neck, -0.6), (belly * 0.8, -0.15), (belly, 0.3), (belly * 0.84, 0.74),
        (belly * 0.6, 0.95),
    ]  # fmt: skip
    sketch.fill(lathe(profile), Role.BODY)
    beak = vary(0.24, 0.36)
    outer = [(-neck * 0.95, -0.5), (-lip - beak * 0.5, -0.8), (-lip - beak, -1.04)]
    sketch.fill(curve([*outer, (-lip * 0.4, -0.99), (0, -0.9), (-0.05, -0.7)], closed=True), Role.BODY)
    sketch.fill(ellipse((-0.06, -0.96), (lip + 0.02, 0.09)), Role.DARK, tone=1.3)
    if rng.random() < 0.5:
        thick = vary(0.06, 0.14)
        sketch.fill(_trace_wall((belly * 0.97, 0.2 - thick), (belly * 0.985, 0.2 + thick), dip=0.1), Role.ACCENT)


def draw_teapot(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    wide, tall = vary(0.6, 0.72), vary(0.5, 0.62)
    loop = ellipse((wide * 0.9, 0.05), (vary(0.36, 0.46), vary(0.34, 0.44)), start=-115, stop=115)
    sketch.line(loop, Role.ACCENT, width=vary(0.1, 0.14))
    rise = vary(-0.5, -0.3)
    spout = [(-wide * 0.6, 0.36), (-wide - 0.18, 0.2), (-wide - 0.28, -0.12), (-wide - 0.5, rise)]
    sketch.fill(ribbon(spout, [0.46, 0.32, 0.2, 0.16]), Role.BODY, tone=0.88)
    sketch.fill(box((-0.32, tall - 0.04), (0.32, tall + 0.16), radius=0.05), Role.ACCENT, tone=0.9)
    sketch.fill(ellipse((0, 0.08), (wide, tall)), Role.BODY)
    sketch.fill(ellipse((0, -tall * 0.74), (wide * 0.56, 0.17), start=180, stop=360), Role.ACCENT)
    sketch.fill(box((-wide * 0.6, -tall * 0.76), (wide * 0.6, -tall * 0.64), radius=0.05), Role.ACCENT, tone=0.85)
    knob = vary(0.09, 0.13)
    sketch.fill(ellipse((0, -tall * 0.74 - 0.2), (knob, knob)), Role.ACCENT)


def draw_bottle(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, neck, shoulder = vary(0.28, 0.4), vary(0.1, 0.14), vary(-0.36, -0.08)
    profile = [
        (neck, -1.0), (neck, shoulder - 0.22), (half * 0.7, shoulder - 0.04), (half, shoulder + 0.18),
        (half, 0.6), (half, 0.92), (half * 0.9, 1.0), (0.0, 1.0),
    ]  # fmt: skip
    sketch.fill(lathe(profile), Role.BODY)
    sketch.fill(box((-neck - 0.05, -1.06), (neck + 0.05, -0.86), radius=0.03), Role.ACCENT)
    if rng.random() < 0.75:
        top = shoulder + vary(0.3, 0.4)
        sketch.fill(box((-half, top), (half, top + vary(0.3, 0.46))), Role.LIGHT)
        sketch.fill(box((-half * 0.6, top + 0.1), (half * 0.6, top + 0.18)), Role.ACCENT)
    gleam = polygon((-half * 0.66, shoulder + 0.18), (-half * 0.66, 0.82))
    sketch.line(gleam, Role.BODY, width=0.06, tone=1.35)


def draw_vase(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    lip, neck, belly, foot = vary(0.3, 0.44), vary(0.15, 0.22), vary(0.5, 0.66), vary(0.24, 0.34)
    high = vary(-0.12, 0.16)
    profile = [
        (lip, -1.0), (neck, -0.72), (neck * 1.15, -0.5), (belly * 0.82, high - 0.26), (belly, high),
        (belly * 0.8, high + 0.4), (foot, 0.85), (foot * 1.2, 1.0), (0.0, 1.0),
    ]  # fmt: skip
    sketch.fill(lathe(profile), Role.BODY)
    sketch.fill(ellipse((0, -1.0), (lip, 0.08)), Role.DARK, tone=1.3)
    if rng.random() < 0.7:
        thick = vary(0.05, 0.12)
        sketch.fill(_trace_wall((belly * 0.97, high - thick), (belly * 0.97, high + thick), dip=0.08), Role.ACCENT)
    if rng.random() < 0.5:
        sketch.fill(_trace_wall((neck * 1.04, -0.66), (neck * 1.08, -0.56), dip=0.03), Role.ACCENT)


def draw_wine_glass(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, waist, fall = vary(0.4, 0.54), vary(-0.02, 0.14), vary(0.78, 0.96)
    level = vary(0.25, 0.6)
    sketch.fill(ellipse((0, 0.95), (vary(0.38, 0.5), vary(0.07, 0.12))), Role.LIGHT)
    sketch.line(polygon((0, waist), (0, 0.92)), Role.LIGHT, width=vary(0.07, 0.11), tone=0.92)
    rim, low = half * fall, -1.0 + (1.0 + waist) * level
    bowl = lathe([(rim, -1.0), (half, -0.55), (half * 0.8, waist - 0.24), (0.07, waist)])
    sketch.fill(bowl, Role.LIGHT, tone=0.94)
    side = np.interp(low, [-1.0, -0.55, waist - 0.24], [rim, half, half * 0.8]) * 0.93
    sketch.fill(lathe([(side, low), (half * 0.76, waist - 0.22), (0.05, waist - 0.04)]), Role.BODY)
    sketch.fill(ellipse((0, low), (side, 0.07)), Role.BODY, tone=0.8)
    sketch.line(bowl[: len(bowl) // 2], Role.INK, width=0.03)
    sketch.line(bowl[len(bowl) // 2 :], Role.INK, width=0.03)
    sketch.line(ellipse((0, -1.0), (rim, 0.07)), Role.INK, width=0.03)


def draw_watering_can(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, tall, dip = vary(0.42, 0.52), vary(0.4, 0.52), 0.1
    end = (-half - vary(0.55, 0.7), -tall - vary(0.1, 0.3))
    sketch.line(polygon((-half * 0.8, tall * 0.6), end), Role.BODY, width=vary(0.11, 0.15), tone=0.85)
    slope = np.array(end) - (-half * 0.8, tall * 0.6)
    slope /= np.linalg.norm(slope)
    across = np.array([-slope[1], slope[0]])
    tip = np.array(end)
    sketch.fill(
        np.vstack(
            [
                tip - 0.08 * across,
                tip + 0.08 * across,
                tip + 0.2 * slope + 0.24 * across,
                tip + 0.2 * slope - 0.24 * across,
            ]
        ),
        Role.ACCENT,
    )
    loop = ellipse((half * 0.75, -tall * 0.2), (vary(0.48, 0.58), vary(0.58, 0.7)), start=-160, stop=80)
    sketch.line(loop, Role.ACCENT, width=vary(0.08, 0.12))
    sketch.fill(_trace_wall((half * vary(0.8, 0.95), -tall), (half, tall), dip=dip), Role.BODY)
    if rng.random() < 0.6:
        sketch.fill(_trace_wall((half * 0.98, tall * 0.4), (half, tall * 0.62), dip=dip), Role.ACCENT)
    _draw_opening(sketch, half=half * 0.82, y=-tall, dip=dip)


DRAWERS: dict[str, Drawer] = {
    "mug": draw_mug,
    "teacup": draw_teacup,
    "jug": draw_jug,
    "teapot": draw_teapot,
    "bottle": draw_bottle,
    "vase": draw_vase,
    "wine-glass": draw_wine_glass,
    "watering-can": draw_watering_can,
}
