"""Label issues: labels that are probably wrong, and labels proposed for images without one, with the nearest images."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from index.arrays import Doubles, Floats, Ids, Labels, Vectors, normalise_rows, rows_by_value
from index.labels.decisions import CHANGE, KEEP
from index.labels.kinds import KINDS, LIKELY_ERROR, PROPOSAL, IssueKinds, Kind
from index.labels.label_errors import Mask, Proposals, find_label_errors
from index.labels.simulated_noise import ScoreCalibration
from index.labels.verdicts import give_verdicts
from index.progress import Progress, no_progress
from index.vectors.clusters import cluster_embeddings
from index.vectors.exact import search_labels

# Chosen on photos of 17 kinds of clothes, 81 groceries and the 10 classes of CIFAR-10 (MobileNetV2, features of
# ImageNet): no class was split, and of 35 random pairs of classes that were given one label 22 were.
_LEAST_PART, _LEAST_SHARE = 5, 0.2  # images, and share of a label's, near-duplicates counted once
_MOST_COSINE = 0.0  # of the means of both parts, centred on all images
_NEARER_LABELS = 2  # other labels that are nearer to each part than the other part is


def find_split_classes(vectors: Floats, labels: Labels, groups: Ids, *, count: int) -> Mask:
    """(N,) whether an image is of the smaller part of a label that should be split.

    Args:
        vectors: (N, D) float32.
        labels: (N,) int64 in 0..count-1.
        groups: (N,) int64; near-duplicates have the same number.
    """
    found = np.zeros(len(labels), dtype=bool)
    rows = normalise_rows(vectors)
    rows = normalise_rows(rows - rows.mean(axis=0))
    members = {int(labels[own[0]]): own for own in rows_by_value(labels)}
    means = normalise_rows(
        np.stack([rows[members[n]].mean(axis=0) if n in members else np.zeros(rows.shape[1]) for n in range(count)])
    )
    for label, own in members.items():
        if len(own) < 2 * _LEAST_PART:
            continue
        second = cluster_embeddings(rows[own], clusters=2, seed=0) == 1
        parts = own[~second], own[second]
        sizes = [len(np.unique(groups[part])) for part in parts]
        if min(sizes) < max(_LEAST_PART, _LEAST_SHARE * sum(sizes)):
            continue
        one, other = normalise_rows(np.stack([rows[part].mean(axis=0) for part in parts]))
        cosine, others = float(one @ other), np.delete(means, label, axis=0)
        nearer = min(int((others @ part > cosine).sum()) for part in (one, other))
        if cosine <= _MOST_COSINE and nearer >= _NEARER_LABELS:
            found[parts[int(np.argmin(sizes))]] = True
    return found


logger = logging.getLogger(__name__)
MIN_P_ERROR = 0.1  # least probability of a label error for the list
NEIGHBOURS = 3  # listed with the same label, and with others
_MOST_PROPOSALS = 100_000  # the most probable ones, as many as one step decides
_MOST_COMPARED = 10_000  # proposals with nearest images, the most probable ones
LOWER_BOUND = (
    "This is a lower bound: the model was trained with these labels, and label errors that it has learnt look right. "
    "`retrieval audit` of the training gives the estimate, or a gallery of the built-in model."
)
_DETECTING = 10  # percent of the time; the search for the nearest images takes the rest


@dataclass(frozen=True, slots=True)
class LabelIssue:
    """A label that is probably wrong, or a proposal: a label for an image that has none.

    Attributes:
        label: as given; None in a proposal.
        p_error: probability (0..1) that the label is wrong; in a proposal, that the first suggestion is right.
        suggestions: (label, probability) of the most probable other labels, best first; they sum to `p_error` at most,
            in a proposal to 1.
        p_none: probability that the image shows none of the labels; 0 in a proposal.
        kind: of `index.labels.kinds`; None where an image was set aside whose label is no issue.
        verdict: of `index.labels.verdicts`: keep the label, change it to the first suggestion, set the image aside or
            drop it.
        agreeing: (id, score) of the nearest images with the same label (in a proposal, the suggested one), nearest
            first, without near-duplicates.
        disagreeing: (id, score, label) of the nearest images with other labels, likewise.
    """

    id: int
    label: str | None
    p_error: float
    suggestions: tuple[tuple[str, float], ...]
    p_none: float
    kind: Kind | None
    verdict: str
    agreeing: tuple[tuple[int, float], ...]
    disagreeing: tuple[tuple[int, float, str], ...]

    @property
    def suggested(self) -> str | None:
        """The most probable other label."""
        return self.suggestions[0][0] if self.suggestions else None

    @property
    def p_suggested(self) -> float:
        """The probability that the suggested label is right."""
        return self.suggestions[0][1] if self.suggestions else 0.0

    def to_json(self) -> dict[str, Any]:
        """The issue as in the API, without path and decision."""
        return {
            "id": self.id,
            "label": self.label,
            "suggested": self.suggested,
            "p_error": self.p_error,
            "p_suggested": self.p_suggested,
            "p_none": self.p_none,
            "kind": self.kind,
            "verdict": self.verdict,
            "suggestions": [{"label": label, "probability": share} for label, share in self.suggestions],
            "agreeing": [{"id": number, "score": score} for number, score in self.agreeing],
            "disagreeing": [
                {"id": number, "score": score, "label": label} for number, score, label in self.disagreeing
            ],
        }


@dataclass(frozen=True, slots=True)
class LabelIssues:
    """The label issues of a gallery or an audit.

    Attributes:
        items: those with a `p_error` of `MIN_P_ERROR` or more and those with conflicting duplicates, the most probable
            errors first, and those of labels that should be split; then the 100,000 best proposals, likewise.
        checked: number of labels that were checked.
        noise_rate: estimated share (0..1) of these that is wrong.
        pairs: (label, suggested, count) of the items with a `p_error` of a half or more, the most frequent first.
        confused_classes: (label, label, images) of labels used for each other, the most images first.
        is_lower_bound: whether `noise_rate` is too low, because the model was trained with these labels.
        decisions: number of decisions that the list takes into account.
        classes: number of labels.
        look_alikes: of `SuggestionCalibration`; None where it is not known.
    """

    items: tuple[LabelIssue, ...]
    checked: int
    noise_rate: float
    pairs: tuple[tuple[str, str, int], ...]
    confused_classes: tuple[tuple[str, str, float], ...] = ()
    is_lower_bound: bool = False
    decisions: int = 0
    classes: int = 0
    look_alikes: float | None = None
    _by_id: dict[int, LabelIssue] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {issue.id: issue for issue in self.items})

    @property
    def errors(self) -> tuple[LabelIssue, ...]:
        """The items that are no proposals."""
        return tuple(issue for issue in self.items if issue.kind != PROPOSAL)

    def find(self, image_id: int) -> LabelIssue | None:
        """The label issue of an image."""
        return self._by_id.get(image_id)

    def count_kinds(self) -> dict[str, int]:
        """Number of items of each kind."""
        counts = Counter(issue.kind for issue in self.items)
        return {kind: counts[kind] for kind in KINDS}


def list_label_issues(
    vectors: Vectors,
    labels: Labels,
    *,
    ids: Ids,
    names: Sequence[str],
    groups: Ids,
    p_right: Doubles | None = None,
    decided: Mask | None = None,
    before: ScoreCalibration | None = None,
    unlabelled: tuple[Vectors, Ids] | None = None,
    progress: Progress = no_progress,
) -> LabelIssues:
    """Label issues among (N,) labels; labels that no row but near-duplicates shares, or all rows, are not checked.

    Where no label is checked, none is proposed either.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64, places in `names`, each of which some row has.
        ids: (N,) int64 of the images.
        groups: (N,) int64; rows of one group are duplicates.
        p_right: as of `find_label_errors`; labels that a person has decided, at 1, are no issue any more.
        decided: (N,) whether anybody has decided the label, which then does not count among the estimated errors.
        before: calibration from before the decisions.
        unlabelled: (M, D) float32 unit rows and (M,) int64 ids of images without a label, for which one is proposed.
        progress: called with (done, total) labels: a tenth for the probabilities, the rest for the nearest images.
    """
    # A label is checked if rows of two groups have it, and if there is another label.
    with_group = np.unique(np.stack([labels, groups]), axis=1)[0]
    can_be_checked = (np.bincount(with_group, minlength=len(names))[labels] > 1) & (len(names) > 1)
    if not can_be_checked.any():
        return collect_issues([], checked=0, errors=0.0)

    def tell(start: int, end: int) -> Progress:
        """Progress of a part, as progress of the whole between two percentages."""
        return lambda done, total: progress(
            len(labels) * (start * total + (end - start) * done) // (100 * total), len(labels)
        )

    errors = find_label_errors(
        vectors,
        labels,
        count=len(names),
        groups=groups,
        p_right=p_right,
        before=before,
        unlabelled=None if unlabelled is None else unlabelled[0],
        progress=tell(0, _DETECTING),
    )
    is_open = np.ones(len(labels), dtype=bool) if p_right is None else p_right != 1
    p_error = np.where(can_be_checked & is_open, errors.p_error, 0.0)
    order = np.lexsort((errors.own, -p_error))  # ties: the least confident first
    kinds = IssueKinds(errors, labels, groups, count=len(names))
    verdicts, _ = give_verdicts(errors, labels, groups=groups, rare=kinds.rare_class, decided=~is_open)
    split = find_split_classes(vectors, labels, groups, count=len(names)) & is_open
    asked = order[((p_error >= MIN_P_ERROR) | (kinds.conflicting_duplicates & is_open) | split)[order]]

    def kind_of(row: int) -> Kind:
        kind = kinds.kind_of(row)
        is_own = kind not in ("conflicting_duplicates", "outlier") and p_error[row] < LIKELY_ERROR
        return "split_class" if split[row] and is_own else kind

    agreeing, disagreeing = search_labels(
        vectors, labels, k=NEIGHBOURS, asked=asked, groups=groups, progress=tell(_DETECTING, 100)
    )
    items = [
        LabelIssue(
            id=int(ids[row]),
            label=names[labels[row]],
            p_error=float(p_error[row]),
            suggestions=tuple((names[n], p) for n, p in errors.others(row, label=int(labels[row]))),
            p_none=float(errors.none[row]),
            kind=kind_of(row),
            verdict=verdicts[row],
            agreeing=tuple((int(ids[other]), score) for other, score in agreeing.of(place)),
            disagreeing=tuple((int(ids[other]), score, names[labels[other]]) for other, score in disagreeing.of(place)),
        )
        for place, row in enumerate(asked.tolist())
    ]
    if unlabelled is not None and errors.proposals is not None:
        items += _list_proposals(errors.proposals, *unlabelled, vectors=vectors, labels=labels, ids=ids, names=names)
    progress(len(labels), len(labels))
    found = collect_issues(
        items,
        checked=int(can_be_checked.sum()),
        errors=float(p_error.sum() if decided is None else p_error[~decided].sum()),
        confused_classes=[(names[one], names[two], images) for one, two, images in kinds.confused_classes],
    )
    suggestions = errors.calibration.suggestions
    return replace(found, classes=len(names), look_alikes=None if suggestions is None else suggestions.look_alikes)


def _list_proposals(
    proposals: Proposals,
    rows: Vectors,
    unlabelled: Ids,
    *,
    vectors: Vectors,
    labels: Labels,
    ids: Ids,
    names: Sequence[str],
) -> list[LabelIssue]:
    """Proposals for (M, D) rows with (M,) ids, the most probable first, with the nearest of the (N, D) vectors.

    Those beyond `_MOST_PROPOSALS` are left out until others are decided.
    """
    order = np.argsort(-proposals.probabilities[:, 0], kind="stable")[:_MOST_PROPOSALS]
    if len(order) < len(unlabelled):
        logger.info("%d images without a label have no proposal until others are decided", len(unlabelled) - len(order))
    compared, count = order[:_MOST_COMPARED], len(labels)
    agreeing, disagreeing = search_labels(
        np.concatenate([vectors, rows[compared]]),
        np.concatenate([labels, proposals.best[compared, 0]]),
        k=NEIGHBOURS,
        asked=np.arange(count, count + len(compared)),
        groups=np.concatenate([np.arange(count), np.full(len(compared), count)]),  # these do not find each other
    )
    items = []
    for place, row in enumerate(order.tolist()):
        found = zip(proposals.best[row].tolist(), proposals.probabilities[row].tolist(), strict=True)
        suggestions = tuple((names[label], probability) for label, probability in found if probability > 0)
        is_clear = suggestions[0][1] >= LIKELY_ERROR and not proposals.is_outlier[row]
        same, other = (agreeing.of(place), disagreeing.of(place)) if place < len(compared) else ([], [])
        items.append(
            LabelIssue(
                id=int(unlabelled[row]),
                label=None,
                p_error=suggestions[0][1],
                suggestions=suggestions[:NEIGHBOURS],
                p_none=0.0,
                kind=PROPOSAL,
                verdict=CHANGE if is_clear else KEEP,
                agreeing=tuple((int(ids[near]), score) for near, score in same),
                disagreeing=tuple((int(ids[near]), score, names[labels[near]]) for near, score in other),
            )
        )
    return items


def collect_issues(
    items: Sequence[LabelIssue], *, checked: int, errors: float, confused_classes: Sequence[tuple[str, str, float]] = ()
) -> LabelIssues:
    """Label issues of `checked` labels, of which `errors` are estimated to be wrong."""
    likely = (d for d in items if d.p_error >= LIKELY_ERROR)
    counts = Counter((d.label, d.suggested) for d in likely if d.label is not None and d.suggested is not None)
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    pairs = tuple((label, suggested, count) for (label, suggested), count in ordered)
    noise_rate = errors / checked if checked else 0.0
    return LabelIssues(
        tuple(items), checked=checked, noise_rate=noise_rate, pairs=pairs, confused_classes=tuple(confused_classes)
    )
