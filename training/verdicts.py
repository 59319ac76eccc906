"""What should become of a label: four verdicts, by rules that can be said in a sentence each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.exact import NO_ID, Floats, Ids
from training.audit_report import DUPLICATE, KEEP, NO_CLASS, RELABEL

SUSPECT = 0.5  # a label is doubted where it is at least as likely wrong as right
# An image that shows none of the classes has no clear favourite. Among photos of clothes, four fifths of pictures of
# animals and things had a highest confidence below half of the median, one in ten of the photos themselves.
CLEAR = 0.5


def give_verdicts(
    confidences: Floats, labels: Ids, *, wrong: npt.NDArray[np.float64], duplicate_of: Ids
) -> tuple[list[str], Ids]:
    """A verdict for every label.

    - `duplicate`: a copy of the picture has another label; at least one of the two is wrong.
    - `keep`: the label is more likely right than wrong.
    - `no-class`: it is not, and the highest confidence is below `CLEAR` times the median of all images' highest.
    - `relabel`: it is not, and some class is clear; to the best one but the label.

    Args:
        confidences: (N, C) float32 in 0..1; of each image from other images.
        labels: (N,) int64.
        wrong: (N,) float64 chance that each label is wrong.
        duplicate_of: (N,) int64 row of the copy with another label, `NO_ID` without.

    Returns:
        N verdicts, and (N,) int64 new labels, `NO_ID` but for `relabel`.
    """
    highest = confidences.max(axis=1)
    others = confidences.copy()
    others[np.arange(len(labels)), labels] = -1
    verdicts = np.select(
        [duplicate_of != NO_ID, wrong < SUSPECT, highest < CLEAR * np.median(highest)],
        [DUPLICATE, KEEP, NO_CLASS],
        default=RELABEL,
    )
    return verdicts.tolist(), np.where(verdicts == RELABEL, others.argmax(axis=1), NO_ID).astype(np.int64)
