"""What the API answers about images of the gallery."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from index.labels.kinds import Kind
from retrieval_app.api.schemas import Answer, Versioned
from retrieval_app.insights.label_shares import SharesAround


class ImageEntry(Answer):
    """An image of a list; what was not asked for by `include` is left out."""

    id: int
    label: str | None = None
    given_label: str | None = Field(
        default=None, description="the label that its source gave, only where a decision changed it"
    )
    path: str | None = None
    source: str | None = None
    metadata: dict[str, Any] | None = None


class ImageList(Versioned):
    """Images in the order of their ids, or at random; `total` is of all that fulfil the condition."""

    total: int
    images: list[ImageEntry]
    next_after: int | None = Field(description="`after` of the next page; null where this was the last")


class CopyEntry(Answer):
    """Another image of the group of near-duplicates; the similarity is known where one of the two keeps the group."""

    id: int
    path: str
    label: str | None
    indexed: bool = Field(description="false where the gallery set it aside when it was built")
    same_bytes: bool
    similarity: float | None


class Suggestion(Answer):
    """A label that an image may have instead."""

    label: str
    confidence: float


class Neighbour(Answer):
    """A neighbour with the image's own label."""

    id: int
    score: float


class OtherNeighbour(Neighbour):
    """A neighbour with another label."""

    label: str


class LabelDecisionEntry(Answer):
    """What somebody decided about a label; `label` is the new one of a change."""

    decision: Literal["keep", "change", "drop"]
    label: str | None


class DoubtEntry(Answer):
    """A label that may be wrong, and why."""

    id: int
    path: str
    label: str
    suggested: str | None
    wrong: float = Field(description="how likely the label is wrong, 0 to 1")
    suggestions: list[Suggestion]
    kind: Kind = Field(
        description="of trouble: `wrong`, another label fits better; `several` labels are likely; `mixed`, its label "
        "and the suggested one are given in each other's place; `rare`, its label has fewer than five images; "
        "`unlike`, the image is unlike the others; `copies`, a duplicate has another label"
    )
    verdict: Literal["keep", "change", "drop"] = Field(
        description="what `POST /v1/labels/accept` does where the label is likely enough wrong: `change` it to "
        "`suggested`, or `drop` the image, which is unlike the others or has a near-duplicate with a more credible "
        "label; `keep` leaves it open"
    )
    agreeing: list[Neighbour]
    disagreeing: list[OtherNeighbour]
    decision: LabelDecisionEntry | None


class ImageDetails(Answer):
    """All that is known of an image; duplicates and doubts are empty until they are computed."""

    id: int
    path: str
    label: str | None
    given_label: str | None = Field(
        default=None, description="the label that its source gave, only where a decision changed it"
    )
    source: str
    metadata: dict[str, Any]
    size_bytes: int
    modified: str | None = Field(description="ISO 8601, UTC")
    sha256: str | None
    indexed: bool = Field(description="false for a near-duplicate that the gallery set aside")
    copies: list[CopyEntry]
    doubt: DoubtEntry | None
    decision: LabelDecisionEntry | None


class _OfImage(Versioned):
    id: int


class LabelShares(SharesAround, _OfImage):
    """Which labels the nearest neighbours of an image have."""


class ImageVector(_OfImage):
    """The stored unit vector of an image."""

    vector: list[float]
