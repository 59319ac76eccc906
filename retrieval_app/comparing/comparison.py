"""What a comparison gives: who was compared on which images, and what each finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retrieval_app.comparing.candidates import Candidate
from retrieval_app.comparing.embedding import Embedded
from retrieval_app.comparing.photos import Photos
from retrieval_app.comparing.scoring import Scoring

TABLE_NAME, PAGE_NAME = "queries.csv", "compare.html"
TABLE_START = ("path", "label", "sha256")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of it.

    Attributes:
        photos: those that every candidate could use.
        candidates: in the order given.
        embedded: what each made of the images.
        scoring: what each finds, and every two side by side.
        ks: the K of Recall@K.
        files: that were written.
        seconds: that all of it took.
    """

    photos: Photos
    candidates: tuple[Candidate, ...]
    embedded: tuple[Embedded, ...]
    scoring: Scoring
    ks: tuple[int, ...]
    files: tuple[Path, ...]
    seconds: float
