"""Label issues: labels that are probably wrong, and labels proposed for images without one, with the nearest images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from index.arrays import UNLABELLED, Doubles, Ids, Labels, Vectors
from index.labels.decisions import CHANGE, KEEP, LabelDecision, LabelKey
from index.labels.kinds import KINDS, LIKELY_ERROR, PROPOSAL, IssueKind, IssueKinds
from index.labels.label_errors import LabelErrors
from index.labels.verdicts import AT_LEAST_RIGHT, VERDICTS, Verdict, why_no_promise
from index.vectors.exact import Nearest

MIN_P_ERROR = 0.1  # least probability of a label error for the list
LESS_PROBABLE = 0.003  # least one that is kept of labels that are not listed
NEIGHBOURS = 3  # listed with the same label, and with others
ISSUES_COMPARED = 30_000  # issues with nearest images, the most probable ones
LOWER_BOUND = (
    "This is a lower bound: the model was trained with these labels, and label errors that it has learnt look right. "
    "`retrieval audit` of the training gives the estimate, or a gallery of the built-in model."
)
WEAK_MODEL = (
    "More than half of the labels look doubtful, and most of those are right: the model hardly tells these classes "
    "apart. Use a larger model, or one that was trained on such photos."
)
_MOST_LISTED, _LEAST_WRONG = 0.5, 0.6  # shares: of the labels in the list, and of wrong ones expected in it


@dataclass(frozen=True, slots=True)
class CheckedImages:
    """Images whose labels are checked or proposed, as arrays over N images."""

    vectors: Vectors  # (N, D)
    labels: Labels  # (N,) positions in `names`; `UNLABELLED` without one
    ids: Ids  # (N,)
    groups: Ids  # (N,); images of one group are near-duplicates
    p_right: Doubles  # (N,) as of `find_label_errors`; labels that a person has decided, at 1, are not issues
    names: tuple[str, ...]
    copies: Ids  # (N,) as `groups`, where other shots of a scene are alone: they are no reason to drop an image

    def take(self, rows: Ids) -> "CheckedImages":
        """Images of (n,) ascending rows, with the names of their own labels only."""
        labels = self.labels[rows]
        used = np.unique(labels[labels != UNLABELLED])
        labels = np.where(labels == UNLABELLED, UNLABELLED, np.searchsorted(used, labels))
        names = tuple(self.names[number] for number in used.tolist())
        vectors = self.vectors if len(rows) == len(self.labels) else self.vectors[rows]
        by_row = (self.ids[rows], self.groups[rows], self.p_right[rows])
        return CheckedImages(vectors, labels, *by_row, names, self.copies[rows])

    def describe_near(self, nearest: Nearest, position: int) -> tuple[tuple[int, float], ...]:
        """(id, score) of the nearest images of a query."""
        return tuple((int(self.ids[row]), score) for row, score in nearest.of(position))

    def describe_others(self, nearest: Nearest, position: int) -> tuple[tuple[int, float, str], ...]:
        """(id, score, label) of the nearest images of a query."""
        found = nearest.of(position)
        return tuple((int(self.ids[row]), score, self.names[self.labels[row]]) for row, score in found)

    @property
    def labelled(self) -> "CheckedImages":
        return self.take(np.flatnonzero(self.labels != UNLABELLED))

    @property
    def unlabelled(self) -> "CheckedImages":
        return self.take(np.flatnonzero(self.labels == UNLABELLED))


@dataclass(frozen=True, slots=True)
class LabelIssue:
    """A label that is probably wrong; a proposal, a label for an unlabelled image; or, in an audit, any label."""

    id: int  # id of the image; in an audit its row
    label: str | None
    p_error: float  # probability that the label is wrong; in a proposal, that the first suggestion is right
    suggestions: tuple[tuple[str, float], ...] = ()  # (label, probability), best first, without `label`
    p_none: float = 0.0  # probability that the image shows none of the labels; 0 in a proposal
    kind: IssueKind | None = None  # None where the label is probably right and nothing else is wrong with it
    verdict: Verdict = KEEP  # keep the label, change it to the first suggestion, set the image aside or drop it
    agreeing: tuple[tuple[int, float], ...] = ()  # (id, score) of nearest with this label, without near-duplicates
    disagreeing: tuple[tuple[int, float, str], ...] = ()  # (id, score, label) of nearest with other labels
    sha256: str = ""
    path: str = ""  # absolute; empty in a gallery's issues, whose images may move
    confidence: float = 0.0  # leave-one-out, in the label
    duplicate_of: int | None = None  # in an audit: a near-duplicate with another label
    p_right: float | None = None  # in an audit: probability by the label file that the label is right
    before: str | None = None  # in an audit: the label before a machine changed it
    decision: LabelDecision | None = None  # where it is known

    @property
    def key(self) -> LabelKey:
        return self.sha256, self.label

    @property
    def suggested(self) -> str | None:
        return self.suggestions[0][0] if self.suggestions else None

    @property
    def p_suggested(self) -> float:
        return self.suggestions[0][1] if self.suggestions else 0.0

    @property
    def outcome(self) -> str:
        return self.verdict if self.decision is None else self.decision.decision

    @property
    def new_label(self) -> str | None:
        """The label of a change, by the decision, else by the verdict."""
        if self.decision is not None:
            return self.decision.new_label
        return self.suggested if self.verdict == CHANGE else None


@dataclass(frozen=True, slots=True)
class LabelIssues:
    """The label issues of a gallery, or all labels of an audit, in the order of the run.

    Of a gallery, `items` are those with a `p_error` of `MIN_P_ERROR` or more, with conflicting duplicates, and of
    labels to split, the most probable errors first; then the 100,000 best proposals, likewise.
    """

    items: tuple[LabelIssue, ...]
    checked: int  # number of labels that were checked
    noise_rate: float  # estimated share of these that is wrong
    pairs: tuple[tuple[str, str, float], ...] = ()  # (label, suggested, images), most first; estimates of an audit
    confused_classes: tuple[tuple[str, str, float], ...] = ()  # used for each other, with images, most first
    is_lower_bound: bool = False  # the model was trained with these labels, so `noise_rate` is too low
    decisions: int = 0  # number of decisions that the list takes into account
    classes: tuple[tuple[str, int, float], ...] = ()  # (label, images, share of wrong labels), the noisiest first
    open_share: tuple[float, float, float] | None = None  # share of wrong labels among the undecided, with its interval
    as_predicted: tuple[int, int] = (0, 0)  # labels that people decided as predicted, and all labels that they decided
    look_alikes: float | None = None  # see `ErrorCalibration`; None if unknown
    less_probable: tuple[tuple[int, float], ...] = ()  # (id, p_error) of labels too probably right for the list
    at_least_right: float = AT_LEAST_RIGHT  # share of right labels that the verdicts aim at
    _by_id: dict[int, LabelIssue] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {issue.id: issue for issue in self.items})

    @property
    def errors(self) -> tuple[LabelIssue, ...]:
        """Items without proposals."""
        return tuple(issue for issue in self.items if issue.kind != PROPOSAL)

    @property
    def caution(self) -> str | None:
        """Why the list is worth less than usual; None where it is not."""
        # An audit has all labels as items.
        doubtful = sum(issue.kind != PROPOSAL and issue.p_error >= MIN_P_ERROR for issue in self.items)
        if doubtful > _MOST_LISTED * self.checked and self.noise_rate * self.checked < _LEAST_WRONG * doubtful:
            return WEAK_MODEL
        return LOWER_BOUND if self.is_lower_bound else None

    @property
    def no_promise(self) -> str | None:
        """Reason why a share of right labels cannot be promised; None where it can."""
        reason = why_no_promise(
            labels=self.checked,
            look_alikes=self.look_alikes,
            classes=len(self.classes),
            is_lower_bound=self.is_lower_bound,
        )
        if reason is None and self.caution == WEAK_MODEL:
            return "the model hardly tells these classes apart, and most of the labels that it lists are right"
        return reason

    def find(self, image_id: int) -> LabelIssue | None:
        return self._by_id.get(image_id)

    def count_kinds(self) -> dict[str, int]:
        counts = Counter(issue.kind for issue in self.items)
        return {kind: counts[kind] for kind in KINDS}

    def count_outcomes(self) -> dict[Verdict, int]:
        """Number of items by decision, else by verdict."""
        counts = Counter(issue.outcome for issue in self.items)
        return {verdict: counts[verdict] for verdict in VERDICTS}

    def with_decisions(self, decisions: Mapping[LabelKey, LabelDecision]) -> "LabelIssues":
        return replace(self, items=tuple(replace(one, decision=decisions.get(one.key)) for one in self.items))


NO_ISSUES = LabelIssues((), checked=0, noise_rate=0.0)


def make_issues(
    images: CheckedImages,
    errors: LabelErrors,
    rows: Ids,
    *,
    kinds: IssueKinds | None = None,
    verdicts: Sequence[Verdict] | None = None,
    nearest: tuple[Nearest, Nearest] | None = None,
) -> list[LabelIssue]:
    """Label issues of (n,) rows of labelled images; `nearest` are theirs with the same label, and with others."""
    same_labels, other_labels = (None, None) if nearest is None else nearest
    issues = []
    for position, row in enumerate(rows.tolist()):
        label = int(images.labels[row])
        issues.append(
            LabelIssue(
                id=int(images.ids[row]),
                label=images.names[label],
                p_error=float(errors.p_error[row]),
                suggestions=tuple((images.names[n], share) for n, share in errors.others(row, label=label)),
                p_none=float(errors.p_no_class[row]),
                kind=None if kinds is None else kinds.kind_of(row),
                verdict=KEEP if verdicts is None else verdicts[row],
                agreeing=() if same_labels is None else images.describe_near(same_labels, position),
                disagreeing=() if other_labels is None else images.describe_others(other_labels, position),
                confidence=float(errors.own[row]),
            )
        )
    return issues


def propose_labels(errors: LabelErrors, ids: Ids, names: Sequence[str], order: Ids) -> list[LabelIssue]:
    """Proposals for unlabelled images with these (M,) ids, in the given order."""
    best, probabilities = errors.proposed[order], errors.p_proposed[order]
    items = []
    for number, labels, shares in zip(ids[order].tolist(), best.tolist(), probabilities.tolist(), strict=True):
        pairs = zip(labels, shares, strict=True)
        suggestions = tuple((names[label], share) for label, share in pairs if share > 0)[:NEIGHBOURS]
        items.append(LabelIssue(number, None, suggestions[0][1], suggestions, kind=PROPOSAL))
    return items


def rank_classes(errors: LabelErrors, labels: Labels, names: Sequence[str]) -> tuple[tuple[str, int, float], ...]:
    """(label, images, estimated share of wrong labels), the noisiest first."""
    images = np.bincount(labels, minlength=len(names)).tolist()
    return tuple(sorted(zip(names, images, errors.rates.tolist(), strict=True), key=lambda one: -one[2]))


def collect_issues(
    items: Sequence[LabelIssue],
    *,
    checked: int,
    errors: float,
    confused_classes: Sequence[tuple[str, str, float]] = (),
    base: LabelIssues = NO_ISSUES,
) -> LabelIssues:
    """Label issues of `checked` labels with an estimated number of `errors`; other fields are taken from `base`."""
    likely = [one for one in items if one.p_error >= LIKELY_ERROR]
    counts = Counter(
        (one.label, one.suggested) for one in likely if one.label is not None and one.suggested is not None
    )
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return replace(
        base,
        items=tuple(items),
        checked=checked,
        noise_rate=errors / checked if checked else 0.0,
        pairs=tuple((label, suggested, count) for (label, suggested), count in ordered),
        confused_classes=tuple(confused_classes),
    )
