"""What ships after the trial, on small random subsets: is it ever below a method without training by more than chance?

Each subset draws classes and images of one dataset's training part, makes 30 % of the labels wrong in every other one,
runs `retrieval train`'s trial, trains what it chose on the whole subset, and searches test classes that no part of it
has seen. Beside it stand the same recipe without the choice, and every rival of equal width.

    python -m benchmarks.noise.shipping --out bench/crop --dataset cars --dataset clothing-disjoint
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.parallel import run_parallel
from benchmarks.common.record import ending_in_words, print_machine, write_json, write_record
from benchmarks.common.tables import format_table
from benchmarks.noise.cells import GridFolder
from benchmarks.noise.feature_sets import FeatureSet, load_features, prepare_usual_features
from benchmarks.noise.grid import train_run
from index.arrays import Labels
from index.evaluation.comparison import paired_bootstrap
from index.evaluation.metrics import Scores
from index.threads import usable_cores
from training.head.untrained import LabelledFeatures, fit_rivals
from training.label_noise.noise import add_uniform_noise
from training.options.config import TrainConfig
from training.options.resolve import resolve
from training.run.trial import REFERENCE, TRAINED, TrialData, run_trial
from training.run.validate import ValidationSet, embed_features

CLASSES, IMAGES, TEST_CLASSES = (6, 20), (8, 30), 20
WRONG = 0.3


def draw_subset(features: FeatureSet, *, seed: int) -> tuple[LabelledFeatures, ValidationSet]:
    """Images that train, of 6 to 20 classes with 8 to 30 each, and what is searched; odd seeds have wrong labels."""
    chance = np.random.default_rng(seed)
    count = min(int(chance.integers(*CLASSES, endpoint=True)), len(features.classes))
    rows = []
    for label in chance.choice(len(features.classes), count, replace=False):
        of_class = chance.permutation(np.flatnonzero(features.train_labels == label))
        rows.append(of_class[: chance.integers(*IMAGES, endpoint=True)])
    chosen = np.sort(np.concatenate(rows))
    labels = np.unique(features.train_labels[chosen], return_inverse=True)[1].astype(np.int64)
    if seed % 2:
        labels = add_uniform_noise(labels, rate=WRONG, class_count=count, seed=seed)
    known = np.unique(features.test_labels)
    tested = np.isin(features.test_labels, chance.choice(known, min(TEST_CLASSES, len(known)), replace=False))
    is_gallery = None if features.is_gallery is None else features.is_gallery[tested]
    validation = ValidationSet(features.test[tested], features.test_labels[tested], is_gallery, ks=(1,))
    return LabelledFeatures(features.train[chosen], labels), validation


def run_subset(folder: GridFolder, dataset: str, seed: int, width: int, out: Path) -> None:
    """Write the record of one subset."""
    images, validation = draw_subset(load_features(folder.features(dataset)), seed=seed)
    config = resolve(weights="none", embedding_dim=min(width, len(images.labels) // 2), seed=seed)
    trial = run_trial(TrialData(images.features, images.labels), config=config, device=torch.device("cpu"))
    hits, labels = _search(images, validation, config=config, hold=trial.hold)
    ships = trial.better_rival or TRAINED
    against = {
        name: paired_bootstrap(hits[ships], found, seed=seed, clusters=labels)
        for name, found in hits.items()
        if name not in (ships, REFERENCE)
    }
    record = {
        "dataset": dataset, "seed": seed, "images": len(images.labels), "classes": int(images.labels.max()) + 1,
        "wrong": WRONG if seed % 2 else 0.0, "ships": ships, "hold": trial.hold,
        "recall_at_1": {name: float(found.mean()) for name, found in hits.items()},
        "against": {name: [found.mean, found.low, found.high] for name, found in against.items()},
    }  # fmt: skip
    write_json(out, record)


def _search(
    images: LabelledFeatures, validation: ValidationSet, *, config: TrainConfig, hold: float | None
) -> tuple[dict[str, Scores], Labels]:
    """Hits of the trained head and of every rival, and the classes of the queries."""
    embedding = replace(config.embedding, hold=hold)
    count = int(images.labels.max()) + 1
    trained, _ = train_run(
        images.features, torch.from_numpy(images.labels), class_count=count,
        config=replace(config, embedding=embedding), beliefs=None,
    )  # fmt: skip
    heads = {TRAINED: trained, **fit_rivals(images, embedding_dim=config.embedding.width)}
    scores = {name: validation.score(embed_features(head, validation.features)) for name, head in heads.items()}
    return {name: found.hits[1] for name, found in scores.items()}, scores[TRAINED].labels


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How often what ships is clearly below a rival, and the mean Recall@1 of it and of every method."""
    rivals = [name for name in records[0]["recall_at_1"] if name not in (TRAINED, REFERENCE)]
    below = {name: sum(record["against"].get(name, [0, 0, 0])[2] < 0 for record in records) for name in rivals}
    means = {name: float(np.mean([r["recall_at_1"][name] for r in records])) for name in (TRAINED, *rivals)}
    ships = [record["ships"] for record in records]
    return {
        "subsets": len(records),
        "ships": float(np.mean([record["recall_at_1"][record["ships"]] for record in records])),
        "means": means,
        "clearly_below": below,
        "chosen": {name: ships.count(name) for name in sorted(set(ships))},
    }


def format_summary(summary: dict[str, Any]) -> str:
    """A table of every method."""
    rows = [["what ships", f"{100 * summary['ships']:.2f}", "", ""]]
    for name, mean in summary["means"].items():
        below = summary["clearly_below"].get(name, "")
        rows.append([name, f"{100 * mean:.2f}", str(summary["chosen"].get(name, 0)), str(below)])
    head = [
        "method",
        f"mean Recall@1 over {summary['subsets']} subsets",
        "ships in",
        "what ships is clearly below it in",
    ]
    return format_table(head, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of features, as of benchmarks.noise")
    parser.add_argument("--dataset", action="append", metavar="NAME", help="default: cars, clothing-disjoint")
    parser.add_argument("--subsets", type=int, default=10, help="of each dataset (default 10)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--workers", type=int, default=usable_cores())
    options = parser.parse_args(arguments)
    datasets = options.dataset or ["cars", "clothing-disjoint"]
    folder = GridFolder(options.out)
    with ending_in_words("shipping"):
        prepare_usual_features(folder, datasets, workers=options.workers)
        tasks = [
            (
                folder,
                dataset,
                seed,
                options.width,
                folder.path / "shipping" / f"{dataset}_{options.width}d_{seed}.json",
            )
            for dataset in datasets
            for seed in range(options.subsets)
        ]
        run_parallel(
            run_subset,
            [task for task in tasks if not task[-1].exists()],
            "subsets",
            workers=options.workers,
            threads=1,
        )
        print_machine(list(range(options.subsets)))
        summary = summarise([json.loads(task[-1].read_text()) for task in tasks])
        text = format_summary(summary)
        print(f"\n{text}")
        name = "_".join(["shipping", *datasets, f"{options.width}d"])
        write_record(folder.results / f"{name}.json", settings=vars(options), results=summary, text=text)


if __name__ == "__main__":
    main()
