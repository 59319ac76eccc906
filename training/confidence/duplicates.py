"""Near-duplicates among training images: equal bytes, or an image saved again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.arrays import NO_ID, Floats, Ids, connect_rows, normalise_rows, rows_by_value
from index.progress import Progress, no_progress
from index.vectors.exact import search_labels

# Images, all pairs of which training multiplies: a minute or two on two cores. Of more, copies are files of the same
# bytes.
MOST_COMPARED = 30_000
# An image has to be close to its duplicate both as it is and beside what all images have in common. Measured on 5,398
# photos of clothing with MobileNetV2: images saved again as JPEG of quality 60 have at least 0.974 and 0.946, and
# two photos of different objects at most 0.921 and 0.860. The first number alone makes everything a duplicate where
# features differ little (weights that saw no training), the second where two kinds of image are all there is.
DUPLICATE_COSINE = 0.97
DUPLICATE_CENTRED_COSINE = 0.95


@dataclass(frozen=True, slots=True)
class Duplicates:
    """(N,) int64 rows of the nearest duplicates with another label (`NO_ID` without), and groups of duplicates."""

    other_label: Ids
    groups: Ids


def find_duplicates(
    features: Floats, labels: Ids, *, hashes: Sequence[str], progress: Progress = no_progress
) -> Duplicates:
    """Nearest duplicates of every image, of its own and of another label, by (N, F) float32 features."""
    unit = normalise_rows(features)
    centred = normalise_rows(unit - unit.mean(axis=0, dtype=np.float64).astype(np.float32))
    contents = np.unique(np.array(hashes), return_inverse=True)[1]
    partners = []  # nearest image of the own and of another label that is close enough in both senses
    for nearest in search_labels(centred, labels, k=1, progress=progress):
        partner = nearest.rows[:, 0].copy()
        cosines = np.einsum("nf,nf->n", unit, unit[partner])
        is_duplicate = (cosines >= DUPLICATE_COSINE) & (nearest.cosines[:, 0] >= DUPLICATE_CENTRED_COSINE)
        partner[~is_duplicate] = NO_ID
        partners.append(partner)
    own, other = partners
    same_bytes = rows_by_value(contents)
    for group in same_bytes:  # a file with the same bytes and another label goes first, whatever the features say
        for row in group if len(group) > 1 else ():
            different = group[labels[group] != labels[row]]
            if len(different):
                other[row] = different[0]
    rows = np.arange(len(labels))
    for row in np.flatnonzero(other != NO_ID):  # of both sides, also where one has a nearer image
        if other[other[row]] == NO_ID:
            other[other[row]] = row
    first = np.array([group[0] for group in same_bytes], dtype=np.int64)[contents]
    pairs = [np.stack([rows, partner], axis=1)[partner != NO_ID] for partner in (own, other, first)]
    return Duplicates(other, connect_rows(np.concatenate(pairs), count=len(labels)))
