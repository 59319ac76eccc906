"""Verdict of a training: the trained embedding against the best untrained one."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import stdtrit

from index.arrays import Labels
from index.evaluation.comparison import Scores, paired_bootstrap

# A bootstrap over few classes spreads too little, and the best of several rivals is partly the best by chance. So the
# interval is widened as Student's t is wider than the normal, and by the number of comparisons (Bonferroni): the
# rivals, on each part of the holdout. Then at most one holdout in twenty is wrong where all methods are equal.
# Measured on drawn hits of equal methods, four rivals, two parts, 2,000 draws each: 4 to 5 of 100 are called clear on
# either part at 5 to 40 classes; 8 to 9 without counting the parts.
LEAST_CLASSES = 5  # below which nothing is clear
_WRONG = 0.05  # share of evaluations of equal methods that find a difference
_SHOWN = NormalDist().inv_cdf(0.975)  # standard deviations to either bound of the interval of 95 %


TRAINED = "trained"
FROZEN_HEAD = "frozen head"  # the trained head on the frozen backbone, beside a network that trained
HOLDOUT, VAL, HELD_OUT = "holdout", "--val", "held out of fine-tuning"  # photos of a comparison
MIXED, CANNOT_TELL = "mixed", "cannot tell"
QUESTIONS = {"unseen": "new classes", "seen": "new photos"}  # descriptions of the parts of a holdout
PARTS = {"known": "seen", "new": "unseen"}  # by the values of `--for`
SEARCHED = {"known": "new photos of known classes", "new": "new classes"}
_NAMES = {
    "raw": "raw features",
    "pca": "PCA",
    "pca-half-whitened": "half-whitened PCA",
    "pca-whitened": "whitened PCA",
    "wccn": "within-class whitening",
    FROZEN_HEAD: "the trained head on the frozen backbone",
}


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """Scores (fractions) of the trained embedding and its rivals on the same queries.

    Attributes:
        scores: mean score by method.
        best_rival: the best method besides the trained one.
        winner: `trained` or `best_rival`, where the difference is clear.
        difference: trained minus `best_rival`.
        difference_interval: widened 95 % interval over classes; None on too few classes.
        by: origin of the queries: `holdout`, `--val` or `held out of fine-tuning`.
    """

    queries: int
    classes: int
    scores: Mapping[str, float]
    best_rival: str
    winner: str | None
    difference: float
    difference_interval: tuple[float, float] | None
    by: str = HOLDOUT
    metric: str = "Recall@1"

    def describe_lead(self) -> str:
        """Difference with its interval, and whether it may be due to chance."""
        lead = f"{100 * self.difference:+z.1f} points of {self.metric}"
        if self.difference_interval is None:
            return f"{lead} against {_NAMES[self.best_rival]}, on too few classes to tell"
        low, high = (100 * bound for bound in self.difference_interval)
        chance = ", which may be chance" if self.winner is None else ""
        return f"{lead} [{low:+.1f}, {high:+.1f}] against {_NAMES[self.best_rival]}{chance}"


def compare(
    found: Mapping[str, Scores], labels: Labels, *, seed: int, parts: int = 1, **others: Any
) -> MethodComparison:
    """Compare the (Q,) scores of `trained` with those of all other methods, on queries of the classes `labels` (Q,).

    One verdict rests on `parts` comparisons; `others` are further fields.
    """
    scores = {name: float(one.mean()) for name, one in found.items()}
    rivals = [name for name in scores if name != TRAINED]
    best, classes = max(rivals, key=lambda name: scores[name]), len(np.unique(labels))
    lead = paired_bootstrap(found[TRAINED], found[best], seed=seed, clusters=labels)
    interval = winner = None
    if classes >= LEAST_CLASSES:
        wrong = _WRONG / (parts * len(rivals))
        reach = float(stdtrit(classes - 1, 1 - wrong)) * math.sqrt(classes / (classes - 1)) / _SHOWN
        interval = lead.mean - reach * (lead.mean - lead.low), lead.mean + reach * (lead.high - lead.mean)
        if not interval[0] <= 0 <= interval[1]:
            winner = TRAINED if lead.mean > 0 else best
    return MethodComparison(len(labels), classes, scores, best, winner, lead.mean, interval, **others)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a training: a comparison for either question, and the exported embedding.

    Attributes:
        purpose: `known`, `new` or `both`, as `--for` names it.
        answers: comparisons on new photos of `known` classes and on `new` classes, where measured.
        unmeasured: reason why one is missing.
        chooses: whether a rival may be exported; else the trained embedding is.
        widths: of the embeddings by method.
        finetuning: as in the report.
        heads: where the network is fine-tuned, the comparisons of the head before it.
    """

    purpose: str
    answers: Mapping[str, MethodComparison]
    unmeasured: str
    chooses: bool
    widths: Mapping[str, int] = field(default_factory=dict)
    finetuning: Mapping[str, Any] | None = None
    heads: Mapping[str, MethodComparison] = field(default_factory=dict)

    @property
    def _is_network(self) -> bool:
        """Whether the answers are of the fine-tuned network."""
        return self.finetuning is not None and bool(self.finetuning["selected"])

    @property
    def _clear(self) -> dict[str, MethodComparison]:
        """Clear comparisons of the purpose, new classes first."""
        asked = ("new", "known") if self.purpose == "both" else (self.purpose,)
        return {name: one for name in asked if (one := self.answers.get(name)) is not None and one.winner is not None}

    @property
    def outcome(self) -> str:
        """`trained` or `untrained`, whichever is clearly better; `mixed` on one question each; else `cannot tell`."""
        outcomes = {"trained" if one.winner == TRAINED else "untrained" for one in self._clear.values()}
        return MIXED if len(outcomes) > 1 else next(iter(outcomes), CANNOT_TELL)

    @property
    def exported(self) -> str:
        """Method of the exported embedding: a rival only where one is clearly better, and training nowhere."""
        if self.outcome != "untrained" or not self.chooses:
            return TRAINED
        return next(iter(self._clear.values())).best_rival

    def to_json(self) -> dict[str, Any]:
        """JSON values for the report, with the verdict as `text`."""
        answers = {name: None if (one := self.answers.get(name)) is None else asdict(one) for name in PARTS}
        return {
            "for": self.purpose,
            "outcome": self.outcome,
            "exported": self.exported,
            **answers,
            "embedding_dim": dict(self.widths),
            "text": "\n  ".join(self.render()),
        }

    def render(self) -> list[str]:
        """Lines of the verdict, the conclusion first."""
        lines = [self._conclude()]
        if (network := self.finetuning) is not None:
            epochs, seconds = len(network["epochs"]) - 1, network["seconds"]
            took = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
            line = f"fine-tuning: {epochs} epoch{'' if epochs == 1 else 's'}, {took}"
            if epochs and not network["selected"]:
                frozen, tuned = (100 * network["map_at_r"][name] for name in ("frozen", "fine-tuned"))
                line += (
                    f"; left out, as MAP@R on its held-out photos went from {frozen:.1f} % (frozen) to {tuned:.1f} %"
                )
            lines.append(line if epochs else "the network was not fine-tuned")
        for name, words in SEARCHED.items():
            if (one := self.answers.get(name)) is None:
                photos = "photos of other classes" if name == "new" else "new photos of these classes"
                lines.append(f"{words}: not measured, as {self.unmeasured}; --val with {photos} would tell")
            else:
                named = {**_NAMES, TRAINED: "fine-tuned" if self._is_network else "trained"}
                shown = dict.fromkeys([TRAINED, one.best_rival, *(["raw"] if "raw" in one.scores else [])])
                scores = (f"{named[key]} {100 * one.scores[key]:.1f} % ({self.widths[key]}-d)" for key in shown)
                lines += [f"{words}: {one.describe_lead()}", f"  {', '.join(scores)}"]
                chose = one.by == VAL and self.chooses and name in self._clear
                remark = "; --val chose what is exported, so its figure is a little too good" if chose else ""
                lines.append(f"  on {one.queries:,} photos of {one.classes} classes ({one.by}){remark}")
            if name in self.heads and (one is None or one.by == HELD_OUT):
                lines.append(f"  the head before it: {self.heads[name].describe_lead()} (holdout)")
        return lines

    def _conclude(self) -> str:
        trained = "the fine-tuned network" if self._is_network else "the trained embedding"
        on = "" if self.purpose == "both" else f" on {SEARCHED[self.purpose]} (--for {self.purpose})"
        if self.outcome == "trained":
            return f"training helps{on}: {trained} is exported"
        if self.outcome == CANNOT_TELL:
            return f"{trained} is exported; whether it finds more than its best rival{on} cannot be told"
        name, rival = next((name, one.best_rival) for name, one in self._clear.items() if one.winner != TRAINED)
        if self.outcome == MIXED:
            other = f"; --for {name} exports {_NAMES[rival]}" if self.chooses else ""
            return f"training helps, but not on {SEARCHED[name]}: {trained} is exported{other}"
        if self.chooses:
            return f"training did not help{on}: {_NAMES[rival]}, the better one, is exported"
        way = "--frozen" if rival == FROZEN_HEAD else f"--method {rival}"
        return (
            f"training did not help{on}, but the options ask for the trained embedding, which is exported; {way} in a "
            "new --out exports the better one"
        )
