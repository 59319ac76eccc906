"""Furniture, lights and tools, told apart by backs, legs, shades and heads."""

import numpy as np
from numpy.random import Generator

from retrieval_app.demo.drawing.shapes import box, curve, ellipse, lathe, polygon, ribbon
from retrieval_app.demo.drawing.sketch import Drawer, Role, Sketch


def draw_chair(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    leg, half, seat = vary(0.09, 0.13), vary(0.4, 0.5), vary(0.08, 0.2)
    for x in (-half * 0.8, half * 1.12):
        sketch.line(polygon((x, seat), (x, 0.78)), Role.BODY, width=leg, tone=0.66)
    for x in (-half * 0.8, half * 1.12):
        sketch.line(polygon((x, -1.0), (x, seat)), Role.BODY, width=leg, tone=0.92)
    left, right = -half * 0.8, half * 1.12
    if rng.random() < 0.5:
        for y in np.linspace(-0.92, -0.3, int(rng.integers(2, 5))):
            sketch.line(polygon((left, y), (right, y)), Role.BODY, width=vary(0.1, 0.15), tone=0.84)
    else:
        sketch.line(polygon((left, -0.92), (right, -0.92)), Role.BODY, width=0.16)
        for x in np.linspace(left, right, int(rng.integers(4, 6)))[1:-1]:
            sketch.line(polygon((x, -0.9), (x, seat)), Role.BODY, width=0.07, tone=0.84)
    front = (-half * 1.16, half * 0.82)
    for x in front:
        sketch.line(polygon((x, seat + 0.16), (x, 1.0)), Role.BODY, width=leg)
    sketch.fill(
        polygon(
            (left - 0.05, seat - 0.1),
            (right + 0.05, seat - 0.1),
            (front[1] + 0.07, seat + 0.16),
            (front[0] - 0.07, seat + 0.16),
        ),
        Role.ACCENT,
    )
    sketch.fill(box((front[0] - 0.07, seat + 0.16), (front[1] + 0.07, seat + 0.26)), Role.ACCENT, tone=0.75)


def draw_stool(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, top, splay = vary(0.52, 0.68), vary(-0.6, -0.4), vary(0.08, 0.24)
    leg, rung = vary(0.09, 0.13), vary(0.3, 0.5)
    sketch.line(polygon((0, top), (0, 0.8)), Role.BODY, width=leg, tone=0.68)
    x = half * 0.66 + splay * (rung - top) / (1 - top)
    sketch.line(polygon((-x, rung), (x, rung)), Role.BODY, width=leg * 0.7, tone=0.8)
    for side in (-1, 1):
        sketch.line(polygon((side * half * 0.66, top), (side * (half * 0.66 + splay), 1.0)), Role.BODY, width=leg)
    sketch.fill(
        np.vstack(
            [
                ellipse((0, top + 0.08), (half, 0.17), start=0, stop=180),
                ellipse((0, top - 0.06), (half, 0.17), start=180, stop=360),
            ]
        ),
        Role.ACCENT,
        tone=0.78,
    )
    sketch.fill(ellipse((0, top - 0.06), (half, 0.17)), Role.ACCENT)


def draw_lamp(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    upper, lower, hem = vary(0.24, 0.4), vary(0.6, 0.76), vary(-0.2, 0.0)
    stem = vary(0.07, 0.11)
    if rng.random() < 0.5:
        sketch.fill(lathe([
            (stem, hem), (stem, hem + 0.14), (0.24, 0.34), (0.3, 0.56), (0.2, 0.8), (0.12, 0.9),
        ]), Role.ACCENT)  # fmt: skip
    else:
        sketch.line(polygon((0, hem), (0, 0.9)), Role.ACCENT, width=stem * 1.5)
    sketch.fill(np.vstack([ellipse((0, 0.9), (vary(0.36, 0.46), 0.15), start=180, stop=360), [
        (0.42, 1.0), (-0.42, 1.0),
    ]]), Role.ACCENT, tone=0.85)  # fmt: skip
    sketch.line(polygon((lower * 0.5, hem), (lower * 0.5, hem + 0.3)), Role.INK, width=0.03)
    sketch.fill(lathe([(upper, -1.0), (lower, hem)], smooth=False), Role.BODY, tone=1.1)
    sketch.fill(lathe([(lower * 0.955, hem - 0.1), (lower, hem)], smooth=False), Role.THIRD)


def draw_candle(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, top, flame = vary(0.17, 0.26), vary(-0.42, -0.1), vary(0.36, 0.5)
    loop = ellipse((0.62, 0.78), (0.22, 0.17))
    sketch.line(loop, Role.ACCENT, width=0.08)
    sketch.fill(
        np.vstack(
            [
                ellipse((0, 0.72), (0.66, 0.13), start=180, stop=360),
                ellipse((0, 0.76), (0.5, 0.24), start=0, stop=180),
            ]
        ),
        Role.ACCENT,
    )
    sketch.fill(ellipse((0, 0.72), (0.56, 0.09)), Role.ACCENT, tone=0.74)
    sketch.fill(
        np.vstack(
            [
                ellipse((0, top), (half, 0.06), start=180, stop=360),
                ellipse((0, 0.7), (half, 0.06), start=0, stop=180),
            ]
        ),
        Role.BODY,
    )
    drip = vary(0.14, 0.36)
    sketch.line(
        polygon((-half * 0.6, top + 0.03), (-half * 0.6, top + drip)), Role.BODY, width=half * 0.5, tone=1.2
    )
    sketch.line(polygon((0, top), (0, top - 0.14)), Role.DARK, width=0.045)
    tip = vary(-0.06, 0.06)
    for scale, role, tone in ((1.0, Role.THIRD, 1.15), (0.52, Role.LIGHT, 1.0)):
        wide, high = 0.17 * scale, flame * scale
        sketch.fill(curve([
            (tip * scale, top - 0.1 - high), (wide, top - 0.2), (0, top - 0.06), (-wide, top - 0.2),
        ], closed=True), role, tone=tone)  # fmt: skip


def draw_hammer(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, deep = vary(0.09, 0.13), vary(0.17, 0.22)
    sketch.fill(lathe([
        (half * 0.8, -0.7), (half * 0.8, 0.1), (half * 1.25, 0.5), (half * 1.25, 1.0),
    ]), Role.ACCENT)  # fmt: skip
    claw = [
        (0.1, -0.7 - deep), (0.4, -0.7 - deep), (0.66, -0.66), (0.76, -0.34), (0.5, -0.5),
        (0.1, -0.7 + deep),
    ]  # fmt: skip
    sketch.fill(np.vstack([claw[0], curve(claw[1:4]), curve(claw[3:6])]), Role.BODY, tone=0.86)
    sketch.fill(box((-0.36, -0.7 - deep * 0.74), (-0.1, -0.7 + deep * 0.74)), Role.BODY, tone=0.8)
    sketch.fill(box((-0.6, -0.7 - deep * 1.2), (-0.34, -0.7 + deep * 1.2), radius=0.05), Role.BODY)
    sketch.fill(box((-0.16, -0.7 - deep * 1.1), (0.16, -0.7 + deep * 1.1), radius=0.03), Role.BODY)


def draw_axe(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    width, reach, spread = vary(0.15, 0.2), vary(0.54, 0.7), vary(0.3, 0.42)
    handle = [(0.0, -1.0), (0.0, -0.3), (0.06, 0.4), (0.02, 1.0)]
    sketch.fill(ribbon(handle, [width * 0.9, width * 0.9, width, width * 1.3]), Role.ACCENT)
    edge = curve([(-reach, -0.62 - spread), (-reach - 0.14, -0.62), (-reach, -0.62 + spread * 1.15)])
    socket = [(0.15, -0.48), (0.15, -0.78)]
    sketch.fill(
        np.vstack([edge, curve([edge[-1], (-0.3, -0.5), socket[0]]), curve([socket[1], (-0.3, -0.76), edge[0]])]),
        Role.BODY,
    )
    sketch.fill(np.vstack([edge, (edge + np.array([0.11, 0.0]))[::-1]]), Role.LIGHT)


def draw_key(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    bow, thick, shaft = vary(0.3, 0.38), vary(0.14, 0.19), vary(0.11, 0.15)
    sketch.line(polygon((0, -0.4), (0, 1.0)), Role.BODY, width=shaft)
    for y, reach in ((0.9, vary(0.26, 0.42)), (0.62, vary(0.2, 0.38)))[: 1 + int(rng.random() < 0.8)]:
        sketch.fill(box((0, y - 0.09), (reach, y + 0.09)), Role.BODY, tone=0.92)
    sketch.fill(box((-0.13, -0.2), (0.13, -0.08), radius=0.04), Role.ACCENT)
    if rng.random() < 0.5:
        sketch.line(ellipse((0, -0.62), (bow, bow)), Role.BODY, width=thick)
    else:
        for x, y in ((-0.24, -0.46), (0.24, -0.46), (0, -0.84)):
            sketch.line(ellipse((x, y), (0.2, 0.2)), Role.BODY, width=thick * 0.8)


def draw_spanner(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    head, shaft, ring = vary(0.34, 0.42), vary(0.1, 0.14), vary(0.24, 0.3)
    sketch.fill(lathe([(shaft * 1.3, -0.5), (shaft, 0.0), (shaft * 1.2, 0.6)]), Role.BODY)
    sketch.fill(ellipse((0, -0.66), (head, head * 0.95)), Role.BODY)
    jaw = head * vary(0.42, 0.52)
    mouth = polygon(
        (-jaw, -1.3), (jaw, -1.3), (jaw, -0.72), (jaw * 0.5, -0.56), (-jaw * 0.5, -0.56), (-jaw, -0.72)
    )
    sketch.fill(mouth, Role.HOLE)
    sketch.fill(ellipse((0, 0.74), (ring, ring)), Role.BODY)
    sketch.fill(ellipse((0, 0.74), (ring * 0.54, ring * 0.54), count=7), Role.HOLE)
    if rng.random() < 0.6:
        sketch.fill(box((-shaft * 0.5, -0.24), (shaft * 0.5, 0.36), radius=0.04), Role.ACCENT)


def draw_scissors(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    spread, ring = vary(0.16, 0.36), vary(0.2, 0.26)
    blade = polygon((0.1, 0.12), (-0.08, 0.12), (-spread - 0.06, -1.0), (-spread + 0.12, -0.5))
    for side, tone in ((1.0, 0.84), (-1.0, 1.0)):
        flip = np.array([side, 1.0])
        sketch.fill(blade * flip, Role.BODY, tone=tone)
        sketch.line(polygon((0, 0.06), (side * 0.3, 0.56)), Role.ACCENT, width=0.13, tone=tone)
        loop = ellipse((side * (0.3 + ring * 0.4), 0.56 + ring * 0.9), (ring, ring * 1.15), turn=-side * 25)
        sketch.line(loop, Role.ACCENT, width=0.12, tone=tone)
    sketch.fill(ellipse((0, 0.08), (0.06, 0.06)), Role.DARK)


DRAWERS: dict[str, Drawer] = {
    "chair": draw_chair,
    "stool": draw_stool,
    "lamp": draw_lamp,
    "candle": draw_candle,
    "hammer": draw_hammer,
    "axe": draw_axe,
    "key": draw_key,
    "spanner": draw_spanner,
    "scissors": draw_scissors,
}
