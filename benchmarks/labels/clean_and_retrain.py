"""Does it help to apply an audit's verdicts and train again? On labels as people gave them, and with mistakes added.

For every dataset, noise and seed the audit judges the training labels (without its search for copies), its verdicts are
applied as `--apply` does (change, or drop), and the same recipe trains on the labels as given and on the cleaned
ones. Recall@1 on the test part, whose labels nobody touched; intervals are over classes and seeds.

    python -m benchmarks.labels.clean_and_retrain --out bench/grid
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.record import print_machine, write_record
from benchmarks.common.tables import format_interval, format_row, format_table
from benchmarks.noise.cells import CLEAN, GridFolder, LabelSet
from benchmarks.noise.feature_sets import FeatureSet, list_query_classes, load_features
from benchmarks.noise.grid import load_label_set, train_run
from benchmarks.noise.reports import lead_in_points, over_seeds
from index.arrays import NO_ID
from index.labels.decisions import CHANGE, KEEP
from index.labels.judge import judge_labels
from index.labels.verdicts import give_verdicts
from training.options.machine import resolve_device
from training.options.resolve import resolve
from training.run.validate import ValidationSet, embed_features

RECIPES = {
    "default": {"recipe": "default"},
    "proxy-anchor, paper": {"recipe": "paper", "method": "proxy-anchor", "lr": 1e-3},
}
DATASETS, NOISES = ("clothing-seen", "clothing-disjoint"), (CLEAN, "uniform:0.3", "nearest-class:0.3")
SEEDS = (0, 1, 2)
HEAD = ("dataset", "labels", "trained with", "relabelled", "left out", "as given", "cleaned", "cleaned gains")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that benchmarks.noise has filled")
    parser.add_argument("--dataset", action="append", metavar="NAME", help=f"default: {', '.join(DATASETS)}")
    parser.add_argument("--noise", action="append", metavar="clean|KIND:P", help=f"default: {', '.join(NOISES)}")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args(arguments)
    print_machine(options.seeds)
    folder, rows = GridFolder(options.out), []
    print("\n" + format_table(HEAD, []))
    for dataset in options.dataset or DATASETS:
        for noise in options.noise or NOISES:
            for name, values in RECIPES.items():
                row = compare(folder, dataset, noise, values, width=options.width, seeds=options.seeds)
                rows.append({"dataset": dataset, "noise": noise, "trained_with": name, **row})
                print(_line(rows[-1]), flush=True)
    write_record(
        options.out / "results" / "clean-and-retrain.json", settings=vars(options), results={"rows": rows}
    )


def compare(
    folder: GridFolder, dataset: str, noise: str, recipe: dict[str, Any], *, width: int, seeds: list[int]
) -> dict[str, Any]:
    """Recall@1 (%) of one recipe on the labels as given and on the cleaned ones, over seeds."""
    hits: dict[str, list[np.ndarray]] = {"given": [], "cleaned": []}
    changed: list[tuple[float, float]] = []
    for seed in seeds:
        features, given = load_label_set(folder, LabelSet(dataset, noise, seed))
        cleaned = clean_labels(features, given)
        kept = cleaned != NO_ID
        changed.append((float((cleaned[kept] != given[kept]).mean()), float((~kept).mean())))
        for name, labels in (("given", given), ("cleaned", cleaned)):
            hits[name].append(_hits(features, labels, {**recipe, "embedding_dim": width, "seed": seed}))
    classes = list_query_classes(load_features(folder.features(dataset)))
    gain = lead_in_points(np.stack(hits["cleaned"]), np.stack(hits["given"]), classes=classes)
    del gain["p_value"]
    relabelled, left_out = map(float, np.mean(changed, axis=0))
    recalls = {name: over_seeds([100 * float(each.mean()) for each in found]) for name, found in hits.items()}
    return {"relabelled": relabelled, "left_out": left_out, **recalls, "gain": gain}


def clean_labels(features: FeatureSet, given: np.ndarray) -> np.ndarray:
    """(N,) labels after the verdicts; `NO_ID` for images that are left out."""
    judgement = judge_labels(features.train, given, count=len(features.classes))
    verdicts, new = give_verdicts(judgement, given, duplicate_of=np.full(len(given), NO_ID))
    kinds = np.array(verdicts)
    return np.select([kinds == KEEP, kinds == CHANGE], [given, new], default=NO_ID)


def _hits(features: FeatureSet, labels: np.ndarray, values: dict[str, Any]) -> np.ndarray:
    """(Q,) hits at K=1 of a head trained on the images that have a label."""
    config = resolve(weights="none", **values)
    kept = np.flatnonzero(labels != NO_ID)
    classes, numbers = np.unique(labels[kept], return_inverse=True)
    given = torch.from_numpy(numbers.astype(np.int64)).to(resolve_device("auto"))
    head, _ = train_run(features.train[kept], given, class_count=len(classes), config=config)
    validation = ValidationSet(features.test, features.test_labels, features.is_gallery, (1,))
    return validation.score(embed_features(head, features.test)).hits[1]


def _line(row: dict[str, Any]) -> str:
    values = [f"{row[name]['mean']:.2f} ± {row[name]['deviation']:.2f}" for name in ("given", "cleaned")]
    shares = [f"{row['relabelled']:.1%}", f"{row['left_out']:.1%}"]
    about = [row["dataset"], row["noise"], row["trained_with"]]
    return format_row([*about, *shares, *values, format_interval(row["gain"])])


if __name__ == "__main__":
    main()
