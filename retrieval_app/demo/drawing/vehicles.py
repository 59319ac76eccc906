"""Vehicles by land, water and air, told apart by cabin, load, hull and wings."""

from numpy.random import Generator

from retrieval_app.demo.drawing.shapes import box, curve, ellipse, lathe, mirror, polygon
from retrieval_app.demo.drawing.sketch import Drawer, Role, Sketch


def _draw_wheel(sketch: Sketch, *, x: float, y: float, radius: float) -> None:
    sketch.fill(ellipse((x, y), (radius, radius)), Role.DARK)
    sketch.fill(ellipse((x, y), (radius * 0.5, radius * 0.5)), Role.LIGHT)


def draw_car(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    roof, wheel, long = vary(-0.56, -0.42), vary(0.19, 0.24), vary(0.94, 1.06)
    front, back = vary(0.12, 0.26), vary(-0.5, -0.36)
    cabin = polygon((back - 0.26, -0.04), (back, roof), (front, roof), (front + 0.34, -0.04))
    sketch.fill(cabin, Role.BODY, tone=0.92)
    post = (back + front) / 2
    sketch.fill(
        polygon(
            (back - 0.12, -0.06), (back + 0.05, roof + 0.09), (post - 0.04, roof + 0.09), (post - 0.04, -0.06)
        ),
        Role.LIGHT,
    )
    sketch.fill(
        polygon(
            (post + 0.04, -0.06), (post + 0.04, roof + 0.09), (front - 0.04, roof + 0.09), (front + 0.2, -0.06)
        ),
        Role.LIGHT,
    )
    shell = [
        (-long, 0.3), (-long, 0.04), (-0.72, -0.07), (0, -0.06), (0.56, -0.06), (0.9, 0.02), (long, 0.14),
        (long, 0.34), (0, 0.36),
    ]  # fmt: skip
    sketch.fill(curve(shell, closed=True, steps=4), Role.BODY)
    if rng.random() < 0.5:
        sketch.fill(box((-long * 0.95, 0.16), (long * 0.95, 0.24)), Role.ACCENT)
    sketch.fill(ellipse((long * 0.94, 0.12), (0.07, 0.06)), Role.ACCENT, tone=1.2)
    for x in (-0.56, 0.56):
        _draw_wheel(sketch, x=x, y=0.34, radius=wheel)


def draw_bus(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    top, count = vary(-0.62, -0.48), int(rng.integers(3, 6))
    sketch.fill(box((-1, top), (1, 0.42), radius=0.12), Role.BODY)
    sketch.fill(box((-1, 0.06), (1, vary(0.14, 0.24))), Role.ACCENT)
    sill, start, stop = -0.04, -0.9, 0.5
    step = (stop - start) / count
    for i in range(count):
        left = start + i * step
        sketch.fill(box((left, top + 0.14), (left + step * 0.82, sill), radius=0.03), Role.LIGHT)
    sketch.fill(box((0.58, top + 0.14), (0.94, sill + 0.06), radius=0.04), Role.LIGHT, tone=0.95)
    for x in (-0.58, 0.56):
        _draw_wheel(sketch, x=x, y=0.42, radius=vary(0.17, 0.21))


def draw_truck(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    load, cab, wheel = vary(-0.62, -0.46), vary(-0.3, -0.16), vary(0.16, 0.2)
    sketch.fill(box((-1, 0.24), (0.96, 0.36)), Role.DARK, tone=1.3)
    sketch.fill(box((-1, load), (0.32, 0.26)), Role.BODY)
    for x in (-0.66, -0.33, 0.0):
        sketch.line(polygon((x, load + 0.1), (x, 0.16)), Role.BODY, width=0.035, tone=0.7)
    sketch.fill(
        polygon((0.4, 0.34), (0.4, cab), (0.74, cab), (0.92, 0.04), (1.02, 0.08), (1.02, 0.34)), Role.ACCENT
    )
    sketch.fill(polygon((0.5, 0.04), (0.5, cab + 0.09), (0.7, cab + 0.09), (0.83, 0.04)), Role.LIGHT)
    for x in (-0.74, -0.34, 0.7):
        _draw_wheel(sketch, x=x, y=0.4, radius=wheel)


def draw_train(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    boiler, roof = vary(-0.22, -0.12), vary(-0.68, -0.56)
    flare = vary(0.1, 0.18)
    sketch.fill(
        polygon((0.46, boiler), (0.46 - flare * 0.5, -0.62), (0.66 + flare * 0.5, -0.62), (0.66, boiler)),
        Role.ACCENT,
    )
    sketch.fill(ellipse((0.06, boiler), (0.14, 0.18)), Role.ACCENT)
    sketch.fill(box((-0.4, boiler), (0.84, 0.32), radius=0.1), Role.BODY)
    for x in (-0.05, 0.3):
        sketch.line(polygon((x, boiler + 0.03), (x, 0.3)), Role.ACCENT, width=0.05)
    sketch.fill(box((-0.94, roof + 0.05), (-0.3, 0.36)), Role.BODY, tone=0.88)
    sketch.fill(box((-1.02, roof - 0.06), (-0.2, roof + 0.08), radius=0.04), Role.ACCENT)
    sketch.fill(box((-0.8, roof + 0.18), (-0.46, -0.12), radius=0.03), Role.LIGHT)
    sketch.fill(box((-0.98, 0.3), (0.86, 0.42)), Role.DARK, tone=1.2)
    sketch.fill(polygon((0.8, 0.3), (1.06, 0.64), (0.76, 0.64)), Role.ACCENT)
    for x, radius in ((-0.62, 0.25), (-0.06, 0.19), (0.38, 0.19)):
        _draw_wheel(sketch, x=x, y=0.64 - radius, radius=radius)
    if rng.random() < 0.6:
        for x, y, radius in ((0.5, -0.76, 0.1), (0.36, -0.92, 0.14)):
            sketch.fill(ellipse((x, y), (radius * 1.2, radius)), Role.LIGHT)


def draw_sailboat(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    mast = vary(-0.12, 0.08)
    deck, keel = vary(0.44, 0.52), vary(0.82, 0.94)
    sketch.line(polygon((mast, -1.0), (mast, deck)), Role.DARK, width=0.06)
    main = curve([
        (mast + 0.05, -0.95), (mast + vary(0.4, 0.52), -0.3), (mast + vary(0.72, 0.84), deck - 0.14),
    ])  # fmt: skip
    sketch.fill(polygon(*map(tuple, main), (mast + 0.05, deck - 0.14)), Role.BODY)
    jib = polygon(
        (mast - 0.05, vary(-0.8, -0.6)), (mast - vary(0.52, 0.66), deck - 0.1), (mast - 0.05, deck - 0.1)
    )
    sketch.fill(jib, Role.ACCENT)
    hull = [(-0.86, deck), (0.94, deck), (0.66, keel), (-0.6, keel)]
    sketch.fill(polygon(*hull), Role.THIRD)
    sketch.fill(polygon(hull[0], hull[1], (0.88, deck + 0.1), (-0.8, deck + 0.1)), Role.THIRD, tone=1.25)
    if rng.random() < 0.4:
        sketch.fill(polygon((mast, -1.12), (mast, -0.94), (mast - 0.26, -1.03)), Role.THIRD)


def draw_steamship(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    deck, count = vary(0.06, 0.16), int(rng.integers(2, 4))
    for i in range(count):
        x = -0.36 + i * 0.72 / count + 0.06
        sketch.fill(polygon((x, -0.2), (x - 0.05, -0.74), (x + 0.15, -0.74), (x + 0.2, -0.2)), Role.ACCENT)
        sketch.fill(polygon((x - 0.05, -0.76), (x + 0.15, -0.76), (x + 0.165, -0.6), (x - 0.035, -0.6)), Role.DARK)
    sketch.fill(box((-0.5, -0.3), (0.46, -0.06)), Role.LIGHT)
    sketch.fill(box((-0.68, -0.08), (0.62, deck + 0.05)), Role.LIGHT, tone=0.9)
    for i in range(6):
        sketch.fill(box((-0.58 + i * 0.2, -0.02), (-0.48 + i * 0.2, deck - 0.02)), Role.DARK, tone=1.4)
    sketch.fill(polygon((-1.0, deck), (1.1, deck - 0.14), (0.82, 0.58), (-0.84, 0.58)), Role.BODY)
    sketch.fill(polygon((-0.88, 0.44), (0.88, 0.44), (0.82, 0.58), (-0.84, 0.58)), Role.ACCENT)
    for i in range(5):
        sketch.fill(ellipse((-0.6 + i * 0.28, 0.26), (0.055, 0.055)), Role.LIGHT)


def draw_plane(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    sweep, span, chord = vary(0.18, 0.44), vary(0.86, 1.04), vary(0.28, 0.38)
    wing = polygon((0.08, -0.22), (span, sweep), (span, sweep + 0.14), (0.08, chord))
    tail = polygon((0.04, 0.66), (0.38, 0.84), (0.38, 0.96), (0.04, 0.88))
    for points in (wing, mirror(wing)):
        sketch.fill(points, Role.ACCENT)
    for points in (tail, mirror(tail)):
        sketch.fill(points, Role.ACCENT, tone=0.9)
    if rng.random() < 0.6:
        for x in (-0.42, 0.42):
            y = -0.22 + (sweep + 0.22) * 0.42
            sketch.fill(box((x - 0.07, y - 0.14), (x + 0.07, y + 0.16), radius=0.06), Role.DARK, tone=1.5)
    half = vary(0.13, 0.18)
    sketch.fill(lathe([
        (0.0, -1.0), (half * 0.75, -0.86), (half, -0.6), (half, 0.3), (half * 0.5, 0.85), (0.0, 1.0),
    ]), Role.BODY)  # fmt: skip
    sketch.fill(ellipse((0, -0.76), (half * 0.6, 0.09)), Role.LIGHT)


def draw_rocket(sketch: Sketch, rng: Generator) -> None:
    vary = rng.uniform
    half, reach = vary(0.28, 0.36), vary(0.28, 0.42)
    flame = vary(0.3, 0.5)
    sketch.fill(lathe([(half * 0.5, 0.56), (half * 0.62, 0.72), (0.0, 0.62 + flame)]), Role.THIRD, tone=1.1)
    sketch.fill(lathe([(half * 0.3, 0.58), (half * 0.32, 0.68), (0.0, 0.6 + flame * 0.55)]), Role.LIGHT)
    fin = polygon((half * 0.8, 0.06), (half + reach, 0.5), (half + reach * 0.9, 0.76), (half * 0.6, 0.56))
    for points in (fin, mirror(fin)):
        sketch.fill(points, Role.ACCENT)
    sketch.fill(lathe([
        (0.0, -1.0), (half * 0.55, -0.74), (half, -0.3), (half, 0.2), (half * 0.66, 0.62), (0.0, 0.62),
    ]), Role.BODY)  # fmt: skip
    sketch.fill(lathe([(0.0, -1.0), (half * 0.38, -0.82), (half * 0.66, -0.64), (0.0, -0.6)]), Role.ACCENT)
    for i in range(int(rng.integers(1, 3))):
        y, radius = -0.26 + 0.34 * i, half * (0.5 - 0.12 * i)
        sketch.fill(ellipse((0, y), (radius, radius)), Role.ACCENT, tone=0.8)
        sketch.fill(ellipse((0, y), (radius * 0.7, radius * 0.7)), Role.LIGHT)


DRAWERS: dict[str, Drawer] = {
    "car": draw_car,
    "bus": draw_bus,
    "truck": draw_truck,
    "train": draw_train,
    "sailboat": draw_sailboat,
    "steamship": draw_steamship,
    "plane": draw_plane,
    "rocket": draw_rocket,
}
