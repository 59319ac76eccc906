"""Verdicts on labels: keep, change, set aside or drop, so that a promised share of the labels that stay is right."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from index.arrays import NO_ID, Doubles, Floats, Ids, Labels, Mask, rows_by_value
from index.labels.decisions import CHANGE, DROP, KEEP, SET_ASIDE
from index.labels.kinds import LIKELY_ERROR
from index.labels.label_errors import LabelErrors

Verdict: TypeAlias = Literal["keep", "change", "set_aside", "drop"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
UNDECIDED: tuple[Verdict, ...] = (KEEP,)  # verdicts that decide nothing: the label stays, and its issue stays open
NO_LABELS: Doubles = np.empty(0)
AT_LEAST_RIGHT = 0.95  # default share of right labels among those that stay
# Measured on simulated label noise (`benchmarks.labels.promise`): between these multiples of the expected share of
# wrong labels, and a point more, lies the true one in nearly all cells.
_FEWER, _MORE, _POINT = 0.5, 1.6, 0.01
# Where fewer simulated errors between look-alike labels were found, up to five points more of the labels that stay
# were wrong than estimated.
LEAST_LOOK_ALIKES = 0.6
LEAST_LABELS = 1000  # with 300 to 600 labels a third of the promises in simulated crawls failed by over two points


def choose_threshold(p_best: Doubles, at_least_right: float, *, fixed: Doubles = NO_LABELS) -> float:
    """Lowest probability, at least one half, above which labels have the mean probability `at_least_right`.

    `p_best` are the (N,) probabilities of the most probable label of each image, the given or the suggested one;
    `fixed` those of labels that stay in any case.
    """
    descending = np.sort(p_best[p_best >= LIKELY_ERROR])[::-1]
    is_last = np.append(descending[1:] < descending[:-1], True)[: len(descending)]  # equal values stay or go together
    images = len(fixed) + np.arange(1, len(descending) + 1)
    enough = np.flatnonzero(is_last & (fixed.sum() + np.cumsum(descending) >= at_least_right * images - 1e-9))
    return float(descending[enough[-1]]) if len(enough) else at_least_right


def choose_threshold_beside(
    p_label: Doubles,
    p_best: Doubles,
    fixed: Sequence[Verdict | None],
    at_least_right: float,
    *,
    held: Doubles = NO_LABELS,
) -> float:
    """`choose_threshold` over N labels, some of which have a `fixed` verdict, whatever the threshold.

    Labels without one count with `p_best`. Labels stay with `p_label` if their fixed verdict is `UNDECIDED`; `held` are
    further probabilities of labels that stay.
    """
    is_free = np.array([verdict is None for verdict in fixed], dtype=bool)
    stays = np.array([verdict in UNDECIDED for verdict in fixed], dtype=bool)
    return choose_threshold(p_best[is_free], at_least_right, fixed=np.concatenate([p_label[stays], held]))


def choose_verdicts(p_label: Doubles, p_suggested: Doubles, p_none: Doubles, *, threshold: float) -> list[Verdict]:
    """Verdicts on N labels, by the probabilities of the label, of the suggested label, and of no label.

    - `drop`: the image shows none of the labels with one half or more, and with more than any label.
    - `change`: the suggested label is the most probable, and at least as probable as the threshold.
    - `keep`: the same of the given label.
    - `set_aside`: neither is.
    """
    likeliest = np.maximum(p_label, p_suggested)
    verdicts: list[Verdict] = np.select(
        [
            (p_none >= LIKELY_ERROR) & (p_none > likeliest),
            (likeliest < threshold) | (p_none > likeliest),
            p_suggested > p_label,
        ],
        [DROP, SET_ASIDE, CHANGE],
        default=KEEP,
    ).tolist()
    return verdicts


def give_verdicts(
    errors: LabelErrors,
    labels: Labels,
    *,
    groups: Ids,
    rare: Mask,
    decided: Mask | None = None,
    at_least_right: float = AT_LEAST_RIGHT,
) -> tuple[list[Verdict], Ids]:
    """Verdicts on all labels, so that a given share of the labels that stay is right; and (N,) new labels.

    Near-duplicates, of the same of (N,) groups, with different labels come first: those without the most confident
    label are left out (`drop`), unless theirs has too few images to lose one unseen. Labels that are `rare` (N,), by
    `has_rare_class`, or `decided` by a person stay. For all others, see `choose_verdicts`. New labels are `NO_ID`,
    except for `change`.
    """
    if decided is None:
        decided = np.zeros(len(labels), dtype=bool)
    wins, loses = compare_duplicates(labels.tolist(), groups, confidences=errors.own, decided=decided, rare=rare)
    p_label = 1 - errors.p_error
    is_kept = decided | rare | (wins & (errors.p_error < LIKELY_ERROR))
    pairs = zip(loses.tolist(), is_kept.tolist(), strict=True)
    fixed: list[Verdict | None] = [DROP if is_lost else KEEP if stays else None for is_lost, stays in pairs]
    p_best = np.maximum(p_label, errors.p_suggested)
    threshold = choose_threshold_beside(p_label, p_best, fixed, at_least_right)
    free = choose_verdicts(p_label, errors.p_suggested, errors.p_no_class, threshold=threshold)
    verdicts = [verdict or found for verdict, found in zip(fixed, free, strict=True)]
    return verdicts, np.where(np.array(verdicts) == CHANGE, errors.suggested, NO_ID).astype(np.int64)


@dataclass(frozen=True, slots=True)
class ExpectedRight:
    """The expected share of right labels among the images that stay, with an interval from simulated label noise."""

    images: int
    share: float
    low: float
    high: float


def expect_right(images: int, right: float) -> ExpectedRight:
    """Expected share of right labels, by the number of images that stay and the expected number of right labels."""
    wrong = 1 - right / images if images else 0.0
    return ExpectedRight(images, 1 - wrong, max(0.0, 1 - _MORE * wrong - _POINT), min(1.0, 1 - _FEWER * wrong))


def describe_expected(expected: ExpectedRight, at_least_right: float | None, no_promise: str | None) -> str:
    """One line: the share of right labels to expect, whether it reaches the goal, and why it cannot be promised."""
    text = (
        f"right among the {expected.images:,} labels that stay: about {expected.share:.1%} "
        f"[{expected.low:.0%}, {expected.high:.0%}]"
    )
    if at_least_right is not None and expected.share < at_least_right - 0.0005:
        text += f", less than the {at_least_right:.0%} asked for: look at what is open"
    return text if no_promise is None else f"{text}; this cannot be promised: {no_promise}"


def why_no_promise(*, labels: int, look_alikes: float | None, classes: int, is_lower_bound: bool) -> str | None:
    """Reason why a share of right labels cannot be promised, or None; `look_alikes` as in `ErrorCalibration`."""
    if is_lower_bound:
        return "the model was trained with these labels, so that wrong ones that it has learnt look right"
    if labels < LEAST_LABELS:
        return f"of fewer than {LEAST_LABELS:,} labels the estimate is uncertain"
    if classes < 3:
        return "of fewer than three labels, images of no class cannot be found"
    if look_alikes is not None and look_alikes < LEAST_LOOK_ALIKES:
        return (
            f"of errors between labels that look alike this model would find about {look_alikes:.0%}: if yours are "
            "mostly of that kind, fewer labels are right"
        )
    return None


def compare_duplicates(
    labels: Sequence[Hashable | None], groups: Ids, *, confidences: Floats, decided: Mask, rare: Mask
) -> tuple[Mask, Mask]:
    """(N,) which images stay and which are left out among near-duplicates with different labels; else neither.

    The labels that people decided about stay, None where a person dropped the image; without a decision, the label
    whose image is the most confident in it, so that of every group one image stays, and rare labels.
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
