"""Page of the demo: its findings, new photos with their nearest labelled photo at each stage, and edited photos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.catalog.rows import CatalogRow
from index.gallery.ranking import Hit
from index.items import Place
from index.outputs import SEMANTIC
from index.progress import no_progress
from retrieval_app.reports.standalone import draw_thumbnails, write_document

_SIDE = 160  # pixels
_SHOWN = 10  # new photos
QUERY, RIGHT, WRONG = "kept", "right", "wrong"  # frames


Tile = tuple[Place, str, str]
"""An image with its caption and frame."""


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
    edited: Sequence[Question],
) -> None:
    """Write the page.

    Args:
        lines: the findings.
        photos: new ones, each in the folder of its kind.
        answers: their nearest labelled photos by stage.
    """
    right = np.array(
        [[hit.label == photo.parent.name for hit, photo in zip(hits, photos, strict=True)] for hits in answers.values()]
    )
    gained, lost = (~right[0] & right[-1]).sum(), (right[0] & ~right[-1]).sum()
    changed = np.flatnonzero((right != right[0]).any(axis=0))
    shown = np.sort(np.random.default_rng(0).permutation(changed)[:_SHOWN])
    new, asked = list[list[Tile]](), list[list[Tile]]()
    for number in shown.tolist():
        photo, hits = photos[number], [hits[number] for hits in answers.values()]
        frames = [RIGHT if is_right else WRONG for is_right in right[:, number]]
        new.append([(Place(photo, photo.name), f"new: {photo.parent.name}", QUERY)])
        new[-1] += [(_find_place(hit), str(hit.label), frame) for hit, frame in zip(hits, frames, strict=True)]
    for question in edited:
        label, original = question.original.label, question.original.id
        asked.append([(Place(question.path, question.path.name), f"edited: {label}", QUERY)])
        for output, results in question.answers.items():
            for hit in results:
                is_right = hit.label == label if output == SEMANTIC else hit.id == original
                caption = f"{output}: {hit.label} {hit.score:.2f}"
                asked[-1].append((_find_place(hit), caption, RIGHT if is_right else WRONG))
    title = (
        f"New photos, each with its nearest labelled photo and its label: {', '.join(answers)}. From first to last "
        f"{gained} got the right label and {lost} lost it; {len(shown)} of the {len(changed)} that changed"
    )
    sections = [(title, new), ("Edited photos: three semantic results, then three copies", asked)]
    places = [place for _, rows in sections for row in rows for place, _, _ in row]
    pictures = iter(draw_thumbnails(places, sides=[_SIDE] * len(places), progress=no_progress)[0])
    drawn = [
        (title, [[(caption, frame, next(pictures)) for _, caption, frame in row] for row in rows])
        for title, rows in sections
    ]
    write_document(out, "demo.html", lines=lines, sections=drawn)


def _find_place(hit: Hit) -> Place:
    return Place(Path(hit.location), hit.path)
