"""Buildings, clothes and carried things, told apart by roofs, sleeves and openings."""

import numpy as np
from numpy.random import Generator

from retrieval_app.demo.drawing.shapes import box, curve, ellipse, lathe, mirror, place, polygon
from retrieval_app.demo.drawing.sketch import Drawer, Role, Sketch


def _draw_window(sketch: Sketch, centre: tuple[float, float], *, half: float) -> None:
    x, y = centre
    sketch.fill(box((x - half, y - half * 1.15), (x + half, y + half * 1.15)), Role.LIGHT)
    sketch.line(polygon((x, y - half), (x, y + half)), Role.INK, width=0.03)
    sketch.line(polygon((x - half, y), (x + half, y)), Role.INK, width=0.03)


def draw_house(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, eave, peak = vary(0.62, 0.8), vary(-0.2, 0.0), vary(-0.92, -0.7)
    if rng.random() < 0.7:
        sketch.fill(box((half * 0.35, peak - 0.05), (half * 0.35 + 0.2, eave)), Role.THIRD)
    sketch.fill(box((-half, eave - 0.05), (half, 0.9)), Role.BODY)
    sketch.fill(polygon((-half - 0.18, eave), (0, peak), (half + 0.18, eave)), Role.ACCENT)
    door = vary(-0.3, 0.3)
    sketch.fill(box((door - 0.15, 0.36), (door + 0.15, 0.9)), Role.THIRD)
    for x in (-half * 0.62, half * 0.62):
        if abs(x - door) > 0.3:
            _draw_window(sketch, (x, 0.3), half=vary(0.12, 0.15))
    if rng.random() < 0.4:
        sketch.fill(ellipse((0, eave - 0.24), (0.11, 0.11)), Role.LIGHT)


def _trace_battlement(left: float, right: float, *, top: float, bottom: float, teeth: int) -> np.ndarray:
    xs = np.repeat(np.linspace(left, right, 2 * teeth), 2)[1:-1]
    ys = np.tile([top, top, top + 0.14, top + 0.14], teeth)[: len(xs)]
    return np.vstack([(left, bottom), np.column_stack([xs, ys]), (right, bottom)])


def draw_castle(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    tower, wall, side = vary(-0.62, -0.46), vary(-0.2, -0.02), vary(0.22, 0.3)
    sketch.fill(_trace_battlement(-0.7, 0.7, top=wall, bottom=0.9, teeth=4), Role.BODY, tone=0.88)
    pointed = rng.random() < 0.4
    for flip in (-1.0, 1.0):
        centre = 0.72 * flip
        sketch.fill(_trace_battlement(centre - side, centre + side, top=tower, bottom=0.9, teeth=3), Role.BODY)
        if pointed:
            sketch.fill(
                polygon(
                    (centre - side - 0.05, tower + 0.1),
                    (centre, tower - 0.45),
                    (centre + side + 0.05, tower + 0.1),
                ),
                Role.ACCENT,
            )
        sketch.fill(box((centre - 0.06, tower + 0.36), (centre + 0.06, tower + 0.62), radius=0.06), Role.DARK)
    gate = np.vstack([ellipse((0, 0.44), (0.22, 0.24), start=180, stop=360), [(0.22, 0.9), (-0.22, 0.9)]])
    sketch.fill(gate, Role.DARK)
    if rng.random() < 0.6:
        sketch.line(polygon((0, wall), (0, wall - 0.6)), Role.DARK, width=0.05)
        sketch.fill(polygon((0, wall - 0.62), (0.34, wall - 0.5), (0, wall - 0.38)), Role.ACCENT)


def draw_lighthouse(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    foot, head, bands = vary(0.36, 0.46), vary(0.2, 0.26), int(rng.integers(2, 4))
    if rng.random() < 0.3:
        for flip in (1.0, -1.0):
            beam = polygon((0.1 * flip, -0.7), (1.0 * flip, -0.92), (1.0 * flip, -0.5))
            sketch.fill(beam, Role.LIGHT, tone=1.02, outlined=False)
    sketch.fill(ellipse((0, 0.96), (0.74, 0.16)), Role.THIRD)
    levels = np.linspace(-0.5, 0.94, 2 * bands + 1)
    halves = np.interp(levels, [-0.5, 0.94], [head, foot])
    for i in range(2 * bands):
        ring = lathe([(halves[i], levels[i]), (halves[i + 1], levels[i + 1])], smooth=False)
        sketch.fill(ring, Role.LIGHT if i % 2 else Role.BODY)
    sketch.fill(box((-head * 0.74, -0.82), (head * 0.74, -0.54)), Role.LIGHT, tone=1.1)
    for x in (-head * 0.3, head * 0.3):
        sketch.line(polygon((x, -0.8), (x, -0.56)), Role.DARK, width=0.035)
    sketch.fill(box((-head - 0.1, -0.56), (head + 0.1, -0.46)), Role.DARK)
    sketch.fill(np.vstack([
        (0.0, -1.1), curve([(head * 0.6, -0.96), (head + 0.02, -0.8)]),
        curve([(-head - 0.02, -0.8), (-head * 0.6, -0.96)]),
    ]), Role.BODY)  # fmt: skip
    sketch.fill(box((-0.1, 0.62), (0.1, 0.94), radius=0.08), Role.DARK)


def draw_windmill(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    foot, head, turn = vary(0.4, 0.5), vary(0.22, 0.28), vary(10, 80)
    sketch.fill(lathe([(head, -0.3), (foot, 1.0)], smooth=False), Role.BODY)
    sketch.fill(ellipse((0, -0.3), (head + 0.06, 0.34), start=180, stop=360), Role.ACCENT)
    sketch.fill(box((-0.12, 0.64), (0.12, 1.0), radius=0.1), Role.DARK)
    _draw_window(sketch, (0, 0.24), half=0.1)
    long, wide = vary(0.74, 0.86), vary(0.2, 0.26)
    for i in range(4):
        arm = polygon((0, 0), (long, 0))
        sail = polygon((0.2, 0.02), (long, 0.02), (long, wide), (0.2, wide))
        sketch.fill(place(sail, at=(0, -0.36), turn=turn + 90 * i), Role.LIGHT)
        sketch.line(place(arm, at=(0, -0.36), turn=turn + 90 * i), Role.DARK, width=0.06)
    sketch.fill(ellipse((0, -0.36), (0.08, 0.08)), Role.ACCENT)


def draw_hat(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    brim, crown, tall, flare = vary(0.86, 1.0), vary(0.44, 0.54), vary(-0.8, -0.5), vary(0.92, 1.14)
    sketch.fill(ellipse((0, 0.5), (brim, vary(0.16, 0.24))), Role.BODY, tone=0.9)
    wall = np.vstack(
        [
            ellipse((0, tall), (crown * flare, 0.1), start=180, stop=360),
            ellipse((0, 0.46), (crown, 0.12), start=0, stop=180),
        ]
    )
    sketch.fill(wall, Role.BODY)
    sketch.fill(ellipse((0, tall), (crown * flare, 0.1)), Role.BODY, tone=1.15)
    band = vary(0.14, 0.28)
    sketch.fill(
        np.vstack(
            [
                ellipse((0, 0.44 - band), (crown * 1.01, 0.12), start=180, stop=0),
                ellipse((0, 0.46), (crown, 0.12), start=0, stop=180),
            ]
        ),
        Role.ACCENT,
    )


def draw_boot(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    shaft, toe, heel = vary(0.28, 0.36), vary(0.66, 0.86), vary(0.1, 0.2)
    left, right = -0.6, -0.6 + 2 * shaft
    instep = [(right, -0.3), (right + 0.06, 0.14), (right + 0.3, 0.32), (toe, 0.5), (toe + 0.06, 0.78)]
    back = [(left - 0.02, 0.78), (left - 0.03, 0.5), (left + 0.03, 0.0), (left, -1.0)]
    outline = np.vstack([(right, -1.0), curve(instep), curve(back)])
    sketch.fill(outline, Role.BODY)
    sketch.fill(box((left - 0.05, -1.06), (right + 0.05, -0.86), radius=0.06), Role.ACCENT)
    sketch.fill(box((left - 0.05, 0.76), (toe + 0.1, 0.9), radius=0.03), Role.DARK)
    sketch.fill(box((left - 0.05, 0.86), (left + 0.36, 0.9 + heel)), Role.DARK)
    if rng.random() < 0.6:
        for y in (-0.5, -0.28, -0.06):
            sketch.line(polygon((right - 0.26, y + 0.04), (right + 0.02, y - 0.02)), Role.LIGHT, width=0.05)


def draw_shirt(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, sleeve, hem = vary(0.46, 0.56), vary(0.0, 0.5), vary(0.8, 0.98)
    outer = [
        (0.2, -0.82), (half, -0.74), (1.0, -0.2 + sleeve), (0.74, 0.06 + sleeve), (half, -0.26),
        (half, hem),
    ]  # fmt: skip
    sketch.fill(lathe(outer, smooth=False), Role.BODY)
    for side in (1.0, -1.0):
        cuff = polygon((0.94, -0.26 + sleeve), (1.0, -0.2 + sleeve), (0.74, 0.06 + sleeve), (0.68, -0.02 + sleeve))
        sketch.fill(cuff * (side, 1.0), Role.ACCENT)
    sketch.fill(ellipse((0, -0.84), (0.22, 0.2), start=0, stop=180), Role.DARK)
    sketch.line(ellipse((0, -0.84), (0.24, 0.22), start=0, stop=180), Role.ACCENT, width=0.08)
    choice = rng.random()
    if choice < 0.4:
        for y in (-0.4, -0.1, 0.2, 0.5):
            sketch.fill(ellipse((0, y), (0.045, 0.045)), Role.LIGHT)
        sketch.line(polygon((0.09, -0.58), (0.09, hem)), Role.INK, width=0.025)
    elif choice < 0.8:
        sketch.fill(box((-half, 0.0), (half, vary(0.18, 0.34))), Role.ACCENT)


def draw_mitten(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, cuff = vary(0.4, 0.48), vary(0.5, 0.6)
    thumb = place(ellipse((0, -0.22), (0.17, 0.4)), at=(half * 0.8, 0.2), turn=vary(38, 55))
    sketch.fill(thumb, Role.BODY, tone=0.94)
    palm = [(0.0, -1.0), (half * 0.7, -0.88), (half, -0.5), (half, 0.1), (half * 0.84, cuff)]
    sketch.fill(lathe(palm), Role.BODY)
    sketch.fill(place(ellipse((0, -0.1), (0.14, 0.24)), at=(half * 0.72, 0.2), turn=45), Role.BODY, tone=0.94)
    sketch.fill(box((-half, cuff - 0.03), (half, cuff + 0.34), radius=0.08), Role.ACCENT)
    for x in np.linspace(-half * 0.66, half * 0.66, 5):
        sketch.line(polygon((x, cuff + 0.04), (x, cuff + 0.28)), Role.ACCENT, width=0.04, tone=0.7)


def draw_umbrella(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    wide, tall, panels = vary(0.9, 1.02), vary(0.66, 0.82), int(rng.integers(4, 7))
    hook = ellipse((0.16, 0.8), (0.16, 0.18), start=180, stop=20)
    sketch.line(np.vstack([[(0, -0.95), (0, 0.8)], hook]), Role.DARK, width=0.075)
    edges = np.linspace(-wide, wide, panels + 1)
    rise = np.linspace(0.0, np.pi / 2, 14)
    for i in range(panels):
        left, right, height = edges[i] * np.cos(rise), edges[i + 1] * np.cos(rise), -tall * np.sin(rise)
        middle = (edges[i] + edges[i + 1]) / 2
        hem = ellipse((middle, 0), ((edges[1] - edges[0]) / 2, 0.1), start=0, stop=-180, count=10)
        panel = np.vstack([np.column_stack([left, height]), np.column_stack([right, height])[::-1], hem])
        sketch.fill(panel, Role.ACCENT if i % 2 else Role.BODY)
    sketch.line(polygon((0, -tall - 0.14), (0, -tall)), Role.DARK, width=0.06)


def draw_guitar(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    lower, waist, upper = vary(0.44, 0.52), vary(0.24, 0.3), vary(0.32, 0.39)
    sketch.fill(box((-0.075, -0.9), (0.075, 0.1)), Role.ACCENT)
    sketch.fill(lathe([(0.15, -1.12), (0.12, -0.84)], smooth=False), Role.ACCENT, tone=0.82)
    for y in (-1.06, -0.95):
        for side in (-1, 1):
            sketch.fill(ellipse((side * 0.18, y), (0.045, 0.04)), Role.LIGHT)
    sketch.fill(lathe([
        (0.0, -0.16), (upper * 0.8, -0.12), (upper, 0.1), (waist, 0.34), (lower, 0.72), (lower * 0.8, 1.0),
        (0.0, 1.08),
    ]), Role.BODY)  # fmt: skip
    sketch.fill(box((-0.075, -0.3), (0.075, 0.16)), Role.ACCENT)
    sketch.fill(ellipse((0, 0.34), (0.15, 0.15)), Role.DARK)
    sketch.fill(box((-0.2, 0.74), (0.2, 0.82)), Role.DARK)
    for x in (-0.03, 0.03):
        sketch.line(polygon((x, -0.86), (x, 0.78)), Role.LIGHT, width=0.018)


def draw_book(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, tall, sag = vary(0.86, 1.0), vary(0.5, 0.66), vary(0.1, 0.2)
    cover = polygon(
        (0, -tall + sag + 0.06), (half + 0.08, -tall - 0.02), (half + 0.08, tall), (0, tall + sag + 0.1)
    )
    for side in (cover, mirror(cover)):
        sketch.fill(side, Role.BODY)
    for flip in (-1.0, 1.0):
        top = curve([(0, -tall + sag), (half * 0.3, -tall - 0.06), (half, -tall)])
        bottom = curve([(half, tall - 0.1), (half * 0.3, tall - 0.12), (0, tall + sag)])
        sketch.fill(np.vstack([top, bottom]) * (flip, 1.0), Role.LIGHT, tone=1.0 if flip < 0 else 0.9)
        for y in np.linspace(-tall * 0.6, tall * 0.55, int(rng.integers(3, 6))):
            text = curve([(half * 0.16, y + sag * 0.4), (half * 0.4, y - 0.01), (half * 0.86, y)])
            sketch.line(text * (flip, 1.0), Role.DARK, width=0.035, tone=1.6)
    sketch.line(polygon((0, -tall + sag), (0, tall + sag)), Role.INK, width=0.04)
    if rng.random() < 0.5:
        x = half * vary(0.3, 0.6)
        sketch.fill(
            polygon(
                (x, -tall), (x + 0.14, -tall), (x + 0.14, tall + 0.3), (x + 0.07, tall + 0.2), (x, tall + 0.3)
            ),
            Role.ACCENT,
        )


DRAWERS: dict[str, Drawer] = {
    "house": draw_house,
    "castle": draw_castle,
    "lighthouse": draw_lighthouse,
    "windmill": draw_windmill,
    "hat": draw_hat,
    "boot": draw_boot,
    "shirt": draw_shirt,
    "mitten": draw_mitten,
    "umbrella": draw_umbrella,
    "guitar": draw_guitar,
    "book": draw_book,
}
