"""Plants and things to eat, told apart by crown, veins, stem and taper."""

import numpy as np

from retrieval_app.demo.drawing.shapes import box, curve, ellipse, lathe, polygon, ribbon
from retrieval_app.demo.drawing.sketch import ACCENT, BODY, DARK, HOLE, INK, LIGHT, THIRD, Pen


def draw_tree(pen: Pen) -> None:
    trunk, wide = pen.vary(0.1, 0.16), pen.vary(0.46, 0.6)
    pen.fill(lathe([(trunk * 0.8, -0.1), (trunk, 0.6), (trunk * 1.9, 1.0)]), ACCENT)
    pen.line([(0, 0.3), (0.26, 0.0)], ACCENT, width=trunk * 0.7)
    puffs = [(-wide, -0.1), (wide, -0.1), (-wide * 0.6, -0.5), (wide * 0.6, -0.52), (0, -0.72), (0, -0.22)]
    for i, (x, y) in enumerate(puffs):
        radius = pen.vary(0.32, 0.42)
        pen.fill(ellipse((x, y), (radius * 1.1, radius)), BODY, tone=0.86 + 0.05 * i)
    if pen.chance(0.4):
        for x, y in pen.rng.uniform((-0.6, -0.7), (0.6, 0.0), (6, 2)):
            pen.fill(ellipse((x, y), (0.085, 0.085)), THIRD)


def draw_fir_tree(pen: Pen) -> None:
    tiers, wide = pen.count(3, 5), pen.vary(0.56, 0.76)
    pen.fill(box((-0.12, 0.6), (0.12, 1.0)), ACCENT)
    edges = np.linspace(-1.0, 0.74, tiers + 1)
    for i in reversed(range(tiers)):
        half, top = wide * (0.5 + 0.5 * (i + 1) / tiers), edges[i] - (0.2 if i else 0.0)
        low = edges[i + 1]
        hem = curve([(half, low), (half * 0.4, low + 0.08), (-half * 0.4, low + 0.08), (-half, low)])
        pen.fill(np.vstack([(0.0, top), hem]), BODY, tone=1.06 - 0.1 * i)


def draw_cactus(pen: Pen) -> None:
    half, width = pen.vary(0.19, 0.25), pen.vary(0.2, 0.26)
    left, right = pen.vary(-0.2, 0.1), pen.vary(-0.3, 0.2)
    arms = [[(-0.1, left + 0.3), (-0.5, left + 0.28), (-0.6, left + 0.1), (-0.6, left - pen.vary(0.2, 0.4))]]
    arms.append([
        (0.1, right + 0.3), (0.48, right + 0.28), (0.58, right + 0.1), (0.58, right - pen.vary(0.2, 0.5)),
    ])  # fmt: skip
    for arm in arms:
        pen.line(curve(arm), BODY, width=width, tone=0.9)
    pen.fill(box((-half, -1.0), (half, 0.8), radius=half), BODY)
    for x in (-half * 0.45, half * 0.45):
        pen.line([(x, -0.75), (x, 0.5)], INK, width=0.03)
    if pen.chance(0.6):
        pen.fill(lathe([(0.46, 0.56), (0.34, 1.04)], smooth=False), ACCENT)
        pen.fill(box((-0.52, 0.48), (0.52, 0.64)), ACCENT, tone=0.88)
    else:
        pen.fill(ellipse((0, 0.82), (0.72, 0.16)), ACCENT)


def draw_mushroom(pen: Pen) -> None:
    wide, tall, stem = pen.vary(0.78, 0.96), pen.vary(0.62, 0.86), pen.vary(0.2, 0.28)
    pen.fill(lathe([(stem, -0.1), (stem * 0.9, 0.4), (stem * 1.5, 0.88), (0.0, 1.0)]), LIGHT)
    dome = ellipse((0, 0), (wide, tall), start=180, stop=360)
    brim = ellipse((0, 0), (wide, 0.17), start=0, stop=180)
    pen.fill(brim, LIGHT, tone=0.8)
    pen.fill(np.vstack([dome, brim * (1.0, 0.35)]), BODY)
    for x, y, radius in ((-0.5, -0.28, 0.12), (0.02, -0.52, 0.15), (0.48, -0.24, 0.12), (0.06, -0.16, 0.1)):
        size = radius * pen.vary(0.7, 1.15)
        pen.fill(ellipse((x * wide, y * tall), (size, size * 0.85)), ACCENT)


def draw_leaf(pen: Pen) -> None:
    half, low, count = pen.vary(0.44, 0.62), pen.vary(0.05, 0.3), pen.count(4, 6)
    pen.line(curve([(0, 0.6), (0.02, 0.85), (0.12, 1.1)]), ACCENT, width=0.08)
    pen.fill(lathe([
        (0.0, -1.0), (half * 0.55, -0.56), (half, low - 0.2), (half * 0.78, low + 0.3), (0.0, 0.8),
    ]), BODY)  # fmt: skip
    pen.line([(0, -0.82), (0, 0.78)], ACCENT, width=0.06)
    for y in np.linspace(-0.36, 0.5, count):
        reach = half * 0.74 * float(np.interp(y, [-1.0, low, 0.8], [0.1, 1.0, 0.4]))
        for side in (-1, 1):
            vein = curve([(0, y + 0.06), (side * reach * 0.5, y - 0.08), (side * reach, y - 0.26)])
            pen.line(vein, ACCENT, width=0.04)


def draw_feather(pen: Pen) -> None:
    bend, wide = pen.vary(0.3, 0.6), pen.vary(0.32, 0.44)
    spine = [(bend, -1.0), (bend * 0.42, -0.62), (0.04, -0.15), (-0.06, 0.36), (-0.04, 1.1)]
    path = curve(spine)
    for spot in (0.56, 0.63, 0.7):
        x, y = path[int(spot * len(path))]
        for side in (-1, 1):
            down = curve([(x, y), (x + side * wide * 0.3, y + 0.02), (x + side * wide * 0.56, y - 0.12)])
            pen.line(down, BODY, width=0.055, tone=0.9)
    pen.fill(ribbon(spine[:4], [0.04, wide, wide * 1.15, 0.16]), BODY)
    for spot, side in ((0.3, 1), (0.42, -1), (0.52, 1)):
        x, y = path[int(spot * len(path))]
        pen.fill([(x + side * 0.05, y), (x + side * 0.4, y - 0.08), (x + side * 0.4, y - 0.22)], HOLE)
    for spot in np.linspace(0.16, 0.6, 9):
        x, y = path[int(spot * len(path))]
        for side in (-1, 1):
            pen.line([(x, y), (x + side * wide * 0.3, y - 0.16)], BODY, width=0.02, tone=0.72)
    pen.line(path, ACCENT, width=0.06)


def _draw_stalk(pen: Pen, *, y: float) -> None:
    lean = pen.vary(-0.05, 0.2)
    pen.line(curve([(0, y + 0.1), (lean * 0.3, y - 0.1), (lean, y - 0.28)]), DARK, width=0.08)
    if pen.chance(0.75):
        pen.fill(curve([(0.04, y - 0.06), (0.24, y - 0.3), (0.6, y - 0.3), (0.36, y - 0.06)], closed=True), ACCENT)


def draw_apple(pen: Pen) -> None:
    wide, low = pen.vary(0.76, 0.88), pen.vary(0.5, 0.6)
    profile = [
        (0.0, -0.5), (0.26, -0.62), (wide * 0.8, -0.5), (wide, -0.05), (wide * 0.82, 0.5),
        (low * 0.7, 0.82), (0.16, 0.8), (0.0, 0.76),
    ]  # fmt: skip
    pen.fill(lathe(profile), BODY)
    pen.fill(ellipse((0, -0.5), (0.2, 0.07)), BODY, tone=0.66, outlined=False)
    pen.fill(ellipse((-wide * 0.55, -0.14), (0.1, 0.2), turn=20), BODY, tone=1.35, outlined=False)
    _draw_stalk(pen, y=-0.55)


def draw_pear(pen: Pen) -> None:
    wide, neck = pen.vary(0.54, 0.66), pen.vary(0.2, 0.27)
    profile = [
        (0.0, -0.78), (neck * 0.8, -0.72), (neck, -0.44), (wide * 0.72, 0.0), (wide, 0.44),
        (wide * 0.76, 0.86), (0.0, 0.98),
    ]  # fmt: skip
    pen.fill(lathe(profile), BODY)
    pen.fill(ellipse((-wide * 0.5, 0.34), (0.08, 0.2), turn=15), BODY, tone=1.35, outlined=False)
    _draw_stalk(pen, y=-0.78)


def draw_carrot(pen: Pen) -> None:
    half = pen.vary(0.26, 0.36)
    for lean in np.linspace(-0.42, 0.42, pen.count(3, 6)):
        frond = [(lean * 0.2, -0.4), (lean * 0.6, -0.72), (lean, -1.0 + abs(lean) * 0.3)]
        pen.fill(ribbon(frond, [0.06, 0.22, 0.03]), ACCENT, tone=0.85 + abs(float(lean)) * 0.5)
    pen.fill(lathe([(half * 0.5, -0.48), (half, -0.34), (half * 0.84, 0.1), (half * 0.4, 0.7), (0.0, 1.05)]), BODY)
    for y, side in ((-0.18, -1), (0.06, 1), (0.3, -1), (0.5, 1)):
        edge = half * float(np.interp(y, [-0.34, 0.1, 0.7], [0.95, 0.8, 0.4]))
        pen.line(polygon((side * edge, y), (side * edge * 0.2, y + 0.03)), INK, width=0.04)


def draw_ice_cream(pen: Pen) -> None:
    half, count = pen.vary(0.38, 0.48), pen.count(1, 4)
    tip, rim = 1.05, 0.08
    pen.fill([(-half, rim), (half, rim), (0, tip)], ACCENT)
    for i in range(1, 4):
        x, y = half * (1 - i / 4), rim + (tip - rim) * i / 4
        pen.line(polygon((-half + half * i / 2, rim), (x, y)), ACCENT, width=0.035, tone=0.68)
        pen.line(polygon((half - half * i / 2, rim), (-x, y)), ACCENT, width=0.035, tone=0.68)
    piles = ([(0.0, -0.14)], [(0.0, -0.56), (0.0, -0.1)], [(-0.26, -0.12), (0.26, -0.12), (0.0, -0.5)])
    scoops, sizes = piles[count - 1], (1.1, 0.95, 0.84)
    paints = (BODY, THIRD, LIGHT)
    for i, (x, y) in enumerate(scoops):
        radius = half * sizes[count - 1]
        pen.fill(ellipse((x, y), (radius, radius * 0.95)), paints[i])
    pen.fill(box((-half - 0.08, rim - 0.06), (half + 0.08, rim + 0.1), radius=0.06), ACCENT, tone=0.88)
    if pen.chance(0.4):
        top = min(y for _, y in scoops) - half
        pen.fill(ellipse((0.02, top), (0.12, 0.12)), THIRD, tone=0.8)
