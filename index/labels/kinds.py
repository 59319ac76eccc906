"""What kind of trouble a doubted label is: by rules that can be said in a sentence each."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Labels
from index.labels.judge import Judgement

Kind: TypeAlias = Literal["wrong", "several", "unlike", "copies"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# An image that shows none of the classes has no clear favourite. Among photos of clothes, four fifths of pictures of
# animals and things had a highest confidence below half of the median, one in ten of the photos themselves.
CLEAR = 0.5
SEVERAL = 0.25  # chance of the label and of another one, each of which may then be right
# Two labels are mixed up where of the images of each so many show the other, and of both together so many images do.
MIXED_SHARE, MIXED_IMAGES = 0.05, 3.0


def is_unlike(judgement: Judgement) -> npt.NDArray[np.bool_]:
    """(N,) whether an image is unlike the others: its highest confidence is below `CLEAR` times the median of all."""
    unlike: npt.NDArray[np.bool_] = judgement.highest < CLEAR * np.median(judgement.highest)
    return unlike


def has_copy_with_another_label(labels: Labels, groups: Ids) -> npt.NDArray[np.bool_]:
    """(N,) whether a duplicate, of the same of (N,) groups, has another label."""
    places, inverse = np.unique(groups, return_inverse=True)
    lowest, highest = np.full(len(places), np.iinfo(np.int64).max), np.full(len(places), -1)
    np.minimum.at(lowest, inverse, labels)
    np.maximum.at(highest, inverse, labels)
    differ: npt.NDArray[np.bool_] = (lowest < highest)[inverse]
    return differ


def tell_kind(*, wrong: float, best_other: float, is_unlike: bool, has_copy: bool) -> Kind:
    """The kind of one doubted label; the first that fits.

    - `copies`: a duplicate of the image has another label; at least one of the two is wrong.
    - `unlike`: the image is unlike the others, so that no label is clear: it may show none of them.
    - `several`: its label and another one are both likely: both may fit, or both names mean the same.
    - `wrong`: another label fits better.

    Args:
        wrong: chance that the label is wrong.
        best_other: chance of the likeliest other label.
    """
    if has_copy:
        return "copies"
    if is_unlike:
        return "unlike"
    return "several" if min(1 - wrong, best_other) >= SEVERAL else "wrong"


def find_mixed_labels(
    pairs: tuple[tuple[int, int, float], ...], labels: Labels, *, count: int
) -> list[tuple[int, int, float]]:
    """(label, label, images) that are given in each other's place, both ways, the most images first.

    Args:
        pairs: of `Suspicion`: (label, label shown, images).
        labels: (N,) int64 in 0..count-1.
    """
    images = np.bincount(labels, minlength=count)
    amounts = {(given, shown): amount for given, shown, amount in pairs}
    found = []
    for (one, two), amount in amounts.items():
        back = amounts.get((two, one), 0.0)
        both_ways = min(amount / images[one], back / images[two] if images[two] else 0.0)
        if one < two and both_ways >= MIXED_SHARE and amount + back >= MIXED_IMAGES:
            found.append((one, two, amount + back))
    return sorted(found, key=lambda pair: -pair[2])
