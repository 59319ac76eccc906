"""Verdicts: what to do with each judged label (keep, change or drop), for `audit --apply` and for accepting in bulk."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Labels, rows_by_value
from index.labels.decisions import CHANGE, DROP, KEEP
from index.labels.judge import Judgement
from index.labels.kinds import is_unlike

SUSPECT = 0.5  # a label is doubted where it is at least as likely wrong as right
Mask = npt.NDArray[np.bool_]


def give_verdicts(
    judgement: Judgement, labels: Labels, *, groups: Ids, rare: Mask, settled: Mask | None = None
) -> tuple[list[str], Ids]:
    """A verdict for every label.

    Near-duplicates with different labels come first: the most confident label stays (`keep`), the images with another
    label are left out (`drop`), unless it has too few images to lose one unseen. For all others:

    - `keep`: the label is more likely right than wrong, or has too few images to be taken from one unseen.
    - `drop`: the label is likely wrong, and the image is unlike the others.
    - `change`: the label is likely wrong, and some class is clear; to the likeliest one but the label.

    Args:
        judgement: of the N labels.
        labels: (N,) int64.
        groups: (N,) int64; near-duplicates have the same number.
        rare: (N,) whether the label has few images, as `index.labels.kinds.has_rare_label` tells.
        settled: (N,) whether a person has decided the label, which therefore stays; None where nobody has.

    Returns:
        N verdicts, and (N,) int64 new labels, `NO_ID` but for `change`.
    """
    decided = np.zeros(len(labels), dtype=bool) if settled is None else settled
    stays, loses = compare_duplicates(
        labels.tolist(), groups, confidences=judgement.own, decided=decided, rare=rare
    )
    verdicts = np.select(
        [loses, stays | decided | (judgement.wrong < SUSPECT) | rare, is_unlike(judgement)],
        [DROP, KEEP, DROP],
        default=CHANGE,
    )
    best = judgement.suspicion.best
    others = np.where(best[:, 0] == labels, best[:, 1], best[:, 0])
    return verdicts.tolist(), np.where(verdicts == CHANGE, others, NO_ID).astype(np.int64)


def compare_duplicates(
    labels: Sequence[Hashable | None], groups: Ids, *, confidences: Floats, decided: Mask, rare: Mask
) -> tuple[Mask, Mask]:
    """Which images stay and which are left out among near-duplicates with different labels.

    The labels that people decided about stay; where nobody did, the label whose image is the most confident in it, so
    that of every group one image stays, and rare labels.

    Args:
        labels: of the N images; None where a person dropped the image.
        groups: (N,) int64; near-duplicates have the same number.
        confidences: (N,) in the label.
        decided: (N,) whether a person has decided the label.
        rare: (N,) whether the label has few images, as `index.labels.kinds.has_rare_label` tells.

    Returns:
        (N,) which images stay and (N,) which are left out; neither where all of a group have one label.
    """
    stays, loses = np.zeros((2, len(groups)), dtype=bool)
    for rows in rows_by_value(groups):
        if len(rows) < 2:
            continue
        group = rows.tolist()
        open_rows = [row for row in group if not decided[row]]
        if len({labels[row] for row in group}) < 2 or not open_rows:
            continue
        right = {labels[row] for row in group if decided[row]} - {None}
        unseen = not right
        right = right or {labels[max(open_rows, key=lambda row: confidences[row])]}
        for row in open_rows:
            stays[row] = labels[row] in right
            loses[row] = not stays[row] and not (unseen and rare[row])
    return stays, loses
