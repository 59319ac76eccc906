"""Places a sketch in a scene: pose, neighbours, paint, light, shadow and the camera's faults."""

from functools import lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from retrieval_app.demo.drawing.colours import Palette, choose_palette
from retrieval_app.demo.drawing.patterns import BACKDROPS, MATERIALS, Field
from retrieval_app.demo.drawing.shapes import Points, box, ellipse, polygon
from retrieval_app.demo.drawing.sketch import Part, Role, transform

_OVERSAMPLING = 3
_PATTERNED = (Role.BODY, Role.ACCENT)


def render_scene(sketch: list[Part], *, rng: Generator, size: int) -> Image.Image:
    """Paint a sketch once, in a scene drawn from `rng`, as an RGB picture of `size` by `size` pixels."""
    palette = choose_palette(rng)
    parts = _arrange(sketch, rng)
    outline = float(rng.uniform(0.006, 0.014)) if rng.random() < 0.6 else 0.0
    labels = _draw_labels(parts, outline=outline, size=size * _OVERSAMPLING)
    angle = rng.uniform(-np.pi, 0.0)
    light = np.array([np.cos(angle), np.sin(angle)], dtype=np.float32)
    paint, cover = _paint_parts(labels, parts, palette=palette, light=light, rng=rng)
    return _compose(paint, cover, palette=palette, light=light, rng=rng)


@lru_cache(maxsize=4)
def _grid(size: int) -> tuple[Field, Field]:
    line = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    y, x = np.meshgrid(line, line, indexing="ij")
    return x, y


def _arrange(sketch: list[Part], rng: Generator) -> list[Part]:
    """Pose the sketch inside the unit square, sometimes with something behind or in front of it."""
    turn = np.radians(rng.triangular(-35, 0, 35))
    stretch = np.diag([rng.uniform(0.88, 1.12) * (-1 if rng.random() < 0.4 else 1), rng.uniform(0.92, 1.08)])
    shear = np.array([[1.0, 0.0], [rng.uniform(-0.1, 0.1), 1.0]])
    spin = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    matrix = stretch @ shear @ spin
    points = np.vstack([part.points for part in sketch if part.role is not Role.HOLE]) @ matrix
    low, high = points.min(axis=0), points.max(axis=0)
    share = rng.uniform(0.6, 0.9)
    scale = share / float((high - low).max())
    room = 1 - scale * (high - low)
    # A little of the object may leave the frame; most of it never does.
    corner = rng.uniform(-0.02, room + 0.02, 2)
    posed = [transform(part, matrix=matrix * scale, offset=corner - low * scale) for part in sketch]
    middle = corner + scale * (high - low) / 2
    if rng.random() < 0.25:
        posed = [*_draw_distractor(rng, away_from=middle), *posed]
    if rng.random() < 0.15:
        posed += _draw_occluder(rng, corner=corner, extent=scale * (high - low))
    return posed


def _draw_distractor(rng: Generator, *, away_from: Points) -> list[Part]:
    angle, radius = rng.uniform(0, 2 * np.pi), rng.uniform(0.06, 0.13)
    x, y = np.clip(away_from + 0.5 * np.array([np.cos(angle), np.sin(angle)]), 0.06, 0.94)
    choice = rng.random()
    if choice < 0.35:
        ball = ellipse((x, y), (radius, radius))
        shine = ellipse((x - radius * 0.3, y - radius * 0.3), (radius * 0.35, radius * 0.3))
        return [Part(ball, Role.OTHER), Part(shine, Role.OTHER_ACCENT)]
    if choice < 0.65:
        block = box((x - radius, y - radius * 0.8), (x + radius, y + radius * 0.8), radius=radius * 0.2)
        strap = box((x - radius * 0.2, y - radius * 0.8), (x + radius * 0.2, y + radius * 0.8))
        return [Part(block, Role.OTHER), Part(strap, Role.OTHER_ACCENT)]
    if choice < 0.85:
        return [Part(ellipse((x, y), (radius, radius)), Role.OTHER, width=radius * 0.4)]
    lean = rng.uniform(-0.2, 0.2)
    return [Part(polygon((x - lean, y - 0.25), (x + lean, y + 0.25)), Role.OTHER, width=radius * 0.45)]


def _draw_occluder(rng: Generator, *, corner: Points, extent: Points) -> list[Part]:
    """Hide a rim of the object behind a disc or a slab that leaves its middle in view."""
    side = rng.integers(0, 2, 2)
    x, y = corner + extent * side
    radius = float(rng.uniform(0.16, 0.26) * extent.min())
    if rng.random() < 0.5:
        return [Part(ellipse((x, y), (radius, radius)), Role.OTHER)]
    slab = polygon(
        (x - radius * 2, y + (0.5 - side[1]) * radius), (x + radius * 2, y + (0.5 - side[1]) * radius * 0.2)
    )
    return [Part(slab, Role.OTHER, width=radius * 0.7)]


def _draw_labels(parts: list[Part], *, outline: float, size: int) -> NDArray[np.uint8]:
    """Draw which part shows at each pixel: 0 background, i + 1 part i, 255 outline."""
    canvas = Image.new("L", (size, size), 0)
    draw = ImageDraw.Draw(canvas)
    edge = round(outline * size * 2)
    for number, part in enumerate(parts, start=1):
        points = (part.points * size).ravel().tolist()
        inked = edge if part.outlined else 0
        if part.role is Role.HOLE:
            _cut_hole(canvas, points, edge=inked)
        elif part.width is None:
            _draw_fill(draw, points, label=number, edge=inked)
        else:
            width = max(round(part.width * size), 2)
            if inked:
                _draw_stroke(draw, points, label=255, width=width + inked)
            _draw_stroke(draw, points, label=number, width=width)
    return np.asarray(canvas)


def _draw_fill(draw: ImageDraw.ImageDraw, points: list[float], *, label: int, edge: int) -> None:
    draw.polygon(points, fill=label)
    if edge:
        draw.line(points + points[:4], fill=255, width=edge, joint="curve")


def _cut_hole(canvas: Image.Image, points: list[float], *, edge: int) -> None:
    before = canvas.copy()
    _draw_fill(ImageDraw.Draw(canvas), points, label=0, edge=edge)
    # A hole that reaches past the object must not leave ink on the background.
    canvas.paste(0, mask=before.point([255] + [0] * 255))


def _draw_stroke(draw: ImageDraw.ImageDraw, points: list[float], *, label: int, width: int) -> None:
    draw.line(points, fill=label, width=width, joint="curve")
    for x, y in (points[:2], points[-2:]):
        draw.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=label)


def _paint_parts(
    labels: NDArray[np.uint8], parts: list[Part], *, palette: Palette, light: Field, rng: Generator
) -> tuple[Field, Field]:
    """Colour the labels; gives paint times cover, float32 (H, W, 3), and cover in 0-1, float32 (H, W)."""
    size = len(labels)
    x, y = _grid(size)
    first, step, shade = _tabulate(parts, palette=palette, light=light, strength=rng.uniform(0.1, 0.45))
    weights = np.zeros((len(_PATTERNED), 256), dtype=np.float32)
    colours = first[labels]
    for i, (role, chance) in enumerate(zip(_PATTERNED, (0.7, 0.35), strict=True)):
        if rng.random() >= chance:
            continue
        weights[i, 1 : len(parts) + 1] = [part.role is role for part in parts]
        pattern = MATERIALS[int(rng.integers(len(MATERIALS)))]
        field = pattern(x, y, rng) * weights[i][labels]
        colours += step[labels] * field[..., None]
    slope = shade[0][labels] + shade[1][labels] * x + shade[2][labels] * y
    colours *= slope[..., None]
    pixels = Image.fromarray(colours.clip(0, 255).astype(np.uint8)).reduce(_OVERSAMPLING)
    cover = Image.fromarray(np.where(labels > 0, np.uint8(255), np.uint8(0))).reduce(_OVERSAMPLING)
    return np.asarray(pixels).astype(np.float32), np.asarray(cover).astype(np.float32) / np.float32(255)


def _tabulate(parts: list[Part], *, palette: Palette, light: Field, strength: float) -> tuple[Field, Field, Field]:
    """List per label its colour (256, 3), the step to its second colour, and its brightness plane (3, 256)."""
    first, step = np.zeros((256, 3), dtype=np.float32), np.zeros((256, 3), dtype=np.float32)
    shade = np.zeros((3, 256), dtype=np.float32)
    first[255], shade[0, 255] = palette.paint[Role.INK], 1.0
    for number, part in enumerate(parts, start=1):
        first[number] = palette.paint[part.role] if part.role is not Role.HOLE else 0.0
        step[number] = palette.second[part.role] - first[number] if part.role in _PATTERNED else 0.0
        low, high = part.points.min(axis=0), part.points.max(axis=0)
        # Each part brightens towards the light across its own extent, as a rounded surface would.
        slope = strength * light / max(float((high - low).max()), 0.05)
        shade[1:, number] = slope * part.tone
        shade[0, number] = part.tone * (1 - float(slope @ ((low + high) / 2)))
    return first, step, shade


def _compose(paint: Field, cover: Field, *, palette: Palette, light: Field, rng: Generator) -> Image.Image:
    """Lay the painted object on its background, light both, and photograph them."""
    size = len(cover)
    x, y = _grid(size)
    near, far = palette.background
    field = np.zeros_like(x) if rng.random() < 0.12 else BACKDROPS[int(rng.integers(len(BACKDROPS)))](x, y, rng)
    behind = near + (far - near) * field[..., None]
    shadow = _blur(cover, radius=size * rng.uniform(0.015, 0.05))
    margin = size // 8
    left, top = (margin + light * size * rng.uniform(0.02, 0.07)).round().astype(int)
    shadow = np.pad(shadow, margin, mode="edge")[top : top + size, left : left + size]
    shadow = shadow * np.float32(rng.uniform(0, 0.5))
    swell = _blur(cover, radius=size * 0.03)
    rim = np.gradient(swell)
    relief = 1 - np.float32(size * rng.uniform(0.0, 0.05)) * (rim[1] * light[0] + rim[0] * light[1])
    image = behind * ((1 - shadow) * (1 - cover))[..., None] + paint * relief[..., None]
    lamp = 1 + np.float32(rng.uniform(0, 0.3)) * (
        (x - np.float32(0.5)) * light[0] + (y - np.float32(0.5)) * light[1]
    )
    tint = (rng.uniform(0.92, 1.12) * rng.uniform(0.95, 1.05, 3)).astype(np.float32)
    image *= lamp[..., None] * tint
    if rng.random() < 0.6:
        image += rng.standard_normal((size, size, 1), dtype=np.float32) * np.float32(rng.uniform(1.5, 7))
    picture = Image.fromarray(image.clip(0, 255).astype(np.uint8))
    if rng.random() < 0.3:
        picture = picture.filter(ImageFilter.GaussianBlur(size / 96 * rng.uniform(0.3, 0.8)))
    return picture


def _blur(field: Field, *, radius: float) -> Field:
    image = Image.fromarray((field * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(radius))
    return np.asarray(image).astype(np.float32) / np.float32(255)
