"""Pictures for people who would rather look than read: suspicious labels, and retrieval results."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from index.durable import replacing
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.hits import GalleryImage, Hit
from index.images.image_files import decode_image
from index.outputs import KIND
from index.sources.items import Place
from index.sources.reading import read_indexed
from index.text import printable_path

TILE = 160
GAP = 12
RIGHT, WRONG, QUERY = (34, 139, 74), (204, 51, 51), (40, 40, 40)


@dataclass(frozen=True, slots=True)
class Suspect:
    """One training image whose own label has a low confidence."""

    path: Path
    label: str
    confidence: float
    suggestion: str
    suggestion_confidence: float


@dataclass(frozen=True, slots=True)
class Tile:
    """One picture of a sheet: the place of an image, a caption of short lines, and the colour of its border."""

    place: Place
    caption: Sequence[str]
    border: tuple[int, int, int]


def find_suspects(confidences: Path, *, count: int) -> list[Suspect]:
    """The `count` images of a run's confidences.csv with the lowest confidence in their own label.

    Ties, which confidences near 0 bring, go to the higher confidence in the suggested label.

    Raises:
        InputError: the file is missing (a method without a confidence module leaves none).
    """
    if not confidences.is_file():
        raise InputError(f"{confidences}: no confidences here; methods that train without any leave none")
    with confidences.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = [
            Suspect(
                Path(row["path"]),
                row["label"],
                float(row["confidence"]),
                row["suggestion_1"],
                float(row["suggestion_confidence_1"]),
            )
            for row in csv.DictReader(file)
        ]
    return sorted(rows, key=lambda row: (row.confidence, -row.suggestion_confidence))[:count]


def suspect_tiles(suspects: Sequence[Suspect]) -> list[Tile]:
    """Suspects as tiles: the label as it is, and what its confidences say instead."""
    return [
        Tile(
            Place(suspect.path, printable_path(str(suspect.path))),
            (
                f"{suspect.label} ({suspect.confidence:.3f})",
                f"more like: {suspect.suggestion} ({suspect.suggestion_confidence:.2f})",
            ),
            WRONG,
        )
        for suspect in suspects
    ]


def neighbour_tiles(gallery: Gallery, queries: Sequence[GalleryImage], *, neighbours: int) -> list[Tile]:
    """Rows of a query and its nearest other members, bordered by whether the labels agree.

    Raises:
        InputError: a member's file has vanished.
    """
    tiles = []
    for query in queries:
        tiles.append(Tile(gallery.place(query.id), (f"query: {query.label}",), QUERY))
        for hit in gallery.search(gallery.vector(query.id), k=neighbours, exclude_id=query.id):
            border = RIGHT if hit.label == query.label else WRONG
            tiles.append(Tile(gallery.place(hit.id), (f"{hit.label} {hit.score:.2f}",), border))
    return tiles


@dataclass(frozen=True, slots=True)
class Question:
    """An edited photo, the member that it was made of, and what was found by each output."""

    path: Path
    original: GalleryImage
    answers: Mapping[str, Sequence[Hit]]


def question_tiles(gallery: Gallery, questions: Sequence[Question]) -> list[Tile]:
    """Rows of an edited photo and what was found: by kind, with a border by its label, by picture, by whether it is it.

    Raises:
        InputError: a member's file has vanished.
    """
    tiles = []
    for question in questions:
        original = question.original
        tiles.append(Tile(Place(question.path, question.path.name), (f"edited: {original.label}",), QUERY))
        for output, hits in question.answers.items():
            for hit in hits:
                is_right = hit.label == original.label if output == KIND else hit.id == original.id
                caption = (f"{output}: {hit.label}", f"{hit.score:.2f}")
                tiles.append(Tile(gallery.place(hit.id), caption, RIGHT if is_right else WRONG))
    return tiles


def draw_sheet(tiles: Sequence[Tile], out: Path, *, columns: int, title: str) -> None:
    """Draw tiles in rows under a title into a PNG file.

    Raises:
        ImageError: a tile's image cannot be read.
    """
    font, heading = ImageFont.load_default(13), ImageFont.load_default(18)
    caption_height = 18 * max((len(tile.caption) for tile in tiles), default=0)
    step = (TILE + GAP, TILE + caption_height + GAP)
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (GAP + columns * step[0], 2 * GAP + 24 + rows * step[1]), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, GAP), title, fill=QUERY, font=heading)
    for number, tile in enumerate(tiles):
        left = GAP + (number % columns) * step[0]
        top = 2 * GAP + 24 + (number // columns) * step[1]
        image = decode_image(read_indexed(tile.place), name=tile.place.name, target_side=TILE)
        image.thumbnail((TILE - 8, TILE - 8))
        if max(image.size) < TILE - 8:
            scale = (TILE - 8) / max(image.size)
            image = image.resize((round(image.width * scale), round(image.height * scale)))
        draw.rectangle(
            (left, top, left + TILE - 1, top + TILE - 1), fill=(245, 245, 245), outline=tile.border, width=4
        )
        sheet.paste(image, (left + (TILE - image.width) // 2, top + (TILE - image.height) // 2))
        for line, text in enumerate(tile.caption):
            draw.text((left, top + TILE + 2 + 18 * line), _fit(text, font), fill=QUERY, font=font)
    with replacing(out) as temporary:
        sheet.save(temporary, format="PNG")


def _fit(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    text = printable_path(text)
    while font.getlength(text) > TILE and len(text) > 1:
        text = text[:-2] + "…"
    return text
