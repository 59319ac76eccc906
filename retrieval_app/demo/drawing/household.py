"""Furniture, lights and tools, told apart by backs, legs, shades and heads."""

import numpy as np

from retrieval_app.demo.drawing.shapes import barrel, box, curve, ellipse, lathe, polygon, ribbon
from retrieval_app.demo.drawing.sketch import ACCENT, BODY, DARK, HOLE, INK, LIGHT, THIRD, Pen


def draw_chair(pen: Pen) -> None:
    leg, half, seat = pen.vary(0.09, 0.13), pen.vary(0.4, 0.5), pen.vary(0.08, 0.2)
    for x in (-half * 0.8, half * 1.12):
        pen.line([(x, seat), (x, 0.78)], BODY, width=leg, tone=0.66)
    for x in (-half * 0.8, half * 1.12):
        pen.line([(x, -1.0), (x, seat)], BODY, width=leg, tone=0.92)
    left, right = -half * 0.8, half * 1.12
    if pen.chance(0.5):
        for y in np.linspace(-0.92, -0.3, pen.count(2, 5)):
            pen.line([(left, y), (right, y)], BODY, width=pen.vary(0.1, 0.15), tone=0.84)
    else:
        pen.line([(left, -0.92), (right, -0.92)], BODY, width=0.16)
        for x in np.linspace(left, right, pen.count(4, 6))[1:-1]:
            pen.line([(x, -0.9), (x, seat)], BODY, width=0.07, tone=0.84)
    front = (-half * 1.16, half * 0.82)
    for x in front:
        pen.line([(x, seat + 0.16), (x, 1.0)], BODY, width=leg)
    pen.fill(
        [
            (left - 0.05, seat - 0.1),
            (right + 0.05, seat - 0.1),
            (front[1] + 0.07, seat + 0.16),
            (front[0] - 0.07, seat + 0.16),
        ],
        ACCENT,
    )
    pen.fill(box((front[0] - 0.07, seat + 0.16), (front[1] + 0.07, seat + 0.26)), ACCENT, tone=0.75)


def draw_stool(pen: Pen) -> None:
    half, top, splay = pen.vary(0.52, 0.68), pen.vary(-0.6, -0.4), pen.vary(0.08, 0.24)
    leg, rung = pen.vary(0.09, 0.13), pen.vary(0.3, 0.5)
    pen.line([(0, top), (0, 0.8)], BODY, width=leg, tone=0.68)
    x = half * 0.66 + splay * (rung - top) / (1 - top)
    pen.line([(-x, rung), (x, rung)], BODY, width=leg * 0.7, tone=0.8)
    for side in (-1, 1):
        pen.line(polygon((side * half * 0.66, top), (side * (half * 0.66 + splay), 1.0)), BODY, width=leg)
    pen.fill(
        np.vstack(
            [
                ellipse((0, top + 0.08), (half, 0.17), start=0, stop=180),
                ellipse((0, top - 0.06), (half, 0.17), start=180, stop=360),
            ]
        ),
        ACCENT,
        tone=0.78,
    )
    pen.fill(ellipse((0, top - 0.06), (half, 0.17)), ACCENT)


def draw_lamp(pen: Pen) -> None:
    upper, lower, hem = pen.vary(0.24, 0.4), pen.vary(0.6, 0.76), pen.vary(-0.2, 0.0)
    stem = pen.vary(0.07, 0.11)
    if pen.chance(0.5):
        pen.fill(lathe([
            (stem, hem), (stem, hem + 0.14), (0.24, 0.34), (0.3, 0.56), (0.2, 0.8), (0.12, 0.9),
        ]), ACCENT)  # fmt: skip
    else:
        pen.line([(0, hem), (0, 0.9)], ACCENT, width=stem * 1.5)
    pen.fill(np.vstack([ellipse((0, 0.9), (pen.vary(0.36, 0.46), 0.15), start=180, stop=360), [
        (0.42, 1.0), (-0.42, 1.0),
    ]]), ACCENT, tone=0.85)  # fmt: skip
    pen.line(polygon((lower * 0.5, hem), (lower * 0.5, hem + 0.3)), INK, width=0.03)
    pen.fill(lathe([(upper, -1.0), (lower, hem)], smooth=False), BODY, tone=1.1)
    pen.fill(lathe([(lower * 0.955, hem - 0.1), (lower, hem)], smooth=False), THIRD)


def draw_candle(pen: Pen) -> None:
    half, top, flame = pen.vary(0.17, 0.26), pen.vary(-0.42, -0.1), pen.vary(0.36, 0.5)
    pen.line(ellipse((0.62, 0.78), (0.22, 0.17)), ACCENT, width=0.08)
    pen.fill(barrel((0.66, 0.72), (0.5, 0.76), dips=(0.13, 0.24)), ACCENT)
    pen.fill(ellipse((0, 0.72), (0.56, 0.09)), ACCENT, tone=0.74)
    pen.fill(barrel((half, top), (half, 0.7), dips=(0.06, 0.06)), BODY)
    drip = pen.vary(0.14, 0.36)
    pen.line(polygon((-half * 0.6, top + 0.03), (-half * 0.6, top + drip)), BODY, width=half * 0.5, tone=1.2)
    pen.line([(0, top), (0, top - 0.14)], DARK, width=0.045)
    tip = pen.vary(-0.06, 0.06)
    for scale, role, tone in ((1.0, THIRD, 1.15), (0.52, LIGHT, 1.0)):
        wide, high = 0.17 * scale, flame * scale
        pen.fill(curve([
            (tip * scale, top - 0.1 - high), (wide, top - 0.2), (0, top - 0.06), (-wide, top - 0.2),
        ], closed=True), role, tone=tone)  # fmt: skip


def draw_hammer(pen: Pen) -> None:
    half, deep = pen.vary(0.09, 0.13), pen.vary(0.17, 0.22)
    pen.fill(lathe([(half * 0.8, -0.7), (half * 0.8, 0.1), (half * 1.25, 0.5), (half * 1.25, 1.0)]), ACCENT)
    claw = [(0.1, -0.7 - deep), (0.4, -0.7 - deep), (0.66, -0.66), (0.76, -0.34), (0.5, -0.5), (0.1, -0.7 + deep)]
    pen.fill(np.vstack([claw[0], curve(claw[1:4]), curve(claw[3:6])]), BODY, tone=0.86)
    pen.fill(box((-0.36, -0.7 - deep * 0.74), (-0.1, -0.7 + deep * 0.74)), BODY, tone=0.8)
    pen.fill(box((-0.6, -0.7 - deep * 1.2), (-0.34, -0.7 + deep * 1.2), radius=0.05), BODY)
    pen.fill(box((-0.16, -0.7 - deep * 1.1), (0.16, -0.7 + deep * 1.1), radius=0.03), BODY)


def draw_axe(pen: Pen) -> None:
    width, reach, spread = pen.vary(0.15, 0.2), pen.vary(0.54, 0.7), pen.vary(0.3, 0.42)
    handle = [(0.0, -1.0), (0.0, -0.3), (0.06, 0.4), (0.02, 1.0)]
    pen.fill(ribbon(handle, [width * 0.9, width * 0.9, width, width * 1.3]), ACCENT)
    edge = curve([(-reach, -0.62 - spread), (-reach - 0.14, -0.62), (-reach, -0.62 + spread * 1.15)])
    socket = [(0.15, -0.48), (0.15, -0.78)]
    pen.fill(
        np.vstack([edge, curve([edge[-1], (-0.3, -0.5), socket[0]]), curve([socket[1], (-0.3, -0.76), edge[0]])]),
        BODY,
    )
    pen.fill(np.vstack([edge, (edge + np.array([0.11, 0.0]))[::-1]]), LIGHT)


def draw_key(pen: Pen) -> None:
    bow, thick, shaft = pen.vary(0.3, 0.38), pen.vary(0.14, 0.19), pen.vary(0.11, 0.15)
    pen.line([(0, -0.4), (0, 1.0)], BODY, width=shaft)
    for y, reach in ((0.9, pen.vary(0.26, 0.42)), (0.62, pen.vary(0.2, 0.38)))[: 1 + int(pen.chance(0.8))]:
        pen.fill(box((0, y - 0.09), (reach, y + 0.09)), BODY, tone=0.92)
    pen.fill(box((-0.13, -0.2), (0.13, -0.08), radius=0.04), ACCENT)
    if pen.chance(0.5):
        pen.line(ellipse((0, -0.62), (bow, bow)), BODY, width=thick)
    else:
        for x, y in ((-0.24, -0.46), (0.24, -0.46), (0, -0.84)):
            pen.line(ellipse((x, y), (0.2, 0.2)), BODY, width=thick * 0.8)


def draw_spanner(pen: Pen) -> None:
    head, shaft, ring = pen.vary(0.34, 0.42), pen.vary(0.1, 0.14), pen.vary(0.24, 0.3)
    pen.fill(lathe([(shaft * 1.3, -0.5), (shaft, 0.0), (shaft * 1.2, 0.6)]), BODY)
    pen.fill(ellipse((0, -0.66), (head, head * 0.95)), BODY)
    jaw = head * pen.vary(0.42, 0.52)
    mouth = polygon(
        (-jaw, -1.3), (jaw, -1.3), (jaw, -0.72), (jaw * 0.5, -0.56), (-jaw * 0.5, -0.56), (-jaw, -0.72)
    )
    pen.fill(mouth, HOLE)
    pen.fill(ellipse((0, 0.74), (ring, ring)), BODY)
    pen.fill(ellipse((0, 0.74), (ring * 0.54, ring * 0.54), count=7), HOLE)
    if pen.chance(0.6):
        pen.fill(box((-shaft * 0.5, -0.24), (shaft * 0.5, 0.36), radius=0.04), ACCENT)


def draw_scissors(pen: Pen) -> None:
    spread, ring = pen.vary(0.16, 0.36), pen.vary(0.2, 0.26)
    blade = polygon((0.1, 0.12), (-0.08, 0.12), (-spread - 0.06, -1.0), (-spread + 0.12, -0.5))
    for side, tone in ((1.0, 0.84), (-1.0, 1.0)):
        flip = np.array([side, 1.0])
        pen.fill(blade * flip, BODY, tone=tone)
        pen.line([(0, 0.06), (side * 0.3, 0.56)], ACCENT, width=0.13, tone=tone)
        loop = ellipse((side * (0.3 + ring * 0.4), 0.56 + ring * 0.9), (ring, ring * 1.15), turn=-side * 25)
        pen.line(loop, ACCENT, width=0.12, tone=tone)
    pen.fill(ellipse((0, 0.08), (0.06, 0.06)), DARK)
