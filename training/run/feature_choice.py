"""Which view and pooling a run takes: what each of those that were open found in a look, and the rule that chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from index.errors import InputError
from training.backbone.backbones import Backbone, layout_of, with_features
from training.options.config import AUTO, POOLINGS, VIEW_COSTS, InputConfig


@dataclass(frozen=True, slots=True)
class Candidate:
    """A view and a pooling of a backbone, and the width F of the features that they give."""

    view: str
    pooling: str
    feature_dim: int

    @property
    def passes(self) -> int:
        """Of the backbone, an image."""
        return VIEW_COSTS[self.view]


def list_candidates(network: Backbone, sizes: InputConfig, *, embedding_dim: int) -> list[Candidate]:
    """What the options leave open, the usual one first; none narrower than the embedding, unless all are.

    A network without feature maps has its own pooling only.

    Raises:
        InputError: the network has no feature maps for the pooling that is given.
    """
    found = [
        Candidate(view, pooling, width)
        for view in sizes.allowed_views
        for pooling, width in _list_poolings(network, sizes)
    ]
    return [one for one in found if one.feature_dim >= embedding_dim] or found


def _list_poolings(network: Backbone, sizes: InputConfig) -> Iterator[tuple[str, int]]:
    if sizes.pooling != AUTO:
        yield sizes.pooling, with_features(network, pooling=sizes.pooling, side=sizes.crop).feature_dim
        return
    try:
        layout = layout_of(network, pooling=AUTO, side=sizes.crop)
    except InputError:
        yield "own", network.feature_dim
        return
    yield from ((pooling, layout.feature_dim(pooling)) for pooling in POOLINGS)


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate and what it found.

    Attributes:
        recall: Recall@1 (fraction).
        difference: of it from the first candidate's.
        interval: of the difference, as `clear_lead.widen_interval` has it.
    """

    candidate: Candidate
    recall: float
    difference: float
    interval: tuple[float, float] | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "view": self.candidate.view,
            "pooling": self.candidate.pooling,
            "passes": self.candidate.passes,
            "feature_dim": self.candidate.feature_dim,
            "recall_at_1": self.recall,
            "difference": self.difference,
            "difference_interval": None if self.interval is None else list(self.interval),
        }


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """The candidate that a run takes, of those tried on a sample of `images` of `classes`.

    `tried` is empty where there was nothing to choose from, or the sample too small to find anything in.
    """

    chosen: Candidate
    tried: tuple[Tried, ...] = ()
    images: int = 0
    classes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as they stand in the run and in its report."""
        return {
            "view": self.chosen.view,
            "pooling": self.chosen.pooling,
            "passes": self.chosen.passes,
            "feature_dim": self.chosen.feature_dim,
            "images": self.images,
            "classes": self.classes,
            "tried": [one.to_json() for one in self.tried],
        }


def choose(tried: Sequence[Tried]) -> Candidate:
    """The candidate that finds most, where it finds more than the first one by more than chance; else the first."""
    best = max(tried, key=lambda one: one.recall)
    return best.candidate if best.interval is not None and best.interval[0] > 0 else tried[0].candidate
