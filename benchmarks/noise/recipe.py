"""Where the default recipe of `retrieval train` comes from: every part of it against what else could be done there.

Nothing here sees a test image. The training part of each dataset is split as `retrieval train` does for its trial
(`training.run.trial.split_for_trial`, by the labels as given, wrong ones included): U is Recall@1 among images of
classes held out, S among images held out of the classes that train, both judged by the labels before the noise, and
averaged over the folds (Tiny-ImageNet: two draws). One JSON file a head below OUT/recipe; a stopped command goes on.

    python -m benchmarks.noise.recipe --out bench/grid
    python -m benchmarks.noise.recipe --out bench/grid --noise clean --noise uniform:0.5 --variation recipe
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.parallel import run_parallel
from benchmarks.common.record import ending_in_words, print_machine, write_record, write_with_record
from benchmarks.common.tables import format_table
from benchmarks.noise.cells import GridFolder, LabelSet, digest, file_name, short_name
from benchmarks.noise.feature_sets import prepare_usual_features
from benchmarks.noise.grid import load_label_set
from benchmarks.noise.options import make_grid_parser, parse_grid_options
from benchmarks.noise.recipe_heads import MAKERS, TrainingPart
from benchmarks.noise.recipe_variations import RECIPE_NAME, list_variations
from benchmarks.noise.reports import lead_in_points
from index.arrays import Floats, normalise_rows
from training.head.embedding_heads import Head
from training.run.trial import Split, split_for_trial
from training.run.validate import ValidationSet, embed_features

DATASETS, NOISES, WIDTHS = ("clothing-seen", "tiny-imagenet"), ("uniform:0.3",), (64, 512)
PARTS = {"U": "unseen", "S": "seen"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One variation on one split: its name, its width, and all its options, resolved."""

    labels: LabelSet
    split: int
    variation: str
    width: int
    options: dict[str, Any]

    def path(self, folder: GridFolder) -> Path:
        """The JSON record; hits by query stand beside it."""
        parts = [self.labels.name, f"split{self.split}", self.variation, f"{self.width}d"]
        return folder.path / "recipe" / f"{file_name(*parts)}_{digest(asdict(self))}.json"


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    dataset = f"as there (default: {', '.join(DATASETS)})"
    parser = make_grid_parser(__doc__, dataset=dataset, noises=NOISES)
    add = parser.add_argument
    add("--width", action="append", type=int, metavar="D", help="default: 64 and 512")
    add("--seeds", type=int, nargs="+", default=[0], help="of noise and training (default: 0)")
    add("--variation", action="append", choices=list(list_variations()), metavar="NAME",
        help="a row of the table, beside that of the recipe (default: all)")  # fmt: skip
    options = parse_grid_options(parser, arguments, dataset=DATASETS, noise=NOISES, width=WIDTHS)
    chosen = {RECIPE_NAME, *(options.variation or list_variations())}
    options.variation = [name for name in list_variations() if name in chosen]
    if min(options.width) < 2 or options.workers < 1:
        parser.error("--width must be at least 2, --workers at least 1")
    return options


def main(arguments: list[str] | None = None) -> None:
    with ending_in_words("recipe"):
        run(parse_options(arguments))


def run(options: argparse.Namespace) -> None:
    """Prepare, train what is missing, and report a table for every noise."""
    folder = GridFolder(options.out)
    prepare_usual_features(folder, options.dataset, workers=options.workers)
    sets = [LabelSet(*each) for each in itertools.product(options.dataset, options.noise, options.seeds)]
    attempts = [attempt for labels in sets for attempt in list_attempts(folder, labels, options)]
    run_parallel(run_split, _list_tasks(folder, attempts), "splits", workers=options.workers, threads=1)
    print_machine(options.seeds)
    for noise in options.noise:
        summary = summarise(folder, [attempt for attempt in attempts if attempt.labels.noise == noise])
        text = format_recipe(summary, noise=noise, seeds=options.seeds)
        print(f"\n{text}")
        asked = [options.dataset, options.width, options.seeds, options.variation]
        name = file_name("recipe", noise, digest(asked))
        record = folder.results / f"{name}.json"
        write_record(record, settings=vars(options), results={"rows": summary}, text=text)


def list_attempts(folder: GridFolder, labels: LabelSet, options: argparse.Namespace) -> list[Attempt]:
    """All that is trained on a noisy labelling, in the order of the table."""
    noisy = load_label_set(folder, labels)[1]
    attempts = []
    for number, split in enumerate(_list_splits(noisy)):
        classes = len(np.unique(noisy[split.train]))
        for name, width in itertools.product(options.variation, options.width):
            described = list_variations()[name].describe(class_count=classes, width=width)
            attempts.append(Attempt(labels, number, name, width, described))
    return attempts


def _list_splits(noisy: np.ndarray) -> list[Split]:
    """All folds; where classes are many and held out once, two draws of them."""
    splits = list(split_for_trial(noisy, seed=0))
    return splits if len(splits) > 1 else [*splits, *split_for_trial(noisy, seed=1)]


def _list_tasks(folder: GridFolder, attempts: Sequence[Attempt]) -> list[tuple[GridFolder, list[Attempt]]]:
    """Those without a record, in one task a split."""
    groups: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if not attempt.path(folder).exists():
            groups.setdefault(f"{attempt.labels.name}, {attempt.split}", []).append(attempt)
    return [(folder, group) for group in groups.values()]


def run_split(folder: GridFolder, attempts: Sequence[Attempt]) -> None:
    """Make the heads of one split and write their records."""
    first, variations = attempts[0], list_variations()
    features, noisy = load_label_set(folder, first.labels)
    split = _list_splits(noisy)[first.split]
    part = TrainingPart(features.train[split.train], noisy[split.train], seed=first.labels.seed)
    sets = {
        name: ValidationSet(features.train[rows], features.train_labels[rows], ks=(1,))
        for name, rows in (("unseen", split.unseen), ("seen", split.seen))
    }
    for attempt in attempts:
        started = time.perf_counter()
        variation = variations[attempt.variation]
        heads = MAKERS[variation.make](part, variation, attempt.width)
        seconds = time.perf_counter() - started
        hits = {name: one.score(_embed(heads, one.features)).hits[1].astype(bool) for name, one in sets.items()}
        record = {
            "attempt": asdict(attempt), "training_images": len(split.train), "classes": part.class_count,
            "seconds": seconds, "queries": {name: len(found) for name, found in hits.items()},
            "recall_at_1": {name: float(found.mean()) for name, found in hits.items()},
        }  # fmt: skip
        write = partial(np.savez_compressed, **hits)
        write_with_record(attempt.path(folder), record, write, suffix=".npz")


def _embed(heads: Sequence[Head], features: Floats) -> Floats:
    """(N, D) unit rows: the heads' side by side, each with the same share of the length."""
    return normalise_rows(np.concatenate([embed_features(head, features) for head in heads], axis=1))


def _read_hits(path: Path) -> dict[str, np.ndarray]:
    with np.load(path.with_suffix(".npz")) as stored:
        return {name: stored[name].astype(np.float64) for name in stored}


def summarise(folder: GridFolder, attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """One row a variation: by dataset and width, U and S as mean over the folds, and points ahead of the recipe."""
    places: dict[tuple[str, str, int], list[Path]] = {}
    for attempt in attempts:
        key = (attempt.variation, attempt.labels.dataset, attempt.width)
        places.setdefault(key, []).append(attempt.path(folder))
    rows: dict[str, dict[str, Any]] = {}
    for (name, dataset, width), paths in places.items():
        row = rows.setdefault(name, {"group": list_variations()[name].group, "name": name, "found": []})
        recipe = places[RECIPE_NAME, dataset, width]
        found = {letter: _compare(paths, recipe, part) for letter, part in PARTS.items()}
        row["found"].append({"dataset": short_name(dataset), "width": width, **found})
    return list(rows.values())


def _compare(paths: Sequence[Path], recipe: Sequence[Path], part: str) -> dict[str, float]:
    """Mean Recall@1 over folds, and the lead over the recipe on all queries with its 95 % interval, in points."""
    own, others = ([_read_hits(path)[part] for path in each] for each in (paths, recipe))
    lead = lead_in_points(np.concatenate(own), np.concatenate(others))
    recall = 100 * float(np.mean([hits.mean() for hits in own]))
    return {"recall": recall, "lead": lead["mean"], "low": lead["low"], "high": lead["high"]}


def format_recipe(rows: Sequence[dict[str, Any]], *, noise: str, seeds: Sequence[int]) -> str:
    """Markdown: a row a variation, U and S of every dataset and width."""
    columns = [(letter, found) for found in rows[0]["found"] for letter in PARTS]
    title = (
        f"**The recipe and one change each**: {noise}, seed {', '.join(map(str, seeds))}, Recall@1 in %, mean over "
        "folds; U: classes held out, S: images held out, judged by the labels before the noise. + and -: better and "
        "worse than the recipe by more than chance in the choice of queries explains (95 %)"
    )
    head = ["part", "variation", *(f"{found['dataset']} {found['width']}-d {letter}" for letter, found in columns)]
    lines = [
        [row["group"], row["name"], *(_cell(found[letter]) for found in row["found"] for letter in PARTS)]
        for row in rows
    ]
    return f"{title}\n\n{format_table(head, lines)}"


def _cell(found: dict[str, float]) -> str:
    sign = " +" if found["low"] > 0 else " -" if found["high"] < 0 else ""
    return f"{found['recall']:.2f}{sign}"


if __name__ == "__main__":
    main()
