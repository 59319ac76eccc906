"""Which labels the nearest neighbours of an image have: why a search, or a person, would give it one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.gallery.gallery import Gallery


@dataclass(frozen=True, slots=True)
class LabelShare:
    """A label of `count` neighbours, their share (0..1) of all that have a label, and their mean score."""

    label: str
    count: int
    share: float
    mean_score: float


@dataclass(frozen=True, slots=True)
class LabelShares:
    """The labels around an image.

    Attributes:
        label: of the image itself; None where it has none, or is no member.
        own_share: of neighbours with that label among all that have one; None without one.
        shares: the most frequent label first, of equals the one with the higher mean score.
        neighbours: looked at.
        unlabelled: of these.
    """

    label: str | None
    own_share: float | None
    shares: tuple[LabelShare, ...]
    neighbours: int
    unlabelled: int

    def to_json(self) -> dict[str, Any]:
        """As in the API."""
        return asdict(self)


def share_labels(gallery: Gallery, asked: Vectors | int, *, k: int = 20) -> LabelShares:
    """Count the labels of the k nearest members of a member, itself not counted, or of a (D,) float32 unit vector.

    Raises:
        InputError: no member has this id, k is below 1, or the vector has another width or is not finite.
    """
    if isinstance(asked, np.ndarray):
        label, hits = None, gallery.search(asked, k=k)
    else:
        label, hits = gallery.image(asked).label, gallery.search(gallery.vector(asked), k=k, exclude_id=asked)
    scores: dict[str, list[float]] = {}
    for hit in hits:
        if hit.label is not None:
            scores.setdefault(hit.label, []).append(hit.score)
    labelled = sum(map(len, scores.values()))
    shares = [
        LabelShare(name, len(found), len(found) / labelled, sum(found) / len(found))
        for name, found in scores.items()
    ]
    shares.sort(key=lambda share: (-share.count, -share.mean_score, share.label))
    own = None if label is None or not labelled else len(scores.get(label, ())) / labelled
    return LabelShares(label, own, tuple(shares), neighbours=len(hits), unlabelled=len(hits) - labelled)
