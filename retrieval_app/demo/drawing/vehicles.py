"""Vehicles by land, water and air, told apart by cabin, load, hull and wings."""

from retrieval_app.demo.drawing.shapes import box, curve, ellipse, lathe, polygon
from retrieval_app.demo.drawing.sketch import ACCENT, BODY, DARK, LIGHT, THIRD, Pen


def _draw_wheel(pen: Pen, *, x: float, y: float, radius: float) -> None:
    pen.fill(ellipse((x, y), (radius, radius)), DARK)
    pen.fill(ellipse((x, y), (radius * 0.5, radius * 0.5)), LIGHT)


def draw_car(pen: Pen) -> None:
    roof, wheel, long = pen.vary(-0.56, -0.42), pen.vary(0.19, 0.24), pen.vary(0.94, 1.06)
    front, back = pen.vary(0.12, 0.26), pen.vary(-0.5, -0.36)
    pen.fill([(back - 0.26, -0.04), (back, roof), (front, roof), (front + 0.34, -0.04)], BODY, tone=0.92)
    post = (back + front) / 2
    pen.fill(
        [(back - 0.12, -0.06), (back + 0.05, roof + 0.09), (post - 0.04, roof + 0.09), (post - 0.04, -0.06)], LIGHT
    )
    pen.fill(
        [(post + 0.04, -0.06), (post + 0.04, roof + 0.09), (front - 0.04, roof + 0.09), (front + 0.2, -0.06)],
        LIGHT,
    )
    shell = [
        (-long, 0.3), (-long, 0.04), (-0.72, -0.07), (0, -0.06), (0.56, -0.06), (0.9, 0.02), (long, 0.14),
        (long, 0.34), (0, 0.36),
    ]  # fmt: skip
    pen.fill(curve(shell, closed=True, steps=4), BODY)
    if pen.chance(0.5):
        pen.fill(box((-long * 0.95, 0.16), (long * 0.95, 0.24)), ACCENT)
    pen.fill(ellipse((long * 0.94, 0.12), (0.07, 0.06)), ACCENT, tone=1.2)
    for x in (-0.56, 0.56):
        _draw_wheel(pen, x=x, y=0.34, radius=wheel)


def draw_bus(pen: Pen) -> None:
    top, count = pen.vary(-0.62, -0.48), pen.count(3, 6)
    pen.fill(box((-1, top), (1, 0.42), radius=0.12), BODY)
    pen.fill(box((-1, 0.06), (1, pen.vary(0.14, 0.24))), ACCENT)
    sill, start, stop = -0.04, -0.9, 0.5
    step = (stop - start) / count
    for i in range(count):
        left = start + i * step
        pen.fill(box((left, top + 0.14), (left + step * 0.82, sill), radius=0.03), LIGHT)
    pen.fill(box((0.58, top + 0.14), (0.94, sill + 0.06), radius=0.04), LIGHT, tone=0.95)
    for x in (-0.58, 0.56):
        _draw_wheel(pen, x=x, y=0.42, radius=pen.vary(0.17, 0.21))


def draw_truck(pen: Pen) -> None:
    load, cab, wheel = pen.vary(-0.62, -0.46), pen.vary(-0.3, -0.16), pen.vary(0.16, 0.2)
    pen.fill(box((-1, 0.24), (0.96, 0.36)), DARK, tone=1.3)
    pen.fill(box((-1, load), (0.32, 0.26)), BODY)
    for x in (-0.66, -0.33, 0.0):
        pen.line([(x, load + 0.1), (x, 0.16)], BODY, width=0.035, tone=0.7)
    pen.fill([(0.4, 0.34), (0.4, cab), (0.74, cab), (0.92, 0.04), (1.02, 0.08), (1.02, 0.34)], ACCENT)
    pen.fill([(0.5, 0.04), (0.5, cab + 0.09), (0.7, cab + 0.09), (0.83, 0.04)], LIGHT)
    for x in (-0.74, -0.34, 0.7):
        _draw_wheel(pen, x=x, y=0.4, radius=wheel)


def draw_train(pen: Pen) -> None:
    boiler, roof = pen.vary(-0.22, -0.12), pen.vary(-0.68, -0.56)
    flare = pen.vary(0.1, 0.18)
    pen.fill([(0.46, boiler), (0.46 - flare * 0.5, -0.62), (0.66 + flare * 0.5, -0.62), (0.66, boiler)], ACCENT)
    pen.fill(ellipse((0.06, boiler), (0.14, 0.18)), ACCENT)
    pen.fill(box((-0.4, boiler), (0.84, 0.32), radius=0.1), BODY)
    for x in (-0.05, 0.3):
        pen.line([(x, boiler + 0.03), (x, 0.3)], ACCENT, width=0.05)
    pen.fill(box((-0.94, roof + 0.05), (-0.3, 0.36)), BODY, tone=0.88)
    pen.fill(box((-1.02, roof - 0.06), (-0.2, roof + 0.08), radius=0.04), ACCENT)
    pen.fill(box((-0.8, roof + 0.18), (-0.46, -0.12), radius=0.03), LIGHT)
    pen.fill(box((-0.98, 0.3), (0.86, 0.42)), DARK, tone=1.2)
    pen.fill([(0.8, 0.3), (1.06, 0.64), (0.76, 0.64)], ACCENT)
    for x, radius in ((-0.62, 0.25), (-0.06, 0.19), (0.38, 0.19)):
        _draw_wheel(pen, x=x, y=0.64 - radius, radius=radius)
    if pen.chance(0.6):
        for x, y, radius in ((0.5, -0.76, 0.1), (0.36, -0.92, 0.14)):
            pen.fill(ellipse((x, y), (radius * 1.2, radius)), LIGHT)


def draw_sailboat(pen: Pen) -> None:
    mast = pen.vary(-0.12, 0.08)
    deck, keel = pen.vary(0.44, 0.52), pen.vary(0.82, 0.94)
    pen.line([(mast, -1.0), (mast, deck)], DARK, width=0.06)
    main = curve([
        (mast + 0.05, -0.95), (mast + pen.vary(0.4, 0.52), -0.3), (mast + pen.vary(0.72, 0.84), deck - 0.14),
    ])  # fmt: skip
    pen.fill(polygon(*map(tuple, main), (mast + 0.05, deck - 0.14)), BODY)
    jib = polygon(
        (mast - 0.05, pen.vary(-0.8, -0.6)), (mast - pen.vary(0.52, 0.66), deck - 0.1), (mast - 0.05, deck - 0.1)
    )
    pen.fill(jib, ACCENT)
    hull = [(-0.86, deck), (0.94, deck), (0.66, keel), (-0.6, keel)]
    pen.fill(polygon(*hull), THIRD)
    pen.fill([hull[0], hull[1], (0.88, deck + 0.1), (-0.8, deck + 0.1)], THIRD, tone=1.25)
    if pen.chance(0.4):
        pen.fill([(mast, -1.12), (mast, -0.94), (mast - 0.26, -1.03)], THIRD)


def draw_steamship(pen: Pen) -> None:
    deck, count = pen.vary(0.06, 0.16), pen.count(2, 4)
    for i in range(count):
        x = -0.36 + i * 0.72 / count + 0.06
        pen.fill([(x, -0.2), (x - 0.05, -0.74), (x + 0.15, -0.74), (x + 0.2, -0.2)], ACCENT)
        pen.fill([(x - 0.05, -0.76), (x + 0.15, -0.76), (x + 0.165, -0.6), (x - 0.035, -0.6)], DARK)
    pen.fill(box((-0.5, -0.3), (0.46, -0.06)), LIGHT)
    pen.fill(box((-0.68, -0.08), (0.62, deck + 0.05)), LIGHT, tone=0.9)
    for i in range(6):
        pen.fill(box((-0.58 + i * 0.2, -0.02), (-0.48 + i * 0.2, deck - 0.02)), DARK, tone=1.4)
    pen.fill([(-1.0, deck), (1.1, deck - 0.14), (0.82, 0.58), (-0.84, 0.58)], BODY)
    pen.fill([(-0.88, 0.44), (0.88, 0.44), (0.82, 0.58), (-0.84, 0.58)], ACCENT)
    for i in range(5):
        pen.fill(ellipse((-0.6 + i * 0.28, 0.26), (0.055, 0.055)), LIGHT)


def draw_plane(pen: Pen) -> None:
    sweep, span, chord = pen.vary(0.18, 0.44), pen.vary(0.86, 1.04), pen.vary(0.28, 0.38)
    wing = polygon((0.08, -0.22), (span, sweep), (span, sweep + 0.14), (0.08, chord))
    tail = polygon((0.04, 0.66), (0.38, 0.84), (0.38, 0.96), (0.04, 0.88))
    pen.fill_both(wing, ACCENT)
    pen.fill_both(tail, ACCENT, tone=0.9)
    if pen.chance(0.6):
        for x in (-0.42, 0.42):
            y = -0.22 + (sweep + 0.22) * 0.42
            pen.fill(box((x - 0.07, y - 0.14), (x + 0.07, y + 0.16), radius=0.06), DARK, tone=1.5)
    half = pen.vary(0.13, 0.18)
    pen.fill(lathe([
        (0.0, -1.0), (half * 0.75, -0.86), (half, -0.6), (half, 0.3), (half * 0.5, 0.85), (0.0, 1.0),
    ]), BODY)  # fmt: skip
    pen.fill(ellipse((0, -0.76), (half * 0.6, 0.09)), LIGHT)


def draw_rocket(pen: Pen) -> None:
    half, reach = pen.vary(0.28, 0.36), pen.vary(0.28, 0.42)
    flame = pen.vary(0.3, 0.5)
    pen.fill(lathe([(half * 0.5, 0.56), (half * 0.62, 0.72), (0.0, 0.62 + flame)]), THIRD, tone=1.1)
    pen.fill(lathe([(half * 0.3, 0.58), (half * 0.32, 0.68), (0.0, 0.6 + flame * 0.55)]), LIGHT)
    fin = polygon((half * 0.8, 0.06), (half + reach, 0.5), (half + reach * 0.9, 0.76), (half * 0.6, 0.56))
    pen.fill_both(fin, ACCENT)
    pen.fill(lathe([
        (0.0, -1.0), (half * 0.55, -0.74), (half, -0.3), (half, 0.2), (half * 0.66, 0.62), (0.0, 0.62),
    ]), BODY)  # fmt: skip
    pen.fill(lathe([(0.0, -1.0), (half * 0.38, -0.82), (half * 0.66, -0.64), (0.0, -0.6)]), ACCENT)
    for i in range(pen.count(1, 3)):
        y, radius = -0.26 + 0.34 * i, half * (0.5 - 0.12 * i)
        pen.fill(ellipse((0, y), (radius, radius)), ACCENT, tone=0.8)
        pen.fill(ellipse((0, y), (radius * 0.7, radius * 0.7)), LIGHT)
