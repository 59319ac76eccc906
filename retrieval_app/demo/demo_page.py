"""Page of the demo: its figures, likely label errors, and the results of edited and unseen photos."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.gallery.hits import Hit
from index.outputs import SEMANTIC
from index.progress import no_progress
from index.sources.items import Place
from retrieval_app.reports.standalone import draw_thumbnails, write_document

_SIDE = 160  # pixels
_SUSPECTS, _NEIGHBOURS = 12, 5
QUERY, RIGHT, WRONG = "kept", "right", "wrong"  # frames


class Tile(NamedTuple):
    """An image with its caption and frame."""

    place: Place
    caption: str
    frame: str


@dataclass(frozen=True, slots=True)
class Question:
    """An edited photo, its original in the gallery, and its results by output."""

    path: Path
    original: CatalogRow
    answers: Mapping[str, Sequence[Hit]]


def write_demo_page(
    out: Path, lines: Sequence[str], *, confidences: Path, gallery: Gallery, questions: Sequence[Question],
    trained: Gallery,
) -> None:  # fmt: skip
    """Write the page; `lines` are the findings, `confidences` is the run's confidences.csv."""
    sections = [
        (
            "Edited photos: three semantic results, then three copies",
            [_tile_question(gallery, one) for one in questions],
        ),
        ("The labels in which the training has the least confidence", [_tile_least_confident(confidences)]),
        (
            "Photos whose kinds training has not seen, and their neighbours",
            [_tile_neighbours(trained, query) for query in trained.sample(6, seed=3)],
        ),
    ]
    places = [tile.place for _, rows in sections for row in rows for tile in row]
    pictures, _ = draw_thumbnails(places, sides=[_SIDE] * len(places), progress=no_progress)
    following = iter(pictures)
    drawn = [
        (title, [[(tile.caption, tile.frame, next(following)) for tile in row] for row in rows])
        for title, rows in sections
    ]
    write_document(out, "demo.html", lines=lines, sections=drawn)


def _tile_question(gallery: Gallery, question: Question) -> list[Tile]:
    """An edited photo with its results: semantic ones are framed by their label, copies by whether it is the photo."""
    original = question.original
    tiles = [Tile(Place(question.path, question.path.name), f"edited: {original.label}", QUERY)]
    for output, hits in question.answers.items():
        for hit in hits:
            is_right = hit.label == original.label if output == SEMANTIC else hit.id == original.id
            caption = f"{output}: {hit.label} {hit.score:.2f}"
            tiles.append(Tile(gallery.place(hit.id), caption, RIGHT if is_right else WRONG))
    return tiles


def _tile_least_confident(confidences: Path) -> list[Tile]:
    """The images with the lowest confidence in their label; of ties the more confident suggestion first."""
    with confidences.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    rows.sort(key=lambda row: (float(row["confidence"]), -float(row["suggestion_confidence_1"])))
    return [
        Tile(Place(Path(row["path"]), row["path"]), f"{row['label']}, more like {row['suggestion_1']}", WRONG)
        for row in rows[:_SUSPECTS]
    ]


def _tile_neighbours(gallery: Gallery, query: CatalogRow) -> list[Tile]:
    """A member and its nearest neighbours, framed by whether the labels agree."""
    hits = gallery.search(gallery.vector(query.id), k=_NEIGHBOURS, exclude_id=query.id)
    return [
        Tile(gallery.place(query.id), f"query: {query.label}", QUERY),
        *(
            Tile(gallery.place(hit.id), f"{hit.label} {hit.score:.2f}", RIGHT if hit.label == query.label else WRONG)
            for hit in hits
        ),
    ]
