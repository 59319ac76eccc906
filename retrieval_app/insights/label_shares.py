"""Label shares among the nearest neighbours of an image: why a search, or a person, would give it a label."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from index.arrays import Vectors
from index.gallery.gallery import Gallery
from retrieval_app.insights.answer import Answer


class LabelShare(Answer):
    """A label of `count` neighbours, and their share of all that have a label."""

    label: str
    count: int
    share: float
    mean_score: float


class SharesAround(Answer):
    """Which labels the nearest neighbours have, the most frequent first; `own_share` is None without a label."""

    label: str | None
    own_share: float | None
    shares: list[LabelShare]
    neighbours: int
    unlabelled: int = Field(description="neighbours without a label, which are in no share")


def share_labels(gallery: Gallery, asked: Vectors | int, *, k: int = 20) -> SharesAround:
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
        LabelShare(label=name, count=len(found), share=len(found) / labelled, mean_score=sum(found) / len(found))
        for name, found in scores.items()
    ]
    shares.sort(key=lambda share: (-share.count, -share.mean_score, share.label))
    own = None if label is None or not labelled else len(scores.get(label, ())) / labelled
    return SharesAround(
        label=label, own_share=own, shares=shares, neighbours=len(hits), unlabelled=len(hits) - labelled
    )
