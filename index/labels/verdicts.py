"""What should become of a label: keep, change or drop, by rules that can be said in a sentence each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Ids, Labels
from index.labels.decisions import CHANGE, DECISIONS, DROP, KEEP
from index.labels.judge import Judgement
from index.labels.kinds import is_unlike

DUPLICATE = "duplicate"  # no decision, but a reason to make one
VERDICTS = (*DECISIONS, DUPLICATE)

SUSPECT = 0.5  # a label is doubted where it is at least as likely wrong as right


def give_verdicts(
    judgement: Judgement, labels: Labels, *, duplicate_of: Ids, rare: npt.NDArray[np.bool_]
) -> tuple[list[str], Ids]:
    """A verdict for every label.

    - `duplicate`: a duplicate of the image has another label; at least one of the two is wrong.
    - `keep`: the label is more likely right than wrong, or has too few images to be taken from one unseen.
    - `drop`: it is not, and the image is unlike the others.
    - `change`: it is not, and some class is clear; to the likeliest one but the label.

    Args:
        judgement: of the N labels.
        labels: (N,) int64.
        duplicate_of: (N,) int64 row of the duplicate with another label, `NO_ID` without.
        rare: (N,) whether the label has few images, as `index.labels.kinds.has_rare_label` tells.

    Returns:
        N verdicts, and (N,) int64 new labels, `NO_ID` but for `change`.
    """
    best = judgement.suspicion.best
    first, second = best[:, 0], best[:, 1]
    verdicts = np.select(
        [duplicate_of != NO_ID, (judgement.wrong < SUSPECT) | rare, is_unlike(judgement)],
        [DUPLICATE, KEEP, DROP],
        default=CHANGE,
    )
    others = np.where(first == labels, second, first)
    return verdicts.tolist(), np.where(verdicts == CHANGE, others, NO_ID).astype(np.int64)
