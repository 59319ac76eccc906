"""Label issues: labels that are probably wrong, with suggested labels and the nearest images to compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from index.arrays import Ids, Labels, Vectors
from index.labels.judge import Settled, judge_labels
from index.labels.kinds import KINDS, SUSPECT, Kind, KindTeller, give_verdicts
from index.progress import Progress, no_progress
from index.vectors.exact import search_labels

MIN_P_ERROR = 0.1  # chance of a wrong label from which on it is listed
WITNESSES = 3  # of either kind
LOWER_BOUND = (
    "This is a lower bound: the model was trained with labels, and wrong labels that it has learnt look right to it. "
    "A gallery of a model that was trained without labels, such as the one that comes with the package, gives the "
    "estimate."
)
_JUDGING = 10  # percent of the time; the rest is finding what to compare with


@dataclass(frozen=True, slots=True)
class LabelIssue:
    """A label that may be wrong.

    Attributes:
        wrong: chance (0..1) that it is wrong.
        suggestions: (label, chance that the image shows it) of the likeliest other labels, best first; together they
            are as likely as the label is wrong, at most.
        kind: of trouble, of `index.labels.kinds`.
        verdict: of `index.labels.kinds`: keep the label, change it to the first suggestion, or drop the image.
        agreeing: (id, score) of the nearest others with the same label, nearest first, no duplicates.
        disagreeing: (id, score, label) of the nearest with another one, likewise.
    """

    id: int
    label: str
    wrong: float
    suggestions: tuple[tuple[str, float], ...]
    kind: Kind
    verdict: str
    agreeing: tuple[tuple[int, float], ...]
    disagreeing: tuple[tuple[int, float, str], ...]

    @property
    def suggested(self) -> str | None:
        """The likeliest other label."""
        return self.suggestions[0][0] if self.suggestions else None

    def to_json(self) -> dict[str, Any]:
        """As in the API without path and decision."""
        return {
            "id": self.id,
            "label": self.label,
            "suggested": self.suggested,
            "wrong": self.wrong,
            "kind": self.kind,
            "verdict": self.verdict,
            "suggestions": [{"label": label, "confidence": share} for label, share in self.suggestions],
            "agreeing": [{"id": number, "score": score} for number, score in self.agreeing],
            "disagreeing": [
                {"id": number, "score": score, "label": label} for number, score, label in self.disagreeing
            ],
        }


@dataclass(frozen=True, slots=True)
class LabelIssues:
    """The label issues of a gallery or an audit.

    Attributes:
        items: those that are wrong with a chance of `MIN_P_ERROR` or more, and those of which a copy has another label;
            the likeliest first.
        wrong_share: estimated share (0..1) of these that is wrong.
        pairs: (label, suggested, count) of the items that are likely wrong, the most frequent first.
        mixed: (label, label, images) that are given in each other's place, the most images first.
        is_lower_bound: whether more labels are wrong than `wrong_share` says, for the model has learnt them.
        decisions: number of people's decisions that the list takes into account.
    """

    items: tuple[LabelIssue, ...]
    judged: int
    wrong_share: float
    pairs: tuple[tuple[str, str, int], ...]
    mixed: tuple[tuple[str, str, float], ...] = ()
    is_lower_bound: bool = False
    decisions: int = 0
    _by_id: dict[int, LabelIssue] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {issue.id: issue for issue in self.items})

    def find(self, image_id: int) -> LabelIssue | None:
        """The issue about the label of an image."""
        return self._by_id.get(image_id)

    def count_kinds(self) -> dict[str, int]:
        """How many items are of each kind of trouble."""
        counts = Counter(issue.kind for issue in self.items)
        return {kind: counts[kind] for kind in KINDS}


def list_label_issues(
    vectors: Vectors,
    labels: Labels,
    *,
    ids: Ids,
    names: Sequence[str],
    groups: Ids,
    settled: Settled | None = None,
    progress: Progress = no_progress,
) -> LabelIssues:
    """Label issues among (N,) labels; labels that no row but near-duplicates shares, or all rows, are not checked.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64, places in `names`, each of which some row has.
        ids: (N,) int64 of the images.
        groups: (N,) int64; rows of one group are duplicates.
        settled: the labels that somebody has decided, which are no issues any more; None: no label is decided.
        progress: called with (done, total) labels: a tenth for the probabilities, the rest for the nearest images.
    """
    # Labels that a row of another group has too; none where there is but one label.
    with_group = np.unique(np.stack([labels, groups]), axis=1)[0]
    can_be_judged = (np.bincount(with_group, minlength=len(names))[labels] > 1) & (len(names) > 1)
    if not can_be_judged.any():
        return collect_issues([], judged=0, wrong=0.0)

    def tell(start: int, end: int) -> Progress:
        """Progress of a part, as progress of the whole between two percentages."""
        return lambda done, total: progress(
            len(labels) * (start * total + (end - start) * done) // (100 * total), len(labels)
        )

    judgement = judge_labels(
        vectors, labels, count=len(names), groups=groups, settled=settled, progress=tell(0, _JUDGING)
    )
    is_open = np.ones(len(labels), dtype=bool) if settled is None else ~settled.rows
    wrong = np.where(can_be_judged & is_open, judgement.wrong, 0.0)
    order = np.lexsort((judgement.own, -wrong))  # of those as likely wrong the one of least confidence first
    kinds = KindTeller(judgement, labels, groups, count=len(names))
    verdicts, _ = give_verdicts(judgement, labels, groups=groups, rare=kinds.rare, settled=~is_open)
    asked = order[((wrong >= MIN_P_ERROR) | (kinds.copies & is_open))[order]]
    agreeing, disagreeing = search_labels(
        vectors, labels, k=WITNESSES, asked=asked, groups=groups, progress=tell(_JUDGING, 100)
    )
    progress(len(labels), len(labels))
    items = [
        LabelIssue(
            id=int(ids[row]),
            label=names[labels[row]],
            wrong=float(wrong[row]),
            suggestions=tuple((names[n], chance) for n, chance in judgement.others(row, label=int(labels[row]))),
            kind=kinds.tell(row),
            verdict=verdicts[row],
            agreeing=tuple((int(ids[other]), score) for other, score in agreeing.of(place)),
            disagreeing=tuple(
                (int(ids[other]), score, names[labels[other]]) for other, score in disagreeing.of(place)
            ),
        )
        for place, row in enumerate(asked.tolist())
    ]
    return collect_issues(
        items,
        judged=int(can_be_judged.sum()),
        wrong=float(wrong.sum()),
        mixed=[(names[one], names[two], images) for one, two, images in kinds.mixed],
    )


def collect_issues(
    items: Sequence[LabelIssue], *, judged: int, wrong: float, mixed: Sequence[tuple[str, str, float]] = ()
) -> LabelIssues:
    """The items, of so many labels that were judged and so many that are estimated to be wrong."""
    counts = Counter((d.label, d.suggested) for d in items if d.wrong >= SUSPECT and d.suggested is not None)
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    pairs = tuple((label, suggested, count) for (label, suggested), count in ordered)
    share = wrong / judged if judged else 0.0
    return LabelIssues(tuple(items), judged=judged, wrong_share=share, pairs=pairs, mixed=tuple(mixed))
