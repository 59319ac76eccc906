"""What the API answers about the gallery as a whole, and about work that is not done yet."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from retrieval_app.api.schemas import Answer, By, Ready, Versioned
from retrieval_app.insights.facet_filters import Facets
from retrieval_app.insights.quality import Quality


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
    view: str
    pooling: str
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
    fetch: bool = Field(description="search with photos whose addresses it is given")


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
    answers_by: list[By] = Field(description="what of an image searches can compare")
    model: ModelFacts
    labels: LabelFacts
    metadata_columns: list[str]
    index: dict[str, Any] = Field(description="what the build measured of the index")
    can: Rights
    limits: Limits
    calibration: CalibrationFacts


class FacetList(Facets, Versioned):
    """The facets of the images that fulfil the condition."""


class QualityReport(Quality, Ready):
    """How well the gallery finds its own labels; `problem` says why where nothing can be told."""


class GalleryMap(Ready):
    """Where every image lies, 0 to 1; `label` is a position in `labels`, -1 without one."""

    method: str
    total: int
    sampled: bool
    ids: list[int]
    x: list[float]
    y: list[float]
    label: list[int]
    labels: list[str]
