"""Which method survives wrong labels? The papers' tables and ablations on any dataset, with the untrained baselines.

Datasets x noise x methods x widths x seeds on frozen features, in parallel processes, continued after a stop: the same
command skips what stands. Every method is tuned with the same number of trials on a part of the training data (classes
held out of it, judged by their labels before the noise), under the first noise; --settings paper takes the papers'
values instead. Every table lies as Markdown, JSON and picture in OUT/results, all of them in OUT/tables.md.

    python -m benchmarks.noise --out bench/grid --table 3
    python -m benchmarks.noise --out bench/grid --table 1 --table 2 --ablation batch --ablation margin
    python -m benchmarks.noise --out bench/grid --dataset clothing-disjoint --dataset clothing-seen --table 3
    python -m benchmarks.noise --out bench/grid --dataset groceries-seen --shape longtail:50 --noise clean --table 3
    python -m benchmarks.noise --out bench/cub --dataset cub-200-2011:CUB_200_2011 --backbone resnet50 \\
        --weights imagenet --noise uniform:0.1 --noise uniform:0.5 --width 512 --table 3
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.noise.cells import CLEAN, FILTERED, GUIDED, RECIPE, GridFolder, base_method, digest, result_name
from benchmarks.noise.example_pictures import draw_retrieval_grid
from benchmarks.noise.experiments import (
    ABLATIONS,
    PROCSIM,
    TABLES,
    UNWEIGHTED,
    Experiment,
    Setting,
    build,
    show_method,
    table_3,
)
from benchmarks.noise.feature_sets import prepare_features
from benchmarks.noise.grid import load_label_set, run_cells
from benchmarks.noise.hyper_parameters import TRIALS, tune
from benchmarks.noise.options import make_grid_parser, parse_grid_options
from benchmarks.noise.plots import plot_confidences, plot_experiment, plot_noise
from benchmarks.noise.reports import format_experiment, format_leads, format_noises, summarise_experiment
from benchmarks.noise.shapes import FULL, name_shape, tail_factor
from benchmarks.noise.splits import SPLITS
from index.errors import InputError
from index.file_hash import hash_file
from training.losses.make_loss import loss_class
from training.options.config import POOLINGS, VIEWS
from training.options.losses import LOSSES, METHODS, RIVALS, TRAINED_METHODS
from training.options.resolve import resolve_input

ALL_METHODS = (
    RECIPE, UNWEIGHTED, *METHODS, PROCSIM + GUIDED, *(method + FILTERED for method in METHODS if method not in RIVALS)
)  # fmt: skip
DEFAULT_METHODS = (
    RECIPE, UNWEIGHTED, "spa", "proxy-anchor", "proxy-anchor-filtered", "proxy-nca", "proxy-nca-filtered",
    "multi-similarity", "adaptive-proxy-anchor", "procsim", "superloss", *RIVALS,
)  # fmt: skip
SHOWN_METHODS = ("default", "spa", "class-whitened")  # in pictures of neighbours
DEFAULT_SEEDS = [0, 1, 2]
DEFAULT_NOISES = ("uniform:0.3", CLEAN, "nearest-class:0.3", "uniform:0.5")


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_grid_parser(
        __doc__, out="folder of features, cells, tables and pictures", noises=DEFAULT_NOISES, threads="",
        dataset=f"{', '.join(SPLITS)}, PROTOCOL:FOLDER or folder:TRAIN:TEST (default: tiny-imagenet)",
    )  # fmt: skip
    add = parser.add_argument
    add("--shape", action="append", metavar=f"{FULL}|longtail:FACTOR",
        help=f"of the training classes; longtail:50 leaves the rarest a 50th, 3 or more (default: {FULL})")  # fmt: skip
    add("--hierarchy", help="for semantic noise: a CSV of class,parent, or WordNet's data files")
    add("--method", action="append", choices=sorted(ALL_METHODS), metavar="NAME",
        help=f"default: {', '.join(DEFAULT_METHODS)}")  # fmt: skip
    add("--width", action="append", type=int, metavar="D", help="default: 64 and 512")
    add("--seeds", type=int, nargs="+", default=DEFAULT_SEEDS)
    table = "a table of the SPA paper; 1 of --method where given, 2 of spa alone"
    add("--table", action="append", choices=("1", "2", "3"), default=[], help=table)
    ablation = "an ablation of the papers; batch and width of --method where given"
    add("--ablation", action="append", choices=sorted(ABLATIONS), default=[], help=ablation)
    add("--settings", choices=("tuned", "paper"), default="tuned", help="of every method (default tuned)")
    add("--trials", type=int, default=TRIALS, help=f"of every method that is tuned, at least (default {TRIALS})")
    add("--backbone", default="mobilenet_v2")
    add("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    add("--resize", type=int, help="stretch images to this many pixels a side (default: as the backbone has it)")
    add("--crop", type=int, help="centre crop to this many (default: as the backbone has it)")
    add("--view", choices=VIEWS, default="crop", help="as `retrieval train` takes it, for all methods alike")
    add("--pooling", choices=POOLINGS, default="own", help="as `retrieval train` takes it, for all methods alike")
    add("--cache", type=Path, help="folder of backbone features and unpacked images (default OUT/cache)")
    add("--threads", type=int, default=1, help="of each process (default 1)")
    defaults = {"dataset": ["tiny-imagenet"], "noise": DEFAULT_NOISES, "width": [64, 512], "shape": [FULL]}
    options = parse_grid_options(parser, arguments, **defaults)
    for shape in options.shape:
        try:
            tail_factor(shape)
        except InputError as error:
            parser.error(f"--shape: {error}")
    options.own_methods = tuple(options.method or ())
    options.method = options.method or list(DEFAULT_METHODS)
    if not options.table and not options.ablation:
        parser.error("nothing to do: name a --table or an --ablation")
    if min(*options.width, options.workers, options.threads, options.trials) < 1:
        parser.error("--width, --workers, --threads and --trials must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> None:
    with ending_in_words("noisy_retrieval"):
        run(parse_options(arguments))


def run(options: argparse.Namespace) -> None:
    """Prepare, tune, train what is missing, and report."""
    folder = GridFolder(options.out, options.hierarchy)
    for method in options.method:
        if base_method(method) in LOSSES:
            loss_class(base_method(method))  # whether its package is there
    fix_hierarchy(folder)
    weights = str(find_weights(options.weights))
    sizes = {name: getattr(options, name) for name in ("resize", "crop", "view", "pooling")}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    for dataset in options.dataset:
        prepare_features(
            dataset, folder.features(dataset), cache=options.cache or options.out / "cache",
            backbone=options.backbone, weights=weights, workers=options.workers,
            sizes=resolve_input(options.backbone, **sizes),
        )  # fmt: skip
    tuned = tune_all(folder, options)
    experiments = list_experiments(options, tuned)
    run_cells(folder, [c for e in experiments for c in e.cells], workers=options.workers, threads=options.threads)
    print_machine(options.seeds)
    summaries = [report_experiment(folder, experiment, options=options) for experiment in experiments]
    draw_noises(folder, experiments, summaries, settings=options.settings)
    tables = [path.read_text() for path in sorted(folder.results.glob("*.md"))]
    (options.out / "tables.md").write_text("\n".join(tables))  # of this call and of those before it


def fix_hierarchy(folder: GridFolder) -> None:
    """Remember which hierarchy the folder's semantic noise walks: another one would be mixed up with it.

    Raises:
        InputError: the folder was begun with another.
    """
    if folder.hierarchy is None:
        return
    path, note = Path(folder.hierarchy), folder.path / "hierarchy.sha256"
    file = path / "data.noun" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such file; --hierarchy takes a CSV of class,parent or WordNet's dict folder")
    sha256 = hash_file(file)
    if note.exists() and note.read_text() != sha256:
        raise InputError(f"{path}: {folder.path} was begun with another hierarchy; choose another --out")
    folder.path.mkdir(parents=True, exist_ok=True)
    note.write_text(sha256)


def report_experiment(
    folder: GridFolder, experiment: Experiment, *, options: argparse.Namespace
) -> dict[str, Any]:
    """Print an experiment's table, and write it, its numbers and its picture to OUT/results; the numbers."""
    summary = summarise_experiment(folder, experiment)
    text = format_experiment(summary)
    print(f"\n{text}")
    setting = experiment.setting
    rows = [row.name for row in experiment.rows]
    usual = rows == list(map(show_method, DEFAULT_METHODS)) and options.seeds == DEFAULT_SEEDS
    unlike = "" if usual or experiment.name != "table-3" else digest([rows, options.seeds])
    parts = [setting.noise, *name_shape(setting.shape), f"{setting.width}d", options.settings]
    parts += [unlike] if unlike else []
    name = result_name(experiment.name, setting.dataset, *parts)
    write_record(folder.results / f"{name}.json", settings=vars(options), results=summary, text=text)
    plot_experiment(summary, folder.results / f"{name}.png")
    return summary


def draw_noises(
    folder: GridFolder, experiments: Sequence[Experiment], summaries: Sequence[dict[str, Any]], *, settings: str
) -> None:
    """What several tables show together: Recall@1 by noise; what one shows beside its numbers: who finds whom."""
    tables: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for experiment, summary in zip(experiments, summaries, strict=True):
        setting = experiment.setting
        if experiment.name == "table-3":
            tables.setdefault((setting.dataset, setting.width, setting.shape), []).append(summary)
            name = result_name(
                "grid", setting.dataset, setting.noise, *name_shape(setting.shape), f"{setting.width}d", settings
            )
            shown = [row.name for row in experiment.rows if row.name in SHOWN_METHODS]
            if shown:
                draw_retrieval_grid(folder, experiment, folder.results / f"{name}.png", methods=shown)
            draw_confidences(folder, experiment, settings=settings)
    if tables:
        every = [summary for found in tables.values() for summary in found]
        name = result_name("leads", *dict.fromkeys(dataset for dataset, *_ in tables), settings)
        (folder.results / name).with_suffix(".md").write_text(format_leads(every) + "\n")
    for (dataset, width, shape), found in tables.items():
        if len(found) > 1:
            name = result_name("noise", dataset, *name_shape(shape), f"{width}d", settings)
            (folder.results / f"{name}.md").write_text(format_noises(found) + "\n")
            plot_noise(found, folder.results / f"{name}.png")


def draw_confidences(folder: GridFolder, experiment: Experiment, *, settings: str) -> None:
    """Own-label confidences of right and wrong labels under Smooth Proxy-Anchor's smoothing function, first seed."""
    cells = [row.cells[0] for row in experiment.rows if row.name == "spa"]
    for cell in cells:
        features, noisy = load_label_set(folder, cell.labels)
        own = np.load(folder.confidences(cell.labels))[np.arange(len(noisy)), noisy]
        wrong = noisy != features.train_labels
        loss = cell.config().loss.options
        name = result_name(
            "confidences", cell.labels.dataset, cell.labels.noise, *name_shape(cell.labels.shape), settings
        )
        out = folder.results / f"{name}.png"
        plot_confidences(own[~wrong], own[wrong], out, lambda_=loss.lambda_, beta=loss.beta)


def tune_all(folder: GridFolder, options: argparse.Namespace) -> dict[tuple[str, int], dict[str, Any]]:
    """Settings by (dataset, width); empty with --settings paper."""
    if options.settings == "paper":
        return {}
    # Ablations, and the tables but 3, are of the first width and of methods of their own.
    others = TRAINED_METHODS if options.ablation or set(options.table) - {"3"} else ()
    tuned = {}
    for dataset, width in itertools.product(options.dataset, options.width):
        methods = sorted({*options.method, *(others if width == options.width[0] else ())})
        chosen = {"dataset": dataset, "width": width, "noise": options.noise[0], "methods": methods}
        chosen["trials"] = options.trials
        tuned[dataset, width] = tune(folder, **chosen, workers=options.workers, threads=options.threads)
    return tuned


def list_experiments(
    options: argparse.Namespace, tuned: dict[tuple[str, int], dict[str, Any]]
) -> list[Experiment]:
    """Table 3 of every dataset, noise, shape and width; the other tables and ablations under the first of each."""
    seeds, experiments = tuple(options.seeds), []

    def setting(dataset: str, shape: str, noise: str, width: int) -> Setting:
        return Setting(dataset, noise, width, seeds, tuned.get((dataset, width), {}), shape)

    if "3" in options.table:
        for each in itertools.product(options.dataset, options.shape, options.noise, options.width):
            experiments.append(table_3(setting(*each), options.method))
    for dataset in options.dataset:
        first = setting(dataset, options.shape[0], options.noise[0], options.width[0])
        for number in options.table:
            if number in TABLES:
                experiments.append(build(TABLES[number], first, methods=options.own_methods))
        experiments += [build(ABLATIONS[name], first, methods=options.own_methods) for name in options.ablation]
    return experiments


if __name__ == "__main__":
    main()
