"""Is the chance that a label is wrong one? And is the list better than others'? Where the right labels are known.

Every cell is a dataset and a kind of mistakes (see `known_labels`). Ours judges as `retrieval audit` does. The others
get the same features: cleanlab 5-fold cross-validated logistic regression (L2-normalised; the better of C = 1 and C =
10 by the average precision, so in its favour) with all its scores, and a vote of the 20 nearest. Written as they come;
a stopped command goes on.

    python -m benchmarks.labels.chances --out bench/labels
    python -m benchmarks.labels.chances --out bench/labels --dataset cifar-n --kind worse --seeds 0
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import normalize

from benchmarks.common.record import ending_in_words, print_machine, write_json, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.audit import RANKINGS
from benchmarks.labels.known_labels import DATASETS, PARTS, KnownLabels, load_known_labels, mistake
from index.labels.judge import judge_labels
from index.labels.verdicts import SUSPECT

KINDS = (
    "right", "aggre", "random1", "worse", "any:0.02", "any:0.05", "any:0.2", "any:0.4",
    "alike:0.02", "alike:0.05", "alike:0.2", "alike:0.4", "tail right", "tail any:0.2", "tail alike:0.2",
)  # fmt: skip
PEERS_AT = ("aggre", "random1", "worse", "any:0.05", "any:0.2", "alike:0.05", "alike:0.2")
SEEDS, PEER_SEEDS = (0, 1, 2), (0,)
BINS, NEIGHBOURS = 10, 20
MOST = 0.9  # of the wrong labels
STRENGTHS = (1.0, 10.0)  # of cleanlab's classifier


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for features, records and tables")
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), help=f"default: {' '.join(DATASETS)}")
    parser.add_argument("--part", choices=PARTS, default="report")
    parser.add_argument("--kind", nargs="+", default=list(KINDS), help=f"default: {' '.join(KINDS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of mistakes (default: 0 1 2)")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, in minutes")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    with ending_in_words("chances"):
        run(parse_options(arguments))


def run(options: argparse.Namespace) -> None:
    """Judge the cells that have no record yet, and report on all."""
    print_machine(options.seeds)
    rows = []
    for dataset in options.dataset:
        known = load_known_labels(dataset, options.part, options.out / "known", workers=options.workers)
        for kind, seed in _cells(known, options):
            record = options.out / "cells" / f"{dataset}-{options.part}-{kind.replace(' ', '-')}-{seed}.json"
            if not record.exists():
                write_json(record, judge_cell(known, kind, seed=seed))
            rows.append({"dataset": dataset, "kind": kind, "seed": seed, **json.loads(record.read_text())})
        print(f"\n{format_chances([row for row in rows if row['dataset'] == dataset])}", flush=True)
    if not options.no_peers:
        for row in rows:
            if row["kind"] in PEERS_AT and row["seed"] in PEER_SEEDS:
                row["peers"] = _peers_of(row, options)
        print(f"\n{format_peers([row for row in rows if 'peers' in row])}")
    draw_reliability(rows).savefig(options.out / "reliability.png", dpi=100)
    text = "\n\n".join([format_chances(rows), format_peers([row for row in rows if "peers" in row])])
    write_record(options.out / "chances.json", settings=vars(options), results={"rows": rows}, text=text)


def _cells(known: KnownLabels, options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    for kind in options.kind:
        is_drawn = ":" in kind or "tail" in kind
        if is_drawn or kind == "right" or kind in known.by_people:
            yield from ((kind, seed) for seed in (options.seeds if is_drawn else options.seeds[:1]))


def judge_cell(known: KnownLabels, kind: str, *, seed: int) -> dict[str, Any]:
    """How right our chances, verdicts and suggestions are."""
    rows, labels = mistake(known, kind, seed=seed)
    wrong = labels != known.right[rows]
    started = time.process_time()
    judged = judge_labels(known.features[rows], labels, count=len(known.classes))
    seconds = time.process_time() - started
    chances = judged.wrong
    first = [(judged.others(row, label=int(label)) or [(-1, 0.0)])[0] for row, label in enumerate(labels)]
    suggested, of_suggested = np.array([one[0] for one in first]), np.array([one[1] for one in first])
    order = np.lexsort((judged.own, -chances))
    ranked = np.empty(len(order))
    ranked[order] = np.arange(len(order), 0, -1)
    top = chances[order[:50]]
    return {
        "images": len(rows), "wrong": float(wrong.mean()), "estimate": float(chances.mean()),
        "error": expected_error(chances, wrong),
        "error_of_suggestions": expected_error(of_suggested, suggested == known.right[rows]),
        "likely_wrong": float((chances >= SUSPECT).mean()), "top_50_above_0.9": int((top > 0.9).sum()),
        "highest": float(chances.max()), **_verdicts(chances >= SUSPECT, wrong), "best_f1": best_f1(ranked, wrong),
        "average_precision": average_precision(ranked, wrong), "looks": looks_for_most(ranked, wrong),
        "seconds": seconds, "reliability": reliability(chances, wrong),
    }  # fmt: skip


def reliability(chances: np.ndarray, wrong: np.ndarray) -> list[tuple[float, float, int]]:
    """(mean chance, share that is so, labels) of each tenth of the chances that has any."""
    place = np.minimum((chances * BINS).astype(int), BINS - 1)
    found = [place == number for number in range(BINS)]
    return [(float(chances[s].mean()), float(wrong[s].mean()), int(s.sum())) for s in found if s.any()]


def expected_error(chances: np.ndarray, wrong: np.ndarray) -> float:
    """The expected calibration error over ten bins of equal width (Guo et al., 2017)."""
    return sum(abs(mean - share) * count for mean, share, count in reliability(chances, wrong)) / len(chances)


def average_precision(scores: np.ndarray, wrong: np.ndarray) -> float | None:
    return float(average_precision_score(wrong, scores)) if wrong.any() else None


def best_f1(scores: np.ndarray, wrong: np.ndarray) -> float | None:
    """The highest F1 of any threshold, which nobody knows beforehand."""
    hits = np.cumsum(wrong[np.argsort(-scores, kind="stable")])
    return float((2 * hits / (np.arange(1, len(hits) + 1) + wrong.sum())).max()) if wrong.any() else None


def looks_for_most(scores: np.ndarray, wrong: np.ndarray) -> float | None:
    """Labels that are looked at, the most suspicious first, until nine tenths of the wrong ones are found; per one."""
    if not wrong.any():
        return None
    hits = np.cumsum(wrong[np.argsort(-scores, kind="stable")])
    needed = np.ceil(MOST * wrong.sum())
    return float((np.searchsorted(hits, needed) + 1) / needed)


def _verdicts(called: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    found = int((called & wrong).sum())
    return {
        "precision": found / max(1, int(called.sum())), "recall": found / max(1, int(wrong.sum())),
        "f1": 2 * found / max(1, int(called.sum() + wrong.sum())),
    }  # fmt: skip


def _peers_of(row: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    record = options.out / "peers" / f"{row['dataset']}-{options.part}-{row['kind']}-{row['seed']}.json"
    if not record.exists():
        known = load_known_labels(row["dataset"], options.part, options.out / "known", workers=options.workers)
        write_json(record, judge_by_peers(known, row["kind"], seed=row["seed"]))
        print(f"{record.name} written", flush=True)
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def judge_by_peers(known: KnownLabels, kind: str, *, seed: int) -> dict[str, Any]:
    """cleanlab's scores and verdicts, and a vote of the nearest."""
    rows, labels = mistake(known, kind, seed=seed)
    wrong, units = labels != known.right[rows], normalize(known.features[rows])
    ways: dict[str, dict[str, Any]] = {}
    classes, numbers = np.unique(labels, return_inverse=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for strength in STRENGTHS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)  # classes of fewer images than folds
            model = LogisticRegression(max_iter=100, C=strength)
            probabilities = cross_val_predict(model, units, numbers, cv=folds, method="predict_proba")
        issues = find_label_issues(numbers, probabilities, n_jobs=1)
        for name, way in RANKINGS.items():
            scores = -get_label_quality_scores(numbers, probabilities, **way)
            ways[f"cleanlab, C={strength:g}, {name}"] = _measure(scores, wrong, issues)
    votes = _vote(units, numbers, count=len(classes))
    own = votes[np.arange(len(numbers)), numbers]
    ways[f"vote of {NEIGHBOURS}"] = _measure(-own, wrong, votes.argmax(axis=1) != numbers)
    return ways


def _measure(scores: np.ndarray, wrong: np.ndarray, called: np.ndarray) -> dict[str, Any]:
    ap, f1, looks = (measure(scores, wrong) for measure in (average_precision, best_f1, looks_for_most))
    return {
        "average_precision": ap,
        "best_f1": f1,
        "looks": looks,
        "called": float(called.mean()),
        **_verdicts(called, wrong),
    }


def _vote(units: np.ndarray, labels: np.ndarray, *, count: int) -> np.ndarray:
    """(N, C) shares of the nearest other images that have each label."""
    votes = np.zeros((len(labels), count), dtype=np.float32)
    for start in range(0, len(labels), 2048):
        rows = np.arange(start, min(start + 2048, len(labels)))
        cosines = units[rows] @ units.T
        cosines[np.arange(len(rows)), rows] = -2
        nearest = np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        for column in nearest.T:
            votes[rows, labels[column]] += 1 / NEIGHBOURS
    return votes


def format_chances(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a cell: means over its seeds."""
    head = ("dataset", "labels", "wrong", "estimated", "calibration error", "of suggestions", "at .5 or more",
            "of the top 50 above .9", "precision", "recall", "average precision")  # fmt: skip
    lines = []
    for dataset, kind in dict.fromkeys((row["dataset"], row["kind"]) for row in rows):
        some = [row for row in rows if (row["dataset"], row["kind"]) == (dataset, kind)]

        def mean(key: str, some: Sequence[Mapping[str, Any]] = some) -> float:
            return float(np.mean([row[key] for row in some]))

        shares = [f"{100 * mean(key):.1f}%" for key in ("wrong", "estimate")]
        errors = [f"{mean(key):.3f}" for key in ("error", "error_of_suggestions")]
        is_wrong = some[0]["average_precision"] is not None
        rates = [f"{mean(k):.3f}" if is_wrong else "" for k in ("precision", "recall", "average_precision")]
        counts = [f"{100 * mean('likely_wrong'):.2f}%", f"{mean('top_50_above_0.9'):.0f}"]
        lines.append([dataset, kind, *shares, *errors, *counts, *rates])
    return format_table(head, lines)


def format_peers(rows: Sequence[Mapping[str, Any]]) -> str:
    """Ours beside the best of the others: of all their scores, picked by the truth."""
    head = ("dataset", "labels", "average precision ours", "best other", "which", "F1 of our verdicts",
            "best F1 of any verdict of theirs", "F1 at the best threshold of theirs", "looks ours",
            "fewest of theirs")  # fmt: skip
    lines = []
    for row in rows:
        name, best = max(row["peers"].items(), key=lambda item: item[1]["average_precision"])
        verdict = max(way["f1"] for way in row["peers"].values())
        known = max(way["best_f1"] for way in row["peers"].values())
        ours = [f"{row['average_precision']:.3f}", f"{best['average_precision']:.3f}", name]
        fewest = min(way["looks"] for way in row["peers"].values())
        f1 = [f"{row['f1']:.3f}", f"{verdict:.3f}", f"{known:.3f}"]
        lines.append([row["dataset"], row["kind"], *ours, *f1, f"{row['looks']:.2f}", f"{fewest:.2f}"])
    return format_table(head, lines)


def draw_reliability(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """What was said against what is so, a panel a dataset; the larger a dot, the more labels."""
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    figure = Figure(figsize=(3.2 * len(datasets), 3.4), layout="constrained")
    for number, dataset in enumerate(datasets, start=1):
        axes = figure.add_subplot(1, len(datasets), number, title=dataset, aspect="equal")
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=1)
        for label, colour, named in (("mistakes made", "#0072B2", False), ("people's mistakes", "#D55E00", True)):
            some = [row for row in rows if row["dataset"] == dataset and (row["kind"] in PEERS_AT[:3]) == named]
            dots = [dot for row in some for dot in row["reliability"] if dot[2] >= 20]
            if dots:
                said, so, counts = map(np.array, zip(*dots, strict=True))
                axes.scatter(said, so, s=4 * np.sqrt(counts), color=colour, alpha=0.5, label=label, linewidths=0)
        axes.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            xlabel="chance said",
            ylabel="share wrong" if number == 1 else "",
        )
        axes.legend(loc="upper left", fontsize=7, frameon=False)
    return figure


if __name__ == "__main__":
    main()
