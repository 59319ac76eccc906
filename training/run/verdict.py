"""Verdict of a training: the trained embedding against the best untrained one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import stdtrit

from index.arrays import Labels
from index.evaluation.comparison import PairedDifference, Scores, paired_bootstrap

BANDS = 3


def band_by_size(sizes: Labels, labels: Labels, hits: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Recall@1 by the number of training images of a class, as JSON: an average over queries hides rare classes.

    Thirds of the classes, the largest first; classes of one size stay together. Each is {"images": [least, most],
    "classes", "queries", "recall_at_1": mean over the classes, by method}.

    Args:
        sizes: (Q,) int64 training images of each query's class.
        labels: (Q,) int64 classes of the queries.
        hits: (Q,) float64 in {0, 1} by method.
    """
    classes, first = np.unique(labels, return_index=True)
    of_class = sizes[first]
    edges = np.unique(np.quantile(of_class, np.arange(1, BANDS) / BANDS, method="lower"))
    band = np.searchsorted(edges, of_class, side="left")  # 0 is the rarest
    bands = []
    for number in np.unique(band)[::-1]:
        members = classes[band == number]
        asked = np.isin(labels, members)
        within = of_class[band == number]
        _, place, queries = np.unique(labels[asked], return_inverse=True, return_counts=True)
        recall = {
            name: float((np.bincount(place, weights=found[asked]) / queries).mean()) for name, found in hits.items()
        }
        bands.append({
            "images": [int(within.min()), int(within.max())], "classes": len(members), "queries": int(asked.sum()),
            "recall_at_1": recall,
        })  # fmt: skip
    return bands


def name_sizes(least: int, most: int) -> str:
    """Sizes in words.

    >>> name_sizes(3, 3), name_sizes(3, 9)
    ('3', '3-9')
    """
    return f"{least}-{most}" if most > least else str(least)


# A bootstrap over few classes spreads too little, and the best of several rivals is partly the best by chance. So the
# interval is widened as Student's t is wider than the normal, and by the number of comparisons (Bonferroni): the
# rivals, on each part of the holdout. Then at most one holdout in twenty is wrong where all methods are equal.
# Measured on drawn hits of equal methods, four rivals, two parts, 2,000 draws each: 4 to 5 of 100 are called clear on
# either part at 5 to 40 classes; 8 to 9 without counting the parts.
LEAST_CLASSES = 5  # below which nothing is clear
_WRONG = 0.05  # of all evaluations of equal methods
_SHOWN = NormalDist().inv_cdf(0.975)  # standard deviations to either bound of the interval of 95 %


def widen_interval(difference: PairedDifference, *, classes: int, comparisons: int) -> tuple[float, float] | None:
    """Interval of a difference, widened for few classes and several comparisons; None below `LEAST_CLASSES`.

    Args:
        difference: of a method to the best of its rivals, with the 95 % interval over classes.
        comparisons: number of rivals, in every part of the holdout.
    """
    if classes < LEAST_CLASSES:
        return None
    reach = float(stdtrit(classes - 1, 1 - _WRONG / comparisons)) * math.sqrt(classes / (classes - 1)) / _SHOWN
    mean = difference.mean
    return mean - reach * (mean - difference.low), mean + reach * (difference.high - mean)


TRAINED = "trained"
FROZEN_HEAD = "frozen head"  # the trained head on the frozen backbone, beside a network that trained
HOLDOUT, VAL = "holdout", "--val"
CANNOT_TELL = "cannot tell"
NEW_CLASSES, NEW_PHOTOS, MIXED = "new classes", "new photos", "the images of --val"
QUESTIONS = {"unseen": NEW_CLASSES, "seen": NEW_PHOTOS}  # of the parts of the holdout
_NAMES = {
    "raw": "raw features", "pca": "PCA", "pca-half-whitened": "half-whitened PCA", "pca-whitened": "whitened PCA",
    "wccn": "within-class whitening", FROZEN_HEAD: "the trained head on the frozen backbone",
}  # fmt: skip
_SEARCHED = {
    NEW_CLASSES: "{queries:,} photos of {classes} new classes",
    NEW_PHOTOS: "{queries:,} new photos of {classes} classes that train",
    MIXED: "{queries:,} photos of {classes} classes, some of which train",
}
_LINE = "\n  "  # between the lines of a verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Recall@1 (fractions) of the trained embedding and its rivals on the same queries, for the report.

    Attributes:
        best_rival: the best method besides the trained one.
        winner: `trained` or `best_rival`, where the difference is clear.
        difference: trained minus `best_rival`.
        difference_interval: widened 95 % interval over classes; None on too few classes.
        by_class_size: Recall@1 by the number of training images of a class, where known.
    """

    queries: int
    classes: int
    recall_at_1: Mapping[str, float]
    best_rival: str
    winner: str | None
    difference: float
    difference_interval: tuple[float, float] | None
    by_class_size: Sequence[dict[str, Any]] = ()


def measure_lead(
    hits: Scores, others: Scores, labels: Labels, *, seed: int, comparisons: int
) -> tuple[float, tuple[float, float] | None]:
    """Difference of (Q,) hits to (Q,) others on queries of the classes (Q,), and its widened interval."""
    difference = paired_bootstrap(hits, others, seed=seed, clusters=labels)
    classes = len(np.unique(labels))
    return difference.mean, widen_interval(difference, classes=classes, comparisons=comparisons)


def compare(
    hits: Mapping[str, Scores], labels: Labels, *, seed: int, parts: int = 1, by_size: Sequence[dict[str, Any]] = ()
) -> Comparison:
    """Compare the (Q,) hits of `trained` with those of all other methods, on queries of the classes `labels` (Q,)."""
    recall = {name: float(found.mean()) for name, found in hits.items()}
    rivals = [name for name in recall if name != TRAINED]
    best = max(rivals, key=lambda name: recall[name])
    lead, interval = measure_lead(hits[TRAINED], hits[best], labels, seed=seed, comparisons=parts * len(rivals))
    winner = None
    if interval is not None and not interval[0] <= 0 <= interval[1]:
        winner = TRAINED if lead > 0 else best
    return Comparison(len(labels), len(np.unique(labels)), recall, best, winner, lead, interval, by_size)


_NOT_COMPARED = (
    "the trained embedding is exported; it was not compared, as nothing was held out",
    "--val with labelled images that do not train would tell whether training helps",
)


def ask_validation(labels: Sequence[str], *, trained: Sequence[str]) -> str:
    """Question that images of these labels answer, by the training labels."""
    shared = set(labels) & set(trained)
    if not shared:
        return NEW_CLASSES
    return NEW_PHOTOS if shared == set(labels) else MIXED


def reach_verdict(
    comparison: Mapping[str, Any] | None, *, by: str, question: str, chooses: bool, widths: Mapping[str, int],
    contradicted_on: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Verdict for the report: figures, winner, exported embedding, and `text`, whose first line is the conclusion.

    Args:
        comparison: a `Comparison` as JSON; None where nothing could be compared.
        by: `holdout` or `--val`.
        chooses: whether the winner is exported; else the trained embedding.
        widths: of the embeddings by method.
        contradicted_on: question on which the opposite is clear; then nothing can be told.
    """
    if comparison is None:
        return {"outcome": CANNOT_TELL, "exported": TRAINED, "decided_by": None, "text": _LINE.join(_NOT_COMPARED)}
    winner, best = None if contradicted_on else comparison["winner"], comparison["best_rival"]
    verdict = {
        "outcome": CANNOT_TELL if winner is None else "trained" if winner == TRAINED else "untrained",
        "exported": best if chooses and winner == best else TRAINED,
        "decided_by": by,
        "question": question,
        "queries": comparison["queries"],
        "classes": comparison["classes"],
        "rival": best,
        "recall_at_1": {name: comparison["recall_at_1"][name] for name in (TRAINED, best, "raw")},
        "embedding_dim": {name: widths[name] for name in (TRAINED, best)},
        "difference": comparison["difference"],
        "difference_interval": comparison["difference_interval"],
    }
    conclusion, remark = _conclude(best, by=by, winner=winner, chooses=chooses, but=contradicted_on)
    *figures, lead = describe_figures(verdict)
    return {**verdict, "text": _LINE.join([conclusion, *figures, f"{lead}{remark}"])}


def choose_verdict(val: Mapping[str, Any], holdout: Mapping[str, Any] | None) -> dict[str, Any]:
    """Verdict by --val, or a clear one by the holdout evaluation where --val cannot tell."""
    if holdout is None or val["outcome"] != CANNOT_TELL or holdout["outcome"] == CANNOT_TELL:
        return dict(val)
    conclusion, *lines = holdout["text"].split(_LINE)
    *figures, lead = describe_figures(val)
    unclear = [*figures, f"{lead}, which may be chance, so the holdout decides"]
    return {**holdout, "text": _LINE.join([conclusion, *unclear, *lines])}


def describe_figures(verdict: Mapping[str, Any]) -> list[str]:
    """Lines about what was searched, Recall@1 of the trained embedding and its best rival, and their difference."""
    rival, widths = verdict["rival"], verdict["embedding_dim"]
    trained, other, raw = (100 * verdict["recall_at_1"][name] for name in (TRAINED, rival, "raw"))
    searched = _SEARCHED[verdict["question"]].format(queries=verdict["queries"], classes=verdict["classes"])
    interval = ""
    if verdict["difference_interval"] is not None:
        interval = " [{:+.1f}, {:+.1f}]".format(*(100 * bound for bound in verdict["difference_interval"]))
    return [
        f"compared on {searched} ({verdict['decided_by']}), by Recall@1",
        f"trained {trained:.1f} % ({widths[TRAINED]}-d), {_NAMES[rival]} {other:.1f} % ({widths[rival]}-d)"
        f"{'' if rival == 'raw' else f', raw features {raw:.1f} %'}",
        f"lead of training: {100 * verdict['difference']:+z.1f} points{interval}",
    ]


def _conclude(best: str, *, by: str, winner: str | None, chooses: bool, but: str | None) -> tuple[str, str]:
    """The conclusion, and a remark on the lead."""
    if winner is None:
        more = "more classes in --val" if by == VAL else "more classes, or --val with other labelled images,"
        why = "which may be chance" if but is None else f"but on {but} the opposite is clear"
        return "the trained embedding is exported; whether training helps cannot be told", f", {why}: {more} would tell"
    remark = "; --val chose what is exported, so its figure is a little too good" if by == VAL and chooses else ""
    if winner == TRAINED:
        return "training helps: the trained embedding is exported", remark
    if chooses:
        return f"training did not help: {_NAMES[best]}, the better one, is exported", remark
    way = "--frozen" if best == FROZEN_HEAD else f"--method {best}"
    return (
        "training did not help, but the options ask for the trained embedding, which is exported",
        f"; {way} in a new --out exports the better one",
    )


def add_finetuning(verdict: Mapping[str, Any], network: Mapping[str, Any]) -> dict[str, Any]:
    """Verdict of the holdout evaluation with the result of fine-tuning; `network` as in the report."""
    epochs, scores = len(network["epochs"]) - 1, network["map_at_r"]
    if epochs == 0:
        return {**verdict, "text": f"{verdict['text']}{_LINE}the network was not fine-tuned"}
    seconds = network["seconds"]
    took = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    found = "not compared, as no photos could be held out"
    if scores is not None:
        frozen, tuned = 100 * scores["frozen"], 100 * scores["fine-tuned"]
        found = f"MAP@R on its held-out photos from {frozen:.1f} % (frozen) to {tuned:.1f} %"
        found += ", which may be chance" if network["selected"] and tuned <= frozen else ""
    line = f"fine-tuning ({epochs} epoch{'' if epochs == 1 else 's'}, {took}): {found}"
    if not network["selected"]:
        return {**verdict, "text": f"{verdict['text']}{_LINE}{line}, so it is left out"}
    lines = ["the fine-tuned network is exported", line]
    if verdict["decided_by"] is not None:
        compared, *figures = describe_figures(verdict)
        lines += [f"the head before it was {compared}", *figures]
    return {**verdict, "exported": TRAINED, "text": _LINE.join(lines)}
