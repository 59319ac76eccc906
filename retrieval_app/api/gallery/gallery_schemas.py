"""What the API answers about the gallery as a whole, and about work that is not done yet."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from retrieval_app.api.schemas import Answer


class Computing(Answer):
    """Work in progress: ask again; a `total` of 0 is not known yet."""

    state: Literal["computing"]
    done: int
    total: int


class Failed(Answer):
    """Work that could not be done, and why."""

    state: Literal["failed"]
    message: str


class ModelFacts(Answer):
    """What makes the vectors."""

    backbone: str
    method: str
    sha256: str


class LabelFacts(Answer):
    """The labels' names, the most frequent first and not more than 2,000; their number; images that have one."""

    names: list[str]
    count: int
    labelled: int


class Rights(Answer):
    """What this server lets the one who asks do."""

    review: bool
    write: bool


class Limits(Answer):
    """How much is taken at once."""

    max_upload_bytes: int
    max_k: int
    max_queries: int
    max_export_csv: int = Field(description="images of a table")
    max_export_zip: int = Field(description="images of a ZIP")


class CalibrationFacts(Answer):
    """What scores mean: rows of score, share of neighbours with the same label, and its 95 % interval.

    There are no points until they are computed, and where too few images have labels.
    """

    state: Literal["ready", "computing", "failed"]
    points: list[tuple[float, float, float, float]]


class GalleryFacts(Answer):
    """The gallery that is served."""

    name: str
    version: str
    images: int
    embedding_dim: int
    model: ModelFacts
    labels: LabelFacts
    metadata_columns: list[str]
    index: dict[str, Any] = Field(description="what the build measured of the index")
    can: Rights
    limits: Limits
    calibration: CalibrationFacts


class FacetValueEntry(Answer):
    """A value, its images, and the condition that selects them; null stands for images without one."""

    value: str | int | float | bool | None
    count: int
    where: str


class FacetEntry(Answer):
    """What images can be told apart by; `more` values are left out."""

    name: str
    values: list[FacetValueEntry]
    more: int


class FacetList(Answer):
    """The facets of the images that fulfil the condition."""

    version: str
    total: int
    facets: list[FacetEntry]


Interval = tuple[float, float]


class RecallEntry(Answer):
    """Share of the queries that find one of their label among the first `k`, with its 95 % interval."""

    k: int
    value: float
    interval: Interval


class MeanPrecision(Answer):
    """Mean average precision at R, with its 95 % interval."""

    value: float
    interval: Interval


class ClassEntry(Answer):
    """A label's images that have another one to find, and their Recall@1 with its 95 % interval."""

    label: str
    images: int
    recall_at_1: float
    interval: Interval


class FirstHit(Answer):
    """What a query meets first."""

    id: int
    label: str
    score: float


class WorstQueryEntry(Answer):
    """An image of which at least the first `misses` hits have another label."""

    id: int
    label: str
    hit: FirstHit
    misses: int


class ScoreHistogram(Answer):
    """How many images have their nearest of the same and of a different label between two of the edges."""

    edges: list[float]
    same: list[int]
    different: list[int]


class Confusion(Answer):
    """How many images of a label have their nearest in another one, and the first of them."""

    label: str
    found: str
    count: int
    ids: list[int]


class QualityReport(Answer):
    """How well the gallery finds its own labels; `problem` says why where nothing can be told."""

    state: Literal["ready"]
    version: str
    queries: int
    lone: int = Field(description="images that are alone with their label")
    sampled: bool
    recall_at: list[RecallEntry]
    recall_without_copies: RecallEntry | None = Field(
        description="Recall@1 where no image finds a near-duplicate of itself"
    )
    map_at_r: MeanPrecision | None
    classes: list[ClassEntry]
    worst: list[WorstQueryEntry]
    histogram: ScoreHistogram | None
    confusion: list[Confusion]
    problem: str | None
    index: dict[str, Any] = Field(description="what the build measured of the index")


class GalleryMap(Answer):
    """Where every image lies, 0 to 1; `label` is a position in `labels`, -1 without one."""

    state: Literal["ready"]
    version: str
    method: str
    total: int
    sampled: bool
    ids: list[int]
    x: list[float]
    y: list[float]
    label: list[int]
    labels: list[str]
