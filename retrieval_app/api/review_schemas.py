"""What the API answers about labels and duplicates that somebody is to decide about."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from retrieval_app.api.image_schemas import DoubtEntry
from retrieval_app.api.schemas import Answer, Ready


class LabelPair(Answer):
    """How many doubted labels have the same suggestion."""

    label: str
    suggested: str
    count: int


class KindCounts(Answer):
    """How many doubted labels are of each kind of trouble, whichever are asked for."""

    wrong: int
    several: int
    mixed: int
    rare: int
    unlike: int
    copies: int


class Left(Answer):
    """How many labels without a decision are estimated wrong: of all labels, or of the listed ones of a filter."""

    wrong: float
    in_next: float = Field(description="how many of the next open ones are")
    next: int = Field(description="how many these next ones are")


class MixedLabels(Answer):
    """Two labels that are given in each other's place, and of how many images: people mix them up, or they are one."""

    labels: tuple[str, str]
    images: float


class AgreementEntry(Answer):
    """Two people who decided about the same labels, each by the last decision, and how many of these alike."""

    reviewers: tuple[str, str]
    both: int
    alike: int


class _ReviewList(Ready):
    total: int
    open: int
    decided: int


class DoubtList(_ReviewList):
    """Labels that may be wrong, the most doubtful first.

    `open` and `decided` count those given `label`, suggested `suggested` and of `kind`; `total` those of them in the
    asked state.
    """

    wrong_share: float | None = Field(description="estimated share of wrong labels among all")
    is_lower_bound: bool = Field(
        description="whether more are wrong: the model was trained with labels, and what it has learnt looks right"
    )
    judged: int = Field(description="labels that were looked at")
    items: list[DoubtEntry]
    pairs: list[LabelPair]
    left: Left
    kinds: KindCounts
    mixed: list[MixedLabels]
    agreement: list[AgreementEntry] = Field(description="of those with names; empty for whoever may not decide")
    learnt: int = Field(
        description="decisions that the list was ranked anew with; it goes on learning beside the server"
    )
    can_undo: bool


class GroupImageEntry(Answer):
    """An image of a group; its similarity is to the one that the others repeat, which is the first."""

    id: int
    path: str
    label: str | None
    size_bytes: int
    similarity: float | None
    same_bytes: bool | None = Field(description="whether its file equals the first one's; null of that one")
    indexed: bool = Field(description="false where the gallery set it aside when it was built")


class GroupDecisionEntry(Answer):
    """What somebody decided about a group; of duplicates those in `keep` stay."""

    decision: Literal["copies", "different"]
    keep: list[int]


class GroupEntry(Answer):
    """Images that look alike."""

    group: str
    images: list[GroupImageEntry]
    labels_differ: bool
    best: int = Field(
        description="the image to keep unless somebody marks others: of different labels one of that which is most "
        "probably right, then the largest file"
    )
    decision: GroupDecisionEntry | None


class GroupList(_ReviewList):
    """Groups of near-duplicates; `total` counts those in the asked state."""

    items: list[GroupEntry]
    can_undo: bool


class Decided(Answer):
    """How many decisions were kept, and the number of their step, by which just they can be undone."""

    decided: int
    step: int
    can_undo: bool


class Accepted(Answer):
    """What accepting verdicts does, or has done, to the labels without a decision."""

    changed: int = Field(description="labels that become the suggested one")
    dropped: int = Field(description="images that are left out of the label file")
    expected_wrong: float = Field(description="of these, how many labels are estimated wrong")
    expected_right: float = Field(description="of these, how many right labels are lost, by the same estimate")
    digest: str = Field(description="of these decisions: sent back, it makes them")
    step: int | None = Field(description="by which just these decisions can be undone; null where none were made")
    can_undo: bool


class Undone(Answer):
    """The images of the decisions that were taken back; none where there was nothing to take back."""

    undone: list[int]
    can_undo: bool


class DecidedLabel(Answer):
    """A decision that holds; `image_id` is null where the gallery does not have the image any more."""

    image_id: int | None
    path: str
    label: str | None
    decision: Literal["keep", "change", "drop"]
    new_label: str | None
    decided_at: str


class DecidedLabels(Answer):
    """The decisions about labels in the order they were made."""

    decisions: list[DecidedLabel]
    can_undo: bool
