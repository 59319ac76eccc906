"""What should become of a label: four verdicts, by rules that can be said in a sentence each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.exact import NO_ID, Floats, Ids
from training.audit_report import DUPLICATE, KEEP, NO_CLASS, RELABEL

SUSPECT = 0.5  # a label is doubted where it is at least as likely wrong as right
CLEAR = 0.5  # another label is proposed where the image is at least as likely to show it as not


def give_verdicts(
    confidences: Floats, labels: Ids, *, wrong: npt.NDArray[np.float64], duplicate_of: Ids
) -> tuple[list[str], Ids]:
    """A verdict for every label.

    - `duplicate`: a copy of the picture has another label; at least one of the two is wrong.
    - `keep`: the label is more likely right than wrong.
    - `relabel`: it is not, and the confidence in the best other class is at least `CLEAR`.
    - `no-class`: it is not, and no other class is clear enough.

    Args:
        confidences: (N, C) float32 in 0..1, out of fold.
        labels: (N,) int64.
        wrong: (N,) float64 chance that each label is wrong.
        duplicate_of: (N,) int64 row of the copy with another label, `NO_ID` without.

    Returns:
        N verdicts, and (N,) int64 new labels, `NO_ID` but for `relabel`.
    """
    others = confidences.copy()
    rows = np.arange(len(labels))
    others[rows, labels] = -1
    best = others.argmax(axis=1)
    verdicts = np.select(
        [duplicate_of != NO_ID, wrong < SUSPECT, others[rows, best] >= CLEAR],
        [DUPLICATE, KEEP, RELABEL],
        default=NO_CLASS,
    )
    return verdicts.tolist(), np.where(verdicts == RELABEL, best, NO_ID).astype(np.int64)
