"""Losses of fine-tuning tuned alike: trials on training classes, then the best of each loss on the test classes.

Every loss gets the trials of `TRIALS` (learning rate x main option) on the sets `--tune`, whose searched classes are
training classes of the protocols. Of each loss the trial with the highest mean Recall@1 is trained on the sets
`--dataset` with every noise and seed. Each training is a run of `retrieval train`; the same command continues after a
stop. PRISM is given the true noise rate, as its authors do.

    python -m benchmarks.network.search --out bench/search
    python -m benchmarks.network.search --out bench/search --method spa --method proxy-nca --noise uniform:0.5 \\
        --seeds 0 1 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.common.tables import format_deviation, format_interval, format_table
from benchmarks.network.cells import BACKBONE, NetworkCell, run_cell
from benchmarks.noise.grid import CLEAN, name_set
from benchmarks.noise.reports import lead_in_points, over_seeds

TUNED, TESTED = ("cars-tune", "groceries-tune"), ("cars", "groceries-disjoint")
TUNING_NOISE, NOISES = "uniform:0.3", (CLEAN, "uniform:0.3", "uniform:0.5")
RATES = (1e-3, 2e-3)
OPTIONS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "spa": ({}, {"lambda_": 0.2, "beta": 30.0}, {"delta": 0.2}),
    "proxy-nca posteriors": ({"nca_scale": 0.0}, {"nca_scale": 12.0}),
    "proxy-nca": ({"nca_scale": 0.0}, {"nca_scale": 12.0}),
    "proxy-anchor": ({}, {"alpha": 16.0}),
    "multi-similarity": ({}, {"ms_beta": 30.0}),
    "procsim": ({}, {"procsim_base": "proxy-nca", "nca_scale": 0.0}),
    "prism": ({}, {"prism_base": "proxy-nca", "nca_scale": 0.0}),
}
"""Main options of each loss that are tried beside its paper's; `spa` and `posteriors` read label posteriors."""
TRIALS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    name: [{**options, "lr": lr, "wise_ft_alpha": share} for options in tried for lr in RATES for share in (0.5, 0.75)]
    for name, tried in OPTIONS.items()
}
OURS = "spa"


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of runs, records and tables")
    add("--tune", action="append", metavar="NAME", help=f"sets that choose (default: {', '.join(TUNED)})")
    add("--dataset", action="append", metavar="NAME", help=f"sets that test (default: {', '.join(TESTED)})")
    add("--noise", action="append", metavar="KIND:P", help=f"of the tests (default: {', '.join(NOISES)})")
    add("--method", action="append", choices=tuple(TRIALS), help="default: all")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the tests; trials have seed 0")
    add("--trials", type=int, help="only the first N of each loss")
    add("--epochs", type=int, default=10)
    add("--backbone", default=BACKBONE, help="as of `retrieval train`")
    add("--width", type=int, default=512)
    add("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    add("--cache", type=Path, help="folder of features and unpacked images (default OUT/cache)")
    options = parser.parse_args(arguments)
    options.tune = options.tune or list(TUNED)
    options.dataset = options.dataset or list(TESTED)
    options.noise = options.noise or list(NOISES)
    options.method = options.method or list(TRIALS)
    return options


def list_cell(
    method: str, trial: Mapping[str, Any], dataset: str, *, noise: str, seed: int, epochs: int, backbone: str
) -> NetworkCell:
    """One training with a trial's options."""
    variant, _, targets = method.partition(" ")
    plan = {"epochs": epochs, **({"targets": targets} if targets else {}), **trial}
    if backbone != BACKBONE:
        plan["backbone"] = backbone
    return NetworkCell(dataset, noise, variant, seed, tuple(plan.items()))


def choose_trials(options: argparse.Namespace, **shared: Any) -> dict[str, dict[str, Any]]:
    """Of each loss the trial with the highest mean Recall@1 over the tuning sets, with the scores of all."""
    chosen, same = {}, {"epochs": options.epochs, "backbone": options.backbone}
    for method in options.method:
        scores = []
        for trial in TRIALS[method][: options.trials]:
            cells = [list_cell(method, trial, dataset, noise=TUNING_NOISE, seed=0, **same) for dataset in options.tune]
            found = [100 * run_cell(cell, options.out, **shared)["recall"]["1"] for cell in cells]
            scores.append({"trial": dict(trial), "recall_at_1": found})
        chosen[method] = {"best": max(scores, key=lambda one: np.mean(one["recall_at_1"])), "trials": scores}
    return chosen


@ending_in_words("network.search")
def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, and report."""
    options = parse_options(arguments)
    weights = find_weights(options.weights, backbone=options.backbone)
    shared = {"weights": weights, "width": options.width, "cache": options.cache or options.out / "cache"}
    print_machine(options.seeds)
    chosen = choose_trials(options, **shared)
    rows = [
        [method, _describe(one["trial"]), *(f"{value:.1f}" for value in one["recall_at_1"])]
        for method, found in chosen.items()
        for one in found["trials"]
    ]
    print(format_table(["loss", "trial", *options.tune], rows), flush=True)
    write_record(options.out / "results" / "trials.json", settings=vars(options), results=chosen)
    for dataset in options.dataset:
        for noise in options.noise:
            report(options, dataset, noise, chosen, **shared)


def report(options: argparse.Namespace, dataset: str, noise: str, chosen: Mapping[str, Any], **shared: Any) -> None:
    """Print and write one table: of one dataset and noise."""
    same = {"epochs": options.epochs, "backbone": options.backbone}
    found = {
        method: [
            run_cell(
                list_cell(method, one["best"]["trial"], dataset, noise=noise, seed=seed, **same), options.out, **shared
            )
            for seed in options.seeds
        ]
        for method, one in chosen.items()
    }
    hits = {method: np.array([cell["hits"] for cell in cells], dtype=np.float64) for method, cells in found.items()}
    recall = {method: over_seeds([100 * cell["recall"]["1"] for cell in cells]) for method, cells in found.items()}
    classes = np.array(next(iter(found.values()))[0]["classes"])
    text = f"{dataset}, {noise}, {options.width}-d, Recall@1 in %, seeds {', '.join(map(str, options.seeds))}"
    leads = dict(_leads(hits, classes))
    rows = [
        [method, format_deviation(recall[method]), format_interval(leads[method]) if method in leads else ""]
        for method in found
    ]
    text += f"\n\n{format_table(['loss', 'Recall@1', f'{OURS} leads it by'], rows)}"
    print(f"\n{text}", flush=True)
    results = {"recall_at_1": recall, "leads": leads, "chosen": {name: one["best"] for name, one in chosen.items()}}
    name = name_set(dataset, noise, f"{options.epochs}epochs")
    write_record(options.out / "results" / f"{name}.json", settings=vars(options), results=results, text=text)


def _leads(hits: Mapping[str, np.ndarray], classes: np.ndarray) -> Iterator[tuple[str, Any]]:
    for method, found in hits.items():
        if method != OURS and OURS in hits:
            yield method, lead_in_points(hits[OURS], found, classes=classes)


def _describe(trial: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in trial.items()
    )


if __name__ == "__main__":
    main()
