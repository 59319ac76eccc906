"""Page of the demo: its findings, new photos with their nearest labelled photo at each stage, and edited photos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.gallery.hits import Hit
from index.items import Place
from index.outputs import SEMANTIC
from index.progress import no_progress
from retrieval_app.reports.standalone import draw_thumbnails, write_document

_SIDE = 160  # pixels
_SHOWN = 10  # new photos
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
    out: Path,
    lines: Sequence[str],
    *,
    photos: Sequence[Path],
    answers: Mapping[str, Sequence[Hit]],
    gallery: Gallery,
    edited: Sequence[Question],
) -> None:
    """Write the page.

    Args:
        lines: the findings.
        photos: new ones, each in the folder of its kind.
        answers: their nearest labelled photos by stage.
        gallery: of the edited photos' originals.
    """
    right = np.array(
        [[hit.label == photo.parent.name for hit, photo in zip(hits, photos, strict=True)] for hits in answers.values()]
    )
    gained, lost = (~right[0] & right[-1]).sum(), (right[0] & ~right[-1]).sum()
    changed = np.flatnonzero((right != right[0]).any(axis=0))
    shown = np.sort(np.random.default_rng(0).permutation(changed)[:_SHOWN])
    sections = [
        (
            f"New photos, each with its nearest labelled photo and its label: {', '.join(answers)}. From first to last "
            f"{gained} got the right label and {lost} lost it; {len(shown)} of the {len(changed)} that changed",
            [_tile_stages(photos[number], [hits[number] for hits in answers.values()]) for number in shown],
        ),
        ("Edited photos: three semantic results, then three copies", [_tile_question(gallery, one) for one in edited]),
    ]
    places = [tile.place for _, rows in sections for row in rows for tile in row]
    pictures, _ = draw_thumbnails(places, sides=[_SIDE] * len(places), progress=no_progress)
    following = iter(pictures)
    drawn = [
        (title, [[(tile.caption, tile.frame, next(following)) for tile in row] for row in rows])
        for title, rows in sections
    ]
    write_document(out, "demo.html", lines=lines, sections=drawn)


def _tile_stages(photo: Path, hits: Sequence[Hit]) -> list[Tile]:
    """A new photo with its nearest labelled photo at each stage, framed by its label."""
    kind = photo.parent.name
    return [
        Tile(Place(photo, photo.name), f"new: {kind}", QUERY),
        *(
            Tile(Place(Path(hit.location), hit.path), str(hit.label), RIGHT if hit.label == kind else WRONG)
            for hit in hits
        ),
    ]


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
