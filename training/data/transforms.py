"""Edited copies of images, for copy detection."""

import hashlib
import io
import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image

Edit = Callable[[Image.Image, np.random.Generator], Image.Image]
"""Changes an RGB image; the generator alone decides how."""

_LUMA = np.tile([0.299, 0.587, 0.114], (3, 1))  # of ITU-R BT.601, in each row
_ACROSS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])  # (r, g, b) to its cross product with the axis of greys
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def cut(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Crop a window of 0.3 of the area to all of it, with its aspect ratio changed by up to a third."""
    width, height = image.size
    area, ratio = generator.uniform(0.3, 1), math.exp(generator.uniform(-1, 1) * math.log(4 / 3))
    wide = min(width, max(1, round(width * math.sqrt(area * ratio))))
    high = min(height, max(1, round(height * math.sqrt(area / ratio))))
    left, top = (int(generator.integers(room + 1)) for room in (width - wide, height - high))
    return image.crop((left, top, left + wide, top + high))


def mirror(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Mirror left to right."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def turn(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Rotate by up to 25 degrees on a page of one colour, with the corners or the edges cut off."""
    angle, way = generator.uniform(-25, 25), int(generator.integers(3))
    turned = image.rotate(angle, Image.Resampling.BILINEAR, expand=way == 0, fillcolor=_draw_colour(generator))
    if way < 2:
        return turned
    width, height = image.size
    lost = min(0.3, abs(math.sin(math.radians(angle))) * 0.5)
    return turned.crop(
        (round(lost * width), round(lost * height), round((1 - lost) * width), round((1 - lost) * height))
    )


def turn_over(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Rotate by a quarter or a half, or flip, as scanners and phones do."""
    ways = (
        Image.Transpose.ROTATE_90,
        Image.Transpose.ROTATE_180,
        Image.Transpose.ROTATE_270,
        Image.Transpose.FLIP_TOP_BOTTOM,
    )
    return image.transpose(ways[int(generator.integers(len(ways)))])


def recolour(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Change brightness, contrast and saturation by factors of 0.45 to 1.55, hue by 0.11 of a turn.

    All four are one affine map of colours: the hue is rotated about the greys.
    """
    bright, contrast, saturation = 1 + generator.uniform(-0.55, 0.55, size=3)
    angle = 2 * math.pi * 0.55 / 5 * generator.uniform(-1, 1)
    turned = math.cos(angle) * np.eye(3) + (1 - math.cos(angle)) / 3 + math.sin(angle) / math.sqrt(3) * _ACROSS
    colours = bright * turned @ (saturation * np.eye(3) + (1 - saturation) * _LUMA)  # (3, 3)
    mean = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    offset = (1 - contrast) * bright * (_LUMA @ np.asarray(mean))
    matrix = np.column_stack([contrast * colours, offset])
    return image.convert("RGB", tuple(matrix.ravel().tolist()))


def grey(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Remove the colours."""
    return image.convert("L").convert("RGB")


def compress(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Save as a JPEG of quality 10 to 70."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(generator.integers(10, 71)))
    return Image.open(file).convert("RGB")


def blur(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Blur by up to a fiftieth of the side."""
    return image.filter(ImageFilter.GaussianBlur(generator.uniform(0.2, 1) * max(image.size) / 50))


def shrink(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Scale to a fifth to three fifths of the side, and back."""
    share = generator.uniform(0.2, 0.6)
    width, height = image.size
    small = image.resize((max(8, round(share * width)), max(8, round(share * height))), Image.Resampling.BILINEAR)
    return small.resize(image.size, Image.Resampling.BILINEAR)


def write(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Write one or two lines of text over the image."""
    image = image.copy()
    pen = ImageDraw.Draw(image)
    for _ in range(int(generator.integers(1, 3))):
        length = int(generator.integers(3, 15))
        text = "".join(_LETTERS[place] for place in generator.integers(len(_LETTERS), size=length))
        font = ImageFont.load_default(max(8, round(generator.uniform(0.06, 0.18) * image.height)))
        place = generator.uniform(-0.1, 0.7) * image.width, generator.uniform(0, 0.9) * image.height
        pen.text(place, text, fill=_draw_colour(generator), font=font)
    return image


def stamp(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Add a logo: a more or less transparent figure of one colour, over up to a tenth of the image."""
    side = max(4, round(generator.uniform(0.12, 0.32) * min(image.size)))
    mask = Image.new("L", (side, side))
    pen, strength, whole = ImageDraw.Draw(mask), int(generator.integers(120, 256)), (0, 0, side - 1, side - 1)
    match int(generator.integers(3)):
        case 0:
            pen.rectangle(whole, fill=strength)
        case 1:
            pen.pieslice(whole, 0, generator.uniform(60, 360), fill=strength)
        case _:
            pen.polygon([(int(x), int(y)) for x, y in generator.integers(side, size=(5, 2))], fill=strength)
    image = image.copy()
    left, top = (int(generator.integers(max(1, room - side + 1))) for room in image.size)
    image.paste(_draw_colour(generator), (left, top), mask)
    return image


def frame(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Put the image in a page or on a screen: bars around it, with lines as of text."""
    width, height = image.size
    left, top, right, bottom = (
        round(share * side)
        for share, side in zip(generator.uniform(0, 0.3, size=4), (width, height, width, height), strict=True)
    )
    page = Image.new("RGB", (width + left + right, height + top + bottom), _draw_colour(generator))
    pen = ImageDraw.Draw(page)
    for _ in range(int(generator.integers(6))):
        x, y = generator.uniform(0, 0.8) * page.width, generator.uniform(0, 1) * page.height
        long, thick = generator.uniform(0.05, 0.4) * page.width, generator.uniform(0.01, 0.04) * page.height
        pen.rectangle((x, y, x + long, y + thick), fill=_draw_colour(generator))
    page.paste(image, (left, top))
    return page


EDITS: Sequence[tuple[float, Edit]] = (
    (0.8, cut),
    (0.5, mirror),
    (0.5, turn),
    (0.05, turn_over),
    (0.6, recolour),
    (0.1, grey),
    (0.15, blur),
    (0.15, shrink),
    (0.2, write),
    (0.15, stamp),
    (0.25, frame),
    (0.5, compress),
)
"""(how often, edit), in the order in which they are done."""


def draw_copy(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """A copy by some of the edits, of any size; sometimes without edits."""
    for share, edit in EDITS:
        if generator.random() < share:
            image = edit(image, generator)
    return image


def _draw_colour(generator: np.random.Generator) -> tuple[int, int, int]:
    """A colour, often black or white, as of pages, bars and letters."""
    kind = generator.random()
    if kind < 0.4:
        return (0, 0, 0) if kind < 0.2 else (255, 255, 255)
    red, green, blue = generator.integers(256, size=3)
    return int(red), int(green), int(blue)


_EDITED = 4  # times the size that images are resized to: of a strip edits would make what no file can hold


def edited_views(image: Image.Image, config: PreprocessConfig, *, count: int, sha256: str) -> Pixels:
    """(count, crop, crop, 3) uint8: the image, then edited copies that depend on the file's content alone."""
    views = [preprocess_image(image, config)]
    if count == 1:
        return np.stack(views)
    image = image.copy()
    image.thumbnail((_EDITED * config.resize,) * 2)
    for view in range(1, count):
        seed = hashlib.sha256(f"{sha256}/{view}".encode()).digest()[:8]
        copy = draw_copy(image, np.random.default_rng(int.from_bytes(seed, "big")))
        views.append(preprocess_image(copy, config))
    return np.stack(views)
