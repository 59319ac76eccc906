"""Labels of the neighbours of an image."""

from __future__ import annotations

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.insights.label_shares import share_labels


def test_the_labels_of_a_members_neighbours_are_counted_without_itself(
    labelled: Gallery, ids: dict[str, int]
) -> None:
    shares = share_labels(labelled, ids["red/wrong_0.png"], k=10)  # which shows blue
    assert shares.label == "red"
    assert shares.shares[0].label == "blue"
    assert shares.neighbours == sum(share.count for share in shares.shares) == 10
    assert sum(share.share for share in shares.shares) == pytest.approx(1)
    assert shares.own_share == sum(share.share for share in shares.shares if share.label == "red")
    hits = labelled.search(labelled.vector(ids["red/wrong_0.png"]), k=10, exclude_id=ids["red/wrong_0.png"])
    blue = [hit.score for hit in hits if hit.label == "blue"]
    assert shares.shares[0].mean_score == pytest.approx(sum(blue) / len(blue))


def test_without_labels_nobody_has_a_share(unusual: Gallery) -> None:
    shares = share_labels(unusual, int(unusual.ids[0]))
    assert shares.neighbours == unusual.count - 1
    assert shares.neighbours - shares.unlabelled == sum(share.count for share in shares.shares)


def test_an_unknown_member_is_told(labelled: Gallery) -> None:
    with pytest.raises(InputError, match="999"):
        share_labels(labelled, 999)
