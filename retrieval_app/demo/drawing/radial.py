"""Round things: outlines that repeat around a centre, told apart by what repeats."""

import numpy as np
from numpy.random import Generator

from retrieval_app.demo.drawing.shapes import curve, ellipse, place, polar, polygon
from retrieval_app.demo.drawing.sketch import Drawer, Role, Sketch


def draw_star(sketch: Sketch, rng: Generator) -> None:
    inner = rng.uniform(0.4, 0.52)
    sketch.fill(polar(np.tile([1.0, inner], 5)), Role.BODY)
    choice = rng.random()
    if choice < 0.35:
        sketch.fill(polar(np.tile([0.62, 0.62 * inner], 5)), Role.ACCENT)
    elif choice < 0.6:
        for i in range(5):
            facet = polar(np.tile([1.0, inner], 5))[[2 * i, 2 * i + 1]]
            sketch.fill(np.vstack([facet, (0.0, 0.0)]), Role.BODY, tone=0.78)


def draw_flower(sketch: Sketch, rng: Generator) -> None:
    vary, petals = rng.uniform, int(rng.integers(5, 9))
    wide = vary(0.9, 1.15) * 1.55 / petals
    if rng.random() < 0.4:
        sketch.line(curve([(0, 0), (0.08, 0.9), (-0.02, 1.7)]), Role.THIRD, width=0.1)
        blade = curve([(0.05, 1.3), (0.3, 0.95), (0.62, 0.92), (0.4, 1.25)], closed=True)
        sketch.fill(blade, Role.THIRD, tone=0.9)
    for i in range(petals):
        petal = place(ellipse((0.6, 0), (0.42, wide)), turn=-90 + 360 * i / petals)
        sketch.fill(petal, Role.BODY, tone=1.0 if i % 2 else 0.92)
    heart = vary(0.22, 0.34)
    sketch.fill(ellipse((0, 0), (heart, heart)), Role.ACCENT)


def draw_sun(sketch: Sketch, rng: Generator) -> None:
    vary, rays = rng.uniform, int(rng.integers(9, 15))
    disc, gap, half = vary(0.46, 0.56), vary(0.06, 0.12), vary(0.24, 0.34) * 6.2 / rays * 0.62
    for i in range(rays):
        reach = 1.0 if i % 2 or rng.random() < 0.5 else vary(0.86, 1.0)
        ray = polygon((disc + gap, -half), (reach, 0), (disc + gap, half))
        sketch.fill(place(ray, turn=360 * i / rays), Role.ACCENT)
    sketch.fill(ellipse((0, 0), (disc, disc)), Role.BODY)
    if rng.random() < 0.5:
        for x in (-0.17, 0.17):
            sketch.fill(ellipse((x, -0.1), (0.055, 0.075)), Role.DARK)
        sketch.line(ellipse((0, 0.02), (0.25, 0.2), start=25, stop=155), Role.DARK, width=0.055)


def draw_gear(sketch: Sketch, rng: Generator) -> None:
    vary, teeth = rng.uniform, int(rng.integers(8, 13))
    root, tip = vary(0.72, 0.8), 1.0
    angles = np.arange(teeth)[:, None] * 360 / teeth + np.array([-0.27, -0.17, 0.17, 0.27]) * 360 / teeth
    radii = np.tile([root, tip, tip, root], teeth)
    turned = np.radians(angles.ravel())
    sketch.fill(np.column_stack([radii * np.cos(turned), radii * np.sin(turned)]), Role.BODY)
    hub = vary(0.18, 0.28)
    choice = rng.random()
    if choice < 0.4:
        sketch.fill(ellipse((0, 0), (0.52, 0.52)), Role.ACCENT)
    elif choice < 0.75:
        count = int(rng.integers(4, 7))
        for i in range(count):
            hole = ellipse((0.47, 0), (0.13, 0.13))
            sketch.fill(place(hole, turn=360 * i / count), Role.HOLE)
    sketch.fill(ellipse((0, 0), (hub, hub)), Role.HOLE)


def draw_wheel(sketch: Sketch, rng: Generator) -> None:
    vary, spokes = rng.uniform, int(rng.integers(6, 11))
    thick = vary(0.16, 0.26)
    for i in range(spokes):
        sketch.line(place(polygon((0, 0), (0.86, 0)), turn=360 * i / spokes), Role.ACCENT, width=vary(0.06, 0.09))
    sketch.line(ellipse((0, 0), (1 - thick / 2, 1 - thick / 2), count=60), Role.BODY, width=thick)
    sketch.line(ellipse((0, 0), (0.97 - thick, 0.97 - thick), count=60), Role.ACCENT, width=0.06)
    hub = vary(0.15, 0.22)
    sketch.fill(ellipse((0, 0), (hub, hub)), Role.BODY)
    sketch.fill(ellipse((0, 0), (hub * 0.45, hub * 0.45)), Role.DARK)


def draw_snowflake(sketch: Sketch, rng: Generator) -> None:
    vary, width = rng.uniform, rng.uniform(0.09, 0.13)
    first, second = vary(0.36, 0.46), vary(0.66, 0.76)
    reach, lean = vary(0.22, 0.34), vary(45, 62)
    for i in range(6):
        turn = 60.0 * i - 90
        sketch.line(place(polygon((0, 0), (1, 0)), turn=turn), Role.BODY, width=width)
        for start, length in ((first, reach), (second, reach * 0.8)):
            for side in (-lean, lean):
                twig = place(polygon((0, 0), (length, 0)), at=(start, 0), turn=side)
                sketch.line(place(twig, turn=turn), Role.BODY, width=width * 0.85)
    if rng.random() < 0.5:
        sketch.fill(polar([0.2] * 6, turn=0.0), Role.ACCENT)


DRAWERS: dict[str, Drawer] = {
    "star": draw_star,
    "flower": draw_flower,
    "sun": draw_sun,
    "gear": draw_gear,
    "wheel": draw_wheel,
    "snowflake": draw_snowflake,
}
