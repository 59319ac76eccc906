"""Does the audit find wrong labels at least as well as cleanlab? On labels that we made wrong, so that they are known.

Ours ranks labels by how likely they are wrong, ties by the leave-one-out confidence in the label. cleanlab gets (A) the
same confidences, and (B) the probabilities that its tutorials on embeddings compute: logistic regression,
`LogisticRegression(max_iter=400)`, cross-validated in 5 folds, on L2-normalised and on standardised features. The
tables show the better of the two, and the best of cleanlab's rankings, both chosen by the true labels, in its favour.
Labels that were wrong before the noise count as right. Each audit runs in one thread; a stopped command goes on.

    python -m benchmarks.labels.audit --out bench/grid
    python -m benchmarks.labels.audit --out bench/grid --dataset clothing-seen --noise uniform:0.3 --seeds 0
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from cleanlab.count import estimate_joint, num_label_issues
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler, normalize

from benchmarks.common.parallel import run_parallel
from benchmarks.common.record import ending_in_words, print_machine, write_record, write_with_record
from benchmarks.common.tables import format_deviation, format_interval, format_table
from benchmarks.labels.peers import RANKINGS
from benchmarks.noise.cells import CLEAN, GridFolder, LabelSet, digest, short_name
from benchmarks.noise.feature_sets import prepare_usual_features
from benchmarks.noise.grid import load_label_set
from benchmarks.noise.options import make_grid_parser, parse_grid_options
from benchmarks.noise.reports import over_seeds
from index.evaluation.metrics import ranking_auc
from index.labels.judge import judge_twice
from index.labels.suspicion import suspect_labels
from index.labels.verdicts import SUSPECT

DATASETS = ("clothing-disjoint", "clothing-seen", "tiny-imagenet")  # the cheap ones first
NOISES = ("uniform:0.3", "nearest-class:0.3", "uniform:0.5")
SEEDS = (0, 1, 2)
FOLDS, ITERATIONS = 5, 400  # of the tutorials
RESAMPLES = 200
OURS, SAME, SCALINGS = "ours", "our confidences", ("L2-normalised", "standardised")
DEFAULT = "self-confidence"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one way of auditing says of N labels.

    Attributes:
        rankings: (N,) floating by name; the higher, the more suspicious.
        suspects: (N,) bool, the labels called wrong.
        rate: estimated share of wrong labels.
        seconds: of processor time, which do not grow with what else runs on the machine.
    """

    rankings: dict[str, np.ndarray]
    suspects: np.ndarray
    rate: float
    seconds: float
    details: dict[str, float] = field(default_factory=dict)

    def judge(self, wrong: np.ndarray) -> dict[str, Any]:
        """How right it is, where `wrong` is (N,) bool."""
        found = int((self.suspects & wrong).sum())
        return {
            "rankings": {
                name: {"auc": ranking_auc(scores, wrong), "precision": precision_at_count(scores, wrong)}
                for name, scores in self.rankings.items()
            },
            "suspects": int(self.suspects.sum()),
            "precision": found / max(1, int(self.suspects.sum())),
            "recall": found / max(1, int(wrong.sum())),
            "rate": self.rate, "seconds": self.seconds, "details": self.details,
        }  # fmt: skip


def precision_at_count(scores: np.ndarray, wrong: np.ndarray) -> float:
    """Share of wrong labels among as many of the most suspicious ones as are wrong."""
    count = int(wrong.sum())
    return float(wrong[np.argsort(-scores, kind="stable")[:count]].mean()) if count else 0.0


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    dataset = f"as there (default: {', '.join(DATASETS)})"
    parser = make_grid_parser(__doc__, dataset=dataset, noises=NOISES, noise="KIND:P")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of the noise (default: 0 1 2)")
    options = parse_grid_options(parser, arguments, dataset=DATASETS, noise=NOISES)
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    if CLEAN in options.noise:
        parser.error("--noise clean: finding wrong labels is judged where some are known to be wrong")
    return options


def main(arguments: list[str] | None = None) -> None:
    with ending_in_words("audit"):
        run(parse_options(arguments))


def run(options: argparse.Namespace) -> None:
    """Audit the label sets that have no record yet, and report on all that are asked for."""
    folder = GridFolder(options.out)
    prepare_usual_features(folder, options.dataset, workers=options.workers)
    kinds = list(itertools.product(options.dataset, options.noise))
    asked = [LabelSet(dataset, noise, seed) for dataset, noise in kinds for seed in options.seeds]
    missing = [(folder, labels) for labels in asked if not record_path(folder, labels).exists()]
    run_parallel(audit_label_set, missing, "audits", workers=options.workers, threads=1)
    rows = [
        {"dataset": short_name(dataset), "noise": noise}
        | summarise([record_path(folder, LabelSet(dataset, noise, seed)) for seed in options.seeds])
        for dataset, noise in kinds
    ]
    text = format_tables(rows, seeds=options.seeds)
    print_machine(options.seeds)
    print(f"\n{text}")
    usual = [options.dataset, options.noise, options.seeds] == [list(DATASETS), list(NOISES), list(SEEDS)]
    name = "audit" if usual else f"audit_{digest([options.dataset, options.noise, options.seeds])}"
    peers = {package: version(package) for package in ("cleanlab", "scikit-learn")}
    settings = {**vars(options), **peers}
    write_record(folder.results / f"{name}.json", settings=settings, results={"rows": rows}, text=text)


def record_path(folder: GridFolder, labels: LabelSet) -> Path:
    """The JSON record of a label set; every image's suspicion stands beside it."""
    return folder.path / "audits" / f"{labels.name}.json"


def audit_label_set(folder: GridFolder, labels: LabelSet) -> None:
    """Audit one noisy labelling our way and cleanlab's, and write how right each is."""
    features, noisy = load_label_set(folder, labels)
    wrong = noisy != features.train_labels
    confidences, ours = audit_ours(features.train, noisy, class_count=len(features.classes))
    findings = {OURS: ours, SAME: audit_cleanlab(confidences, noisy, seconds=0.0)}
    for scaling in SCALINGS:
        started = time.process_time()
        probabilities = cross_validate(features.train, noisy, scaling=scaling)
        findings[scaling] = audit_cleanlab(probabilities, noisy, seconds=time.process_time() - started)
    record = {
        "labels": asdict(labels), "samples": len(noisy), "wrong": int(wrong.sum()),
        "routes": {route: finding.judge(wrong) for route, finding in findings.items()},
    }  # fmt: skip
    arrays: dict[str, Any] = {"wrong": wrong}
    for route, finding in findings.items():
        arrays |= {f"{route}: {name}": scores for name, scores in finding.rankings.items()}
    write_with_record(record_path(folder, labels), record, lambda file: np.savez(file, **arrays), suffix=".npz")


def audit_ours(features: np.ndarray, noisy: np.ndarray, *, class_count: int) -> tuple[np.ndarray, Finding]:
    """Our (N, C) confidences, and what we say by them."""
    started = time.process_time()
    confidences = judge_twice(features, noisy, count=class_count)
    chances = suspect_labels(confidences, noisy).wrong
    seconds = time.process_time() - started
    own = confidences[np.arange(len(noisy)), noisy].astype(np.float64)
    _, order = np.unique(np.stack([chances, -own], axis=1), axis=0, return_inverse=True)  # equal where both are
    return confidences, Finding({OURS: order}, chances >= SUSPECT, float(chances.mean()), seconds, {})


def cross_validate(features: np.ndarray, noisy: np.ndarray, *, scaling: str) -> np.ndarray:
    """(N, C) probabilities out of fold, by the classifier of cleanlab's tutorials."""
    scaled = normalize(features) if scaling == SCALINGS[0] else StandardScaler().fit_transform(features)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so many iterations are what the tutorials ask for
        model = LogisticRegression(max_iter=ITERATIONS)
        return cross_val_predict(model, scaled, noisy, cv=FOLDS, method="predict_proba")


def audit_cleanlab(probabilities: np.ndarray, noisy: np.ndarray, *, seconds: float) -> Finding:
    """What cleanlab says by (N, C) probabilities that took so many seconds; those of its default ranking count."""
    started = time.process_time()
    suspects = find_label_issues(noisy, probabilities, n_jobs=1)
    default = get_label_quality_scores(noisy, probabilities)
    rate = float(num_label_issues(noisy, probabilities)) / len(noisy)
    seconds += time.process_time() - started
    others = {
        name: -get_label_quality_scores(noisy, probabilities, **options)
        for name, options in RANKINGS.items()
        if name != DEFAULT
    }
    joint = {"rate_by_joint": float(1 - np.trace(estimate_joint(noisy, probabilities)))}
    return Finding({DEFAULT: -default, **others}, suspects, rate, seconds, joint)


def summarise(paths: Sequence[Path]) -> dict[str, Any]:
    """Mean and deviation over seeds of all that was measured, and by what AUC ours leads cleanlab end to end."""
    records = [json.loads(path.read_text()) for path in paths]
    samples = records[0]["samples"]
    routes = {
        route: _average([record["routes"][route] for record in records], samples=samples)
        for route in records[0]["routes"]
    }

    def auc(way: tuple[str, str]) -> float:
        return routes[way[0]]["rankings"][way[1]]["auc"]["mean"]

    default = max(itertools.product(SCALINGS, [DEFAULT]), key=auc)
    best = max(itertools.product(SCALINGS, RANKINGS), key=auc)
    return {
        "samples": samples, "wrong": over_seeds([record["wrong"] / samples for record in records]),
        "routes": routes, "default": default, "best": best,
        "leads": {"default": _lead(paths, default), "best": _lead(paths, best)},
    }  # fmt: skip


def _average(seeds: Sequence[Mapping[str, Any]], *, samples: int) -> dict[str, Any]:
    """What one way of auditing found, over its seeds."""
    first = seeds[0]
    return {
        "rankings": {
            name: {
                key: over_seeds([seed["rankings"][name][key] for seed in seeds]) for key in ("auc", "precision")
            }
            for name in first["rankings"]
        },
        "called": over_seeds([seed["suspects"] / samples for seed in seeds]),
        **{key: over_seeds([seed[key] for seed in seeds]) for key in ("precision", "recall", "rate", "seconds")},
        "details": {key: [seed["details"][key] for seed in seeds] for key in first["details"]},
    }


def _lead(paths: Sequence[Path], other: tuple[str, str]) -> dict[str, float]:
    """AUC of ours minus that of another, mean over seeds, with its 95 % interval over images drawn again."""
    seeds = []
    for path in paths:
        with np.load(path.with_suffix(".npz")) as arrays:
            seeds.append([arrays[name] for name in ("wrong", f"{OURS}: {OURS}", ": ".join(other))])

    def lead(rows: np.ndarray) -> float:
        pairs = [(ranking_auc(o[rows], w[rows]), ranking_auc(t[rows], w[rows])) for w, o, t in seeds]
        return float(np.mean([one - two for one, two in pairs if one is not None and two is not None]))

    generator, count = np.random.default_rng(0), len(seeds[0][0])
    draws = [lead(generator.integers(count, size=count)) for _ in range(RESAMPLES)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"mean": lead(np.arange(count)), "low": float(low), "high": float(high)}


def format_tables(rows: Sequence[Mapping[str, Any]], *, seeds: Sequence[int]) -> str:
    """AUC, precision at the true count, and the labels called wrong, as three tables in Markdown."""
    over = f"mean ± deviation over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    ranked = ["dataset", "noise", "ours", *(f"{name} (A)" for name in RANKINGS), "cleanlab (B)", "best of (B)"]
    called = ["dataset", "noise", "way", "called wrong", "estimate", "precision", "recall", "seconds"]
    return "\n\n".join([
        f"**Finding wrong labels, area under the ROC curve**: {over}, in %. (A) are cleanlab's rankings of our "
        "confidences; (B) is its own way, ranked by self-confidence, and by what ranks best. Points that ours "
        "leads by, with their 95 % interval over images for these seeds",
        format_table([*ranked, "ours leads (B) by", "and its best by"], [
            [*_ranked(row, "auc"), *(format_interval(_hundredfold(lead)) for lead in row["leads"].values())]
            for row in rows
        ]),
        f"**Share of wrong labels among the most suspicious ones, as many as are wrong**: {over}, in %",
        format_table(ranked, [_ranked(row, "precision") for row in rows]),
        f"**Labels called wrong**: {over}, in % of all labels, with the share of wrong ones as estimated; and "
        "seconds of processor time, (A) without those of the confidences",
        format_table(called, [line for row in rows for line in _called(row)]),
    ])  # fmt: skip


def _called(row: Mapping[str, Any]) -> list[list[str]]:
    """Lines of the table of labels called wrong."""
    scaling = row["default"][0]
    lines = []
    for route, name in {OURS: "ours", SAME: "cleanlab (A)", scaling: f"cleanlab (B), {scaling}"}.items():
        found = row["routes"][route]
        numbers = [_percent(found[key]) for key in ("called", "rate", "precision", "recall")]
        lines.append([row["dataset"], row["noise"], name, *numbers, f"{found['seconds']['mean']:.1f}"])
    return lines


def _ranked(row: Mapping[str, Any], key: str) -> list[str]:
    """The cells of a table of rankings."""
    routes = row["routes"]
    same = [_percent(routes[SAME]["rankings"][name][key]) for name in RANKINGS]
    default, best = (
        _percent(routes[route]["rankings"][name][key]) for route, name in (row["default"], row["best"])
    )
    named = [f"{default} {row['default'][0]}", f"{best} {row['best'][1]}"]
    return [row["dataset"], row["noise"], _percent(routes[OURS]["rankings"][OURS][key]), *same, *named]


def _percent(value: Mapping[str, float]) -> str:
    return format_deviation(_hundredfold(value))


def _hundredfold(values: Mapping[str, float]) -> dict[str, float]:
    return {name: 100 * value for name, value in values.items()}


if __name__ == "__main__":
    main()
