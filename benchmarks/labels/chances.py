"""Label-error detection beside cleanlab, its Datalab and a vote of the nearest: Brier skill, AUC, average precision.

The right labels are known (see `known_labels`); every cell is a dataset and a kind of mistakes. Ours is the detection
of `retrieval audit`; the peers get the same features and labels. cleanlab gets 5-fold cross-validated logistic
regression (L2-normalised features) of several strengths, with all its scores, adjusted and not; Datalab the same
probabilities, and the features alone. Which way of theirs is the best of a cell is picked by the truth, so in their
favour. Intervals are over classes and seeds. Records are kept: a stopped command continues.

    python -m benchmarks.labels.chances --out bench/labels
    python -m benchmarks.labels.chances --out bench/labels --dataset cifar-n --kind worse --seeds 0
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from benchmarks.common.record import (
    ending_in_words,
    print_machine,
    write_atomically,
    write_json,
    write_record,
    write_with_record,
)
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import DATASETS, KnownLabels, add_options, load_known_labels, mistake
from index.labels.issues import MIN_P_ERROR
from index.labels.kinds import LIKELY_ERROR
from index.labels.label_errors import find_label_errors

KINDS = (
    *("right", "aggre", "random1", "worse"),
    *(f"{kind}:{share}" for kind in ("any", "alike") for share in (0.02, 0.05, 0.2, 0.4)),
    *("none:0.05", "none:0.2", "tail right", "tail any:0.2", "tail alike:0.2"),
)
PEERS_AT = ("aggre", "random1", "worse", "any:0.05", "any:0.2", "alike:0.05", "alike:0.2")
SEEDS = (0, 1, 2)
BINS, RESAMPLES = 10, 200
MOST = 0.9  # of the wrong labels
RANKINGS: Mapping[str, Mapping[str, Any]] = {
    "self-confidence": {"method": "self_confidence"},
    "margin": {"method": "normalized_margin"},
    "entropy": {"method": "confidence_weighted_entropy"},
    "self-confidence, adjusted": {"method": "self_confidence", "adjust_pred_probs": True},
    "margin, adjusted": {"method": "normalized_margin", "adjust_pred_probs": True},
}
STRENGTHS = (3.0, 10.0, 30.0)  # C of the regression: on the parts that choose, each of these is the best somewhere
NEIGHBOURS, FOLDS = 20, 5

Ranked = tuple[np.ndarray, np.ndarray]
"""(N,) float32, the higher the more probably wrong; (N,) bool, the labels called wrong."""


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, DATASETS, KINDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of mistakes (default: 0 1 2)")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, in minutes")
    return parser.parse_args(arguments)


@ending_in_words("chances")
def main(arguments: list[str] | None = None) -> None:
    """Measure the cells that have no record yet, and report on all."""
    options = parse_options(arguments)
    print_machine(options.seeds)
    rows = []
    for dataset in options.dataset:
        known = load_known_labels(dataset, options.part, options.out / "known", workers=options.workers)
        for kind, seed in _cells(known, options):
            record = options.out / "cells" / f"{dataset}-{options.part}-{kind.replace(' ', '-')}-{seed}.json"
            if not record.exists():
                found, scores = measure_cell(known, kind, seed=seed)
                write_atomically(record.with_suffix(".npz"), lambda file, s=scores: np.savez(file, scores=s))
                write_json(record, found)
            rows.append({"dataset": dataset, "kind": kind, "seed": seed, **json.loads(record.read_text())})
        print(f"\n{format_chances([row for row in rows if row['dataset'] == dataset])}", flush=True)
    if not options.no_peers:
        for row in rows:
            if row["kind"] in PEERS_AT:
                row["peers"] = _peers_of(row, options)
    compared = [compare_cell(some, options) for some in _by_cell([row for row in rows if "peers" in row])]
    text = "\n\n".join([format_chances(rows), format_peers(compared)])
    print(f"\n{format_peers(compared)}")
    results = {"rows": rows, "compared": compared}
    write_record(options.out / "chances.json", settings=vars(options), results=results, text=text)


def _cells(known: KnownLabels, options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    for kind in options.kind:
        is_drawn = ":" in kind or "tail" in kind
        if is_drawn or kind == "right" or kind in known.by_people:
            yield from ((kind, seed) for seed in (options.seeds if is_drawn else options.seeds[:1]))


def measure_cell(known: KnownLabels, kind: str, *, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """How right our chances, verdicts and suggestions are; and (N,) the probability that each label is wrong."""
    rows, labels = mistake(known, kind, seed=seed)
    wrong = labels != known.right[rows]
    errors = find_label_errors(known.features[rows], labels, count=len(known.classes))
    chances = errors.p_error
    first = [(errors.others(row, label=int(label)) or [(-1, 0.0)])[0] for row, label in enumerate(labels)]
    suggested, of_suggested = np.array([one[0] for one in first]), np.array([one[1] for one in first])
    order = np.lexsort((errors.own, -chances))
    ranked = np.empty(len(order))
    ranked[order] = np.arange(len(order), 0, -1)
    listed = chances >= MIN_P_ERROR
    return {
        "images": len(rows),
        "wrong": float(wrong.mean()),
        "estimate": float(chances.mean()),
        "error": expected_error(chances, wrong),
        "error_of_suggestions": expected_error(of_suggested, suggested == known.right[rows]),
        "said_of_listed": float(chances[listed].mean()) if listed.any() else 0.0,
        "wrong_of_listed": float(wrong[listed].mean()) if listed.any() else 0.0,
        **skills(chances, wrong),
        **_verdicts(chances >= LIKELY_ERROR, wrong),
        "average_precision": average_precision(ranked, wrong),
        "looks": looks_for_most(ranked, wrong),
        "reliability": reliability(chances, wrong),
    }, ranked.astype(np.float32)


def reliability(chances: np.ndarray, wrong: np.ndarray) -> list[tuple[float, float, int]]:
    """(mean chance, share that is so, labels) of each tenth of the chances that has any."""
    place = np.minimum((chances * BINS).astype(int), BINS - 1)
    found = [place == number for number in range(BINS)]
    return [(float(chances[s].mean()), float(wrong[s].mean()), int(s.sum())) for s in found if s.any()]


def expected_error(chances: np.ndarray, wrong: np.ndarray) -> float:
    """The expected calibration error over ten bins of equal width (Guo et al., 2017)."""
    return sum(abs(mean - share) * count for mean, share, count in reliability(chances, wrong)) / len(chances)


def skills(chances: np.ndarray, wrong: np.ndarray) -> dict[str, float | None]:
    """AUC, and by how much the Brier score is below that of the true rate for every label; None without wrong ones."""
    if not wrong.any():
        return {"brier_skill": None, "auc": None}
    loss, of_rate = (brier_score_loss(wrong, said) for said in (chances, np.full(len(wrong), wrong.mean())))
    return {"brier_skill": 1 - float(loss / of_rate), "auc": float(roc_auc_score(wrong, chances))}


def average_precision(scores: np.ndarray, wrong: np.ndarray) -> float | None:
    return float(average_precision_score(wrong, scores)) if wrong.any() else None


def looks_for_most(scores: np.ndarray, wrong: np.ndarray) -> float | None:
    """Labels to look at, the most probable errors first, until nine tenths of the wrong ones are found; per one."""
    if not wrong.any():
        return None
    hits = np.cumsum(wrong[np.argsort(-scores, kind="stable")])
    needed = np.ceil(MOST * wrong.sum())
    return float((np.searchsorted(hits, needed) + 1) / needed)


def _verdicts(called: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    found = int((called & wrong).sum())
    return {
        "precision": found / max(1, int(called.sum())),
        "recall": found / max(1, int(wrong.sum())),
        "f1": 2 * found / max(1, int(called.sum() + wrong.sum())),
    }


def _peers_of(row: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    record = options.out / "peers" / f"{_name(row, options.part)}.json"
    if not record.exists():
        known = load_known_labels(row["dataset"], options.part, options.out / "known", workers=options.workers)
        rows, labels = mistake(known, row["kind"], seed=row["seed"])
        wrong, ways = labels != known.right[rows], run_peers(known.features[rows], labels)
        scores = {name: ranked for name, (ranked, _) in ways.items()}
        write_with_record(
            record,
            {name: _measure(*way, wrong) for name, way in ways.items()},
            lambda file: np.savez(file, **scores),
            suffix=".npz",
        )
        print(f"{record.name} written", flush=True)
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def _name(row: Mapping[str, Any], part: str) -> str:
    return f"{row['dataset']}-{part}-{row['kind'].replace(' ', '-')}-{row['seed']}"


def _measure(scores: np.ndarray, called: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    ap, looks = (measure(scores, wrong) for measure in (average_precision, looks_for_most))
    return {"average_precision": ap, "looks": looks, "called": float(called.mean()), **_verdicts(called, wrong)}


def run_peers(features: np.ndarray, labels: np.ndarray) -> dict[str, Ranked]:
    """What each way says of (N,) labels of images with (N, D) features."""
    units, numbers = normalize(features), np.unique(labels, return_inverse=True)[1]
    ways: dict[str, Ranked] = {}
    for strength in STRENGTHS:
        probabilities = cross_validate(units, numbers, strength)
        issues = find_label_issues(numbers, probabilities, n_jobs=1)
        for name, way in RANKINGS.items():
            scores = -get_label_quality_scores(numbers, probabilities, **way)
            ways[f"cleanlab, C={strength:g}, {name}"] = scores, issues
        ways[f"Datalab, C={strength:g}"] = _ask_datalab(numbers, pred_probs=probabilities, features=units)
    ways["Datalab, features alone"] = _ask_datalab(numbers, features=units)
    votes = _vote(units, numbers, count=int(numbers.max()) + 1)
    ways[f"vote of {NEIGHBOURS}"] = -votes[np.arange(len(numbers)), numbers], votes.argmax(axis=1) != numbers
    return {name: (scores.astype(np.float32), called.astype(bool)) for name, (scores, called) in ways.items()}


def cross_validate(units: np.ndarray, labels: np.ndarray, strength: float) -> np.ndarray:
    """(N, C) probabilities of each fifth of the (N, D) unit rows by a logistic regression of the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # classes of fewer images than folds
        model = LogisticRegression(max_iter=100, C=strength)
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
        return np.asarray(cross_val_predict(model, units, labels, cv=folds, method="predict_proba"))


def _ask_datalab(labels: np.ndarray, **known: np.ndarray) -> Ranked:
    from cleanlab import Datalab  # which takes seconds to load

    lab = Datalab({"label": labels}, label_name="label", verbosity=0)
    lab.find_issues(issue_types={"label": {}}, **known)
    found = lab.get_issues("label")
    return -found["label_score"].to_numpy(), found["is_label_issue"].to_numpy()


def _vote(units: np.ndarray, labels: np.ndarray, *, count: int) -> np.ndarray:
    """(N, C) shares of the nearest other images that have each label."""
    neighbours = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(labels) - 1), metric="cosine").fit(units)
    nearest = neighbours.kneighbors(return_distance=False)
    votes = np.zeros((len(labels), count), dtype=np.float32)
    np.add.at(votes, (np.arange(len(labels))[:, None], labels[nearest]), 1 / nearest.shape[1])
    return votes


def _by_cell(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for cell in dict.fromkeys((row["dataset"], row["kind"]) for row in rows):
        yield [row for row in rows if (row["dataset"], row["kind"]) == cell]


def compare_cell(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Means over seeds of ours and of the best of the others in each figure, and the interval of the first."""

    def mean(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {key: float(np.mean([one[key] for one in found])) for key in ("average_precision", "f1", "looks")}

    ways = {name: mean([row["peers"][name] for row in rows]) for name in rows[0]["peers"]}
    best = max(ways, key=lambda name: ways[name]["average_precision"])
    return {
        "dataset": rows[0]["dataset"],
        "kind": rows[0]["kind"],
        "seeds": len(rows),
        "ours": mean(rows),
        "best": best,
        "average_precision": ways[best]["average_precision"],
        "f1": max(way["f1"] for way in ways.values()),
        "looks": min(way["looks"] for way in ways.values()),
        "lead": _lead(rows, best, options),
    }


def _lead(rows: Sequence[dict[str, Any]], way: str, options: argparse.Namespace) -> tuple[float, float]:
    """By how much our average precision is above that of a way: 95 % of draws of classes and seeds."""
    known = load_known_labels(rows[0]["dataset"], options.part, options.out / "known", workers=options.workers)
    random, cells = np.random.default_rng(0), []
    for row in rows:
        name = _name(row, options.part)
        with np.load(options.out / "cells" / f"{name}.npz") as kept:
            ours = kept["scores"]
        with np.load(options.out / "peers" / f"{name}.npz") as kept:
            theirs = kept[way]
        images, labels = mistake(known, row["kind"], seed=row["seed"])
        cells.append((ours, theirs, labels != known.right[images], known.right[images]))
    leads = []
    for _ in range(RESAMPLES):
        times = np.bincount(random.integers(0, len(known.classes), len(known.classes)), minlength=len(known.classes))
        drawn = [cells[number] for number in random.integers(0, len(cells), len(cells))]
        leads.append(np.mean([_weighted_lead(*cell[:3], times[cell[3]]) for cell in drawn]))
    low, high = np.quantile(leads, (0.025, 0.975))
    return float(low), float(high)


def _weighted_lead(ours: np.ndarray, theirs: np.ndarray, wrong: np.ndarray, weights: np.ndarray) -> float:
    one, two = (average_precision_score(wrong, scores, sample_weight=weights) for scores in (ours, theirs))
    return float(one - two)


def format_chances(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a cell: means over its seeds."""
    head = (
        *("dataset", "labels", "wrong", "estimated", "calibration error", "of suggestions", "listed: said", "wrong"),
        *("at .5: precision", "recall", "Brier skill", "AUC", "average precision"),
    )
    lines = []
    for dataset, kind in dict.fromkeys((row["dataset"], row["kind"]) for row in rows):
        some = [row for row in rows if (row["dataset"], row["kind"]) == (dataset, kind)]

        def mean(key: str, some: Sequence[Mapping[str, Any]] = some) -> float:
            return float(np.mean([row[key] for row in some]))

        shares = [f"{100 * mean(key):.1f}%" for key in ("wrong", "estimate")]
        errors = [f"{mean(key):.3f}" for key in ("error", "error_of_suggestions")]
        is_wrong = some[0]["average_precision"] is not None
        listed = [f"{100 * mean(key):.0f}%" for key in ("said_of_listed", "wrong_of_listed")]
        scores = ("precision", "recall", "brier_skill", "auc", "average_precision")
        rates = [f"{mean(key):.3f}" if is_wrong else "" for key in scores]
        lines.append([dataset, kind, *shares, *errors, *listed, *rates])
    return format_table(head, lines)


def format_peers(compared: Sequence[Mapping[str, Any]]) -> str:
    """Ours beside the best of the others: of all their ways, picked by the truth for each figure."""
    head = (
        *("dataset", "labels", "seeds", "average precision ours", "best other", "which", "ours leads by"),
        *("F1 of our verdicts", "best F1 of any verdict of theirs", "looks ours", "fewest of theirs"),
    )
    lines = []
    for cell in compared:
        ours, (low, high) = cell["ours"], cell["lead"]
        lead = f"{ours['average_precision'] - cell['average_precision']:+.3f} [{low:+.3f}, {high:+.3f}]"
        precision = [f"{one['average_precision']:.3f}" for one in (ours, cell)]
        others = [f"{one[key]:.{digits}f}" for key, digits in (("f1", 3), ("looks", 2)) for one in (ours, cell)]
        lines.append([cell["dataset"], cell["kind"], str(cell["seeds"]), *precision, cell["best"], lead, *others])
    return format_table(head, lines)


if __name__ == "__main__":
    main()
