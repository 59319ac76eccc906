"""Round things: outlines that repeat around a centre, told apart by what repeats."""

import numpy as np

from retrieval_app.demo.drawing.shapes import curve, ellipse, place, polar, polygon
from retrieval_app.demo.drawing.sketch import ACCENT, BODY, DARK, HOLE, THIRD, Pen


def draw_star(pen: Pen) -> None:
    inner = pen.vary(0.4, 0.52)
    pen.fill(polar(np.tile([1.0, inner], 5)), BODY)
    choice = pen.rng.random()
    if choice < 0.35:
        pen.fill(polar(np.tile([0.62, 0.62 * inner], 5)), ACCENT)
    elif choice < 0.6:
        for i in range(5):
            facet = polar(np.tile([1.0, inner], 5))[[2 * i, 2 * i + 1]]
            pen.fill(np.vstack([facet, (0.0, 0.0)]), BODY, tone=0.78)


def draw_flower(pen: Pen) -> None:
    petals = pen.count(5, 9)
    wide = pen.vary(0.9, 1.15) * 1.55 / petals
    if pen.chance(0.4):
        pen.line(curve([(0, 0), (0.08, 0.9), (-0.02, 1.7)]), THIRD, width=0.1)
        pen.fill(curve([(0.05, 1.3), (0.3, 0.95), (0.62, 0.92), (0.4, 1.25)], closed=True), THIRD, tone=0.9)
    for i in range(petals):
        petal = place(ellipse((0.6, 0), (0.42, wide)), turn=-90 + 360 * i / petals)
        pen.fill(petal, BODY, tone=1.0 if i % 2 else 0.92)
    heart = pen.vary(0.22, 0.34)
    pen.fill(ellipse((0, 0), (heart, heart)), ACCENT)


def draw_sun(pen: Pen) -> None:
    rays = pen.count(9, 15)
    disc, gap, half = pen.vary(0.46, 0.56), pen.vary(0.06, 0.12), pen.vary(0.24, 0.34) * 6.2 / rays * 0.62
    for i in range(rays):
        reach = 1.0 if i % 2 or pen.chance(0.5) else pen.vary(0.86, 1.0)
        pen.fill(place(polygon((disc + gap, -half), (reach, 0), (disc + gap, half)), turn=360 * i / rays), ACCENT)
    pen.fill(ellipse((0, 0), (disc, disc)), BODY)
    if pen.chance(0.5):
        for x in (-0.17, 0.17):
            pen.fill(ellipse((x, -0.1), (0.055, 0.075)), DARK)
        pen.line(ellipse((0, 0.02), (0.25, 0.2), start=25, stop=155), DARK, width=0.055)


def draw_gear(pen: Pen) -> None:
    teeth = pen.count(8, 13)
    root, tip = pen.vary(0.72, 0.8), 1.0
    angles = np.arange(teeth)[:, None] * 360 / teeth + np.array([-0.27, -0.17, 0.17, 0.27]) * 360 / teeth
    radii = np.tile([root, tip, tip, root], teeth)
    turned = np.radians(angles.ravel())
    pen.fill(np.column_stack([radii * np.cos(turned), radii * np.sin(turned)]), BODY)
    hub = pen.vary(0.18, 0.28)
    choice = pen.rng.random()
    if choice < 0.4:
        pen.fill(ellipse((0, 0), (0.52, 0.52)), ACCENT)
    elif choice < 0.75:
        count = pen.count(4, 7)
        for i in range(count):
            pen.fill(place(ellipse((0.47, 0), (0.13, 0.13)), turn=360 * i / count), HOLE)
    pen.fill(ellipse((0, 0), (hub, hub)), HOLE)


def draw_wheel(pen: Pen) -> None:
    spokes = pen.count(6, 11)
    thick = pen.vary(0.16, 0.26)
    for i in range(spokes):
        pen.line(place(polygon((0, 0), (0.86, 0)), turn=360 * i / spokes), ACCENT, width=pen.vary(0.06, 0.09))
    pen.line(ellipse((0, 0), (1 - thick / 2, 1 - thick / 2), count=60), BODY, width=thick)
    pen.line(ellipse((0, 0), (0.97 - thick, 0.97 - thick), count=60), ACCENT, width=0.06)
    hub = pen.vary(0.15, 0.22)
    pen.fill(ellipse((0, 0), (hub, hub)), BODY)
    pen.fill(ellipse((0, 0), (hub * 0.45, hub * 0.45)), DARK)


def draw_snowflake(pen: Pen) -> None:
    width = pen.vary(0.09, 0.13)
    first, second = pen.vary(0.36, 0.46), pen.vary(0.66, 0.76)
    reach, lean = pen.vary(0.22, 0.34), pen.vary(45, 62)
    for i in range(6):
        turn = 60.0 * i - 90
        pen.line(place(polygon((0, 0), (1, 0)), turn=turn), BODY, width=width)
        for start, length in ((first, reach), (second, reach * 0.8)):
            for side in (-lean, lean):
                twig = place(polygon((0, 0), (length, 0)), at=(start, 0), turn=side)
                pen.line(place(twig, turn=turn), BODY, width=width * 0.85)
    if pen.chance(0.5):
        pen.fill(polar([0.2] * 6, turn=0.0), ACCENT)
