"""Buildings, clothes and carried things, told apart by roofs, sleeves and openings."""

import numpy as np

from retrieval_app.demo.drawing.shapes import barrel, box, curve, ellipse, lathe, place, polygon
from retrieval_app.demo.drawing.sketch import ACCENT, BODY, DARK, INK, LIGHT, THIRD, Pen


def _draw_window(pen: Pen, centre: tuple[float, float], *, half: float) -> None:
    x, y = centre
    pen.fill(box((x - half, y - half * 1.15), (x + half, y + half * 1.15)), LIGHT)
    pen.line([(x, y - half), (x, y + half)], INK, width=0.03)
    pen.line([(x - half, y), (x + half, y)], INK, width=0.03)


def draw_house(pen: Pen) -> None:
    half, eave, peak = pen.vary(0.62, 0.8), pen.vary(-0.2, 0.0), pen.vary(-0.92, -0.7)
    if pen.chance(0.7):
        pen.fill(box((half * 0.35, peak - 0.05), (half * 0.35 + 0.2, eave)), THIRD)
    pen.fill(box((-half, eave - 0.05), (half, 0.9)), BODY)
    pen.fill([(-half - 0.18, eave), (0, peak), (half + 0.18, eave)], ACCENT)
    door = pen.vary(-0.3, 0.3)
    pen.fill(box((door - 0.15, 0.36), (door + 0.15, 0.9)), THIRD)
    for x in (-half * 0.62, half * 0.62):
        if abs(x - door) > 0.3:
            _draw_window(pen, (x, 0.3), half=pen.vary(0.12, 0.15))
    if pen.chance(0.4):
        pen.fill(ellipse((0, eave - 0.24), (0.11, 0.11)), LIGHT)


def _trace_battlement(left: float, right: float, *, top: float, bottom: float, teeth: int) -> np.ndarray:
    xs = np.repeat(np.linspace(left, right, 2 * teeth), 2)[1:-1]
    ys = np.tile([top, top, top + 0.14, top + 0.14], teeth)[: len(xs)]
    return np.vstack([(left, bottom), np.column_stack([xs, ys]), (right, bottom)])


def draw_castle(pen: Pen) -> None:
    tower, wall, side = pen.vary(-0.62, -0.46), pen.vary(-0.2, -0.02), pen.vary(0.22, 0.3)
    pen.fill(_trace_battlement(-0.7, 0.7, top=wall, bottom=0.9, teeth=4), BODY, tone=0.88)
    pointed = pen.chance(0.4)
    for flip in (-1.0, 1.0):
        centre = 0.72 * flip
        pen.fill(_trace_battlement(centre - side, centre + side, top=tower, bottom=0.9, teeth=3), BODY)
        if pointed:
            pen.fill(
                [(centre - side - 0.05, tower + 0.1), (centre, tower - 0.45), (centre + side + 0.05, tower + 0.1)],
                ACCENT,
            )
        pen.fill(box((centre - 0.06, tower + 0.36), (centre + 0.06, tower + 0.62), radius=0.06), DARK)
    pen.fill(np.vstack([ellipse((0, 0.44), (0.22, 0.24), start=180, stop=360), [(0.22, 0.9), (-0.22, 0.9)]]), DARK)
    if pen.chance(0.6):
        pen.line([(0, wall), (0, wall - 0.6)], DARK, width=0.05)
        pen.fill([(0, wall - 0.62), (0.34, wall - 0.5), (0, wall - 0.38)], ACCENT)


def draw_lighthouse(pen: Pen) -> None:
    foot, head, bands = pen.vary(0.36, 0.46), pen.vary(0.2, 0.26), pen.count(2, 4)
    if pen.chance(0.3):
        for flip in (1.0, -1.0):
            beam = polygon((0.1 * flip, -0.7), (1.0 * flip, -0.92), (1.0 * flip, -0.5))
            pen.fill(beam, LIGHT, tone=1.02, outlined=False)
    pen.fill(ellipse((0, 0.96), (0.74, 0.16)), THIRD)
    levels = np.linspace(-0.5, 0.94, 2 * bands + 1)
    halves = np.interp(levels, [-0.5, 0.94], [head, foot])
    for i in range(2 * bands):
        ring = lathe([(halves[i], levels[i]), (halves[i + 1], levels[i + 1])], smooth=False)
        pen.fill(ring, LIGHT if i % 2 else BODY)
    pen.fill(box((-head * 0.74, -0.82), (head * 0.74, -0.54)), LIGHT, tone=1.1)
    for x in (-head * 0.3, head * 0.3):
        pen.line([(x, -0.8), (x, -0.56)], DARK, width=0.035)
    pen.fill(box((-head - 0.1, -0.56), (head + 0.1, -0.46)), DARK)
    pen.fill(np.vstack([
        (0.0, -1.1), curve([(head * 0.6, -0.96), (head + 0.02, -0.8)]),
        curve([(-head - 0.02, -0.8), (-head * 0.6, -0.96)]),
    ]), BODY)  # fmt: skip
    pen.fill(box((-0.1, 0.62), (0.1, 0.94), radius=0.08), DARK)


def draw_windmill(pen: Pen) -> None:
    foot, head, turn = pen.vary(0.4, 0.5), pen.vary(0.22, 0.28), pen.vary(10, 80)
    pen.fill(lathe([(head, -0.3), (foot, 1.0)], smooth=False), BODY)
    pen.fill(ellipse((0, -0.3), (head + 0.06, 0.34), start=180, stop=360), ACCENT)
    pen.fill(box((-0.12, 0.64), (0.12, 1.0), radius=0.1), DARK)
    _draw_window(pen, (0, 0.24), half=0.1)
    long, wide = pen.vary(0.74, 0.86), pen.vary(0.2, 0.26)
    for i in range(4):
        arm = polygon((0, 0), (long, 0))
        sail = polygon((0.2, 0.02), (long, 0.02), (long, wide), (0.2, wide))
        pen.fill(place(sail, at=(0, -0.36), turn=turn + 90 * i), LIGHT)
        pen.line(place(arm, at=(0, -0.36), turn=turn + 90 * i), DARK, width=0.06)
    pen.fill(ellipse((0, -0.36), (0.08, 0.08)), ACCENT)


def draw_hat(pen: Pen) -> None:
    brim, crown = pen.vary(0.86, 1.0), pen.vary(0.44, 0.54)
    tall, flare = pen.vary(-0.8, -0.5), pen.vary(0.92, 1.14)
    pen.fill(ellipse((0, 0.5), (brim, pen.vary(0.16, 0.24))), BODY, tone=0.9)
    pen.fill(barrel((crown * flare, tall), (crown, 0.46), dips=(0.1, 0.12)), BODY)
    pen.fill(ellipse((0, tall), (crown * flare, 0.1)), BODY, tone=1.15)
    band = pen.vary(0.14, 0.28)
    pen.fill(
        np.vstack(
            [
                ellipse((0, 0.44 - band), (crown * 1.01, 0.12), start=180, stop=0),
                ellipse((0, 0.46), (crown, 0.12), start=0, stop=180),
            ]
        ),
        ACCENT,
    )


def draw_boot(pen: Pen) -> None:
    shaft, toe, heel = pen.vary(0.28, 0.36), pen.vary(0.66, 0.86), pen.vary(0.1, 0.2)
    left, right = -0.6, -0.6 + 2 * shaft
    instep = [(right, -0.3), (right + 0.06, 0.14), (right + 0.3, 0.32), (toe, 0.5), (toe + 0.06, 0.78)]
    back = [(left - 0.02, 0.78), (left - 0.03, 0.5), (left + 0.03, 0.0), (left, -1.0)]
    pen.fill(np.vstack([(right, -1.0), curve(instep), curve(back)]), BODY)
    pen.fill(box((left - 0.05, -1.06), (right + 0.05, -0.86), radius=0.06), ACCENT)
    pen.fill(box((left - 0.05, 0.76), (toe + 0.1, 0.9), radius=0.03), DARK)
    pen.fill(box((left - 0.05, 0.86), (left + 0.36, 0.9 + heel)), DARK)
    if pen.chance(0.6):
        for y in (-0.5, -0.28, -0.06):
            pen.line([(right - 0.26, y + 0.04), (right + 0.02, y - 0.02)], LIGHT, width=0.05)


def draw_shirt(pen: Pen) -> None:
    half, sleeve, hem = pen.vary(0.46, 0.56), pen.vary(0.0, 0.5), pen.vary(0.8, 0.98)
    outer = [(0.2, -0.82), (half, -0.74), (1.0, -0.2 + sleeve), (0.74, 0.06 + sleeve), (half, -0.26), (half, hem)]
    pen.fill(lathe(outer, smooth=False), BODY)
    for side in (1.0, -1.0):
        cuff = polygon((0.94, -0.26 + sleeve), (1.0, -0.2 + sleeve), (0.74, 0.06 + sleeve), (0.68, -0.02 + sleeve))
        pen.fill(cuff * (side, 1.0), ACCENT)
    pen.fill(ellipse((0, -0.84), (0.22, 0.2), start=0, stop=180), DARK)
    pen.line(ellipse((0, -0.84), (0.24, 0.22), start=0, stop=180), ACCENT, width=0.08)
    choice = pen.rng.random()
    if choice < 0.4:
        for y in (-0.4, -0.1, 0.2, 0.5):
            pen.fill(ellipse((0, y), (0.045, 0.045)), LIGHT)
        pen.line([(0.09, -0.58), (0.09, hem)], INK, width=0.025)
    elif choice < 0.8:
        pen.fill(box((-half, 0.0), (half, pen.vary(0.18, 0.34))), ACCENT)


def draw_mitten(pen: Pen) -> None:
    half, cuff = pen.vary(0.4, 0.48), pen.vary(0.5, 0.6)
    pen.fill(place(ellipse((0, -0.22), (0.17, 0.4)), at=(half * 0.8, 0.2), turn=pen.vary(38, 55)), BODY, tone=0.94)
    pen.fill(lathe([(0.0, -1.0), (half * 0.7, -0.88), (half, -0.5), (half, 0.1), (half * 0.84, cuff)]), BODY)
    pen.fill(place(ellipse((0, -0.1), (0.14, 0.24)), at=(half * 0.72, 0.2), turn=45), BODY, tone=0.94)
    pen.fill(box((-half, cuff - 0.03), (half, cuff + 0.34), radius=0.08), ACCENT)
    for x in np.linspace(-half * 0.66, half * 0.66, 5):
        pen.line([(x, cuff + 0.04), (x, cuff + 0.28)], ACCENT, width=0.04, tone=0.7)


def draw_umbrella(pen: Pen) -> None:
    wide, tall, panels = pen.vary(0.9, 1.02), pen.vary(0.66, 0.82), pen.count(4, 7)
    hook = ellipse((0.16, 0.8), (0.16, 0.18), start=180, stop=20)
    pen.line(np.vstack([[(0, -0.95), (0, 0.8)], hook]), DARK, width=0.075)
    edges = np.linspace(-wide, wide, panels + 1)
    rise = np.linspace(0.0, np.pi / 2, 14)
    for i in range(panels):
        left, right, height = edges[i] * np.cos(rise), edges[i + 1] * np.cos(rise), -tall * np.sin(rise)
        middle = (edges[i] + edges[i + 1]) / 2
        hem = ellipse((middle, 0), ((edges[1] - edges[0]) / 2, 0.1), start=0, stop=-180, count=10)
        panel = np.vstack([np.column_stack([left, height]), np.column_stack([right, height])[::-1], hem])
        pen.fill(panel, ACCENT if i % 2 else BODY)
    pen.line([(0, -tall - 0.14), (0, -tall)], DARK, width=0.06)


def draw_guitar(pen: Pen) -> None:
    lower, waist, upper = pen.vary(0.44, 0.52), pen.vary(0.24, 0.3), pen.vary(0.32, 0.39)
    pen.fill(box((-0.075, -0.9), (0.075, 0.1)), ACCENT)
    pen.fill(lathe([(0.15, -1.12), (0.12, -0.84)], smooth=False), ACCENT, tone=0.82)
    for y in (-1.06, -0.95):
        for side in (-1, 1):
            pen.fill(ellipse((side * 0.18, y), (0.045, 0.04)), LIGHT)
    pen.fill(lathe([
        (0.0, -0.16), (upper * 0.8, -0.12), (upper, 0.1), (waist, 0.34), (lower, 0.72), (lower * 0.8, 1.0),
        (0.0, 1.08),
    ]), BODY)  # fmt: skip
    pen.fill(box((-0.075, -0.3), (0.075, 0.16)), ACCENT)
    pen.fill(ellipse((0, 0.34), (0.15, 0.15)), DARK)
    pen.fill(box((-0.2, 0.74), (0.2, 0.82)), DARK)
    for x in (-0.03, 0.03):
        pen.line([(x, -0.86), (x, 0.78)], LIGHT, width=0.018)


def draw_book(pen: Pen) -> None:
    half, tall, sag = pen.vary(0.86, 1.0), pen.vary(0.5, 0.66), pen.vary(0.1, 0.2)
    cover = polygon(
        (0, -tall + sag + 0.06), (half + 0.08, -tall - 0.02), (half + 0.08, tall), (0, tall + sag + 0.1)
    )
    pen.fill_both(cover, BODY)
    for flip in (-1.0, 1.0):
        top = curve([(0, -tall + sag), (half * 0.3, -tall - 0.06), (half, -tall)])
        bottom = curve([(half, tall - 0.1), (half * 0.3, tall - 0.12), (0, tall + sag)])
        pen.fill(np.vstack([top, bottom]) * (flip, 1.0), LIGHT, tone=1.0 if flip < 0 else 0.9)
        for y in np.linspace(-tall * 0.6, tall * 0.55, pen.count(3, 6)):
            text = curve([(half * 0.16, y + sag * 0.4), (half * 0.4, y - 0.01), (half * 0.86, y)])
            pen.line(text * (flip, 1.0), DARK, width=0.035, tone=1.6)
    pen.line([(0, -tall + sag), (0, tall + sag)], INK, width=0.04)
    if pen.chance(0.5):
        x = half * pen.vary(0.3, 0.6)
        pen.fill(
            [(x, -tall), (x + 0.14, -tall), (x + 0.14, tall + 0.3), (x + 0.07, tall + 0.2), (x, tall + 0.3)],
            ACCENT,
        )
