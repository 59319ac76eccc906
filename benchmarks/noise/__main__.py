"""Comparison of losses and of the default recipe under label noise, on any dataset.

Datasets x noise x methods x widths x seeds on frozen features, beside the untrained baselines. The losses have their
papers' options. The same command continues after a stop and skips the trainings that have a record. Every table is
written to OUT/results as Markdown and JSON.

    python -m benchmarks.noise --out bench/grid
    python -m benchmarks.noise --out bench/grid --dataset clothing-seen --method spa --option lambda_=0.075
    python -m benchmarks.noise --out bench/cub --dataset cub-200-2011:CUB_200_2011 --backbone resnet50 \\
        --weights imagenet --noise uniform:0.1 --noise uniform:0.5 --width 512
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from benchmarks.common.graph_features import RUNTIMES
from benchmarks.common.record import digest, ending_in_words, find_weights, print_machine, write_record
from benchmarks.noise.features import prepare_features
from benchmarks.noise.grid import CLEAN, RECIPE, GridFolder, list_cells, name_set, read_noise, run_cells, short_name
from benchmarks.noise.reports import format_rows, summarise
from benchmarks.noise.splits import SPLITS
from index.errors import InputError
from index.threads import usable_cores
from training.options.config import POOLINGS, VIEWS
from training.options.losses import METHODS, RIVALS
from training.options.resolve import resolve_input

DEFAULT_METHODS = (RECIPE, "spa", "proxy-anchor", "proxy-nca", "multi-similarity", "adaptive-proxy-anchor", *RIVALS)
SAID = "mean ± deviation over seeds; 95 % over classes and seeds of R@1 and of the lead of the first row"
DEFAULT_NOISES = ("uniform:0.3", CLEAN, "nearest-class:0.3", "uniform:0.5")


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of features, trainings and tables")
    datasets = f"{', '.join(SPLITS)}, PROTOCOL:FOLDER or folder:TRAIN:TEST (default: tiny-imagenet)"
    add("--dataset", action="append", metavar="NAME", help=datasets)
    add("--noise", action="append", metavar="clean|KIND:P", help=f"default: {', '.join(DEFAULT_NOISES)}")
    methods = f"default: {', '.join(DEFAULT_METHODS)}"
    add("--method", action="append", choices=sorted((RECIPE, *METHODS)), metavar="NAME", help=methods)
    options = "of the methods that train, in place of their recipe's, such as alpha=8; may be repeated"
    add("--option", action="append", type=read_option, default=[], metavar="NAME=NUMBER", help=options)
    add("--width", action="append", type=int, metavar="D", help="default: 64 and 512")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--backbone", default="mobilenet_v2", help="as `retrieval train` takes it")
    add("--weights", help="as `retrieval train` takes them (default: the backbone's in RETRIEVAL_SHARED)")
    add("--backend", choices=RUNTIMES, default="torch", help="runtime that computes the features")
    add("--resize", type=int, help="stretch images to this many pixels a side (default: as the backbone has it)")
    add("--crop", type=int, help="centre crop to this many (default: as the backbone has it)")
    add("--view", choices=VIEWS, default="crop", help="as `retrieval train` takes it, for all methods alike")
    add("--pooling", choices=POOLINGS, default="own", help="as `retrieval train` takes it, for all methods alike")
    add("--cache", type=Path, help="folder of backbone features and unpacked images (default OUT/cache)")
    add("--workers", type=int, default=usable_cores(), help="processes of one thread each (default: one a core)")
    options = parser.parse_args(arguments)
    options.dataset = options.dataset or ["tiny-imagenet"]
    options.noise = options.noise or list(DEFAULT_NOISES)
    options.width = options.width or [64, 512]
    options.method = options.method or list(DEFAULT_METHODS)
    if min(*options.width, options.workers) < 1:
        parser.error("--width and --workers must be at least 1")
    for noise in options.noise:
        try:
            read_noise(noise)
        except InputError as error:
            parser.error(f"--noise {noise}: {error}")
    return options


def read_option(text: str) -> tuple[str, float]:
    """Name and value of an option of training."""
    name, _, value = text.partition("=")
    return name.replace("-", "_"), float(value)


@ending_in_words("noise")
def main(arguments: list[str] | None = None) -> None:
    """Compute features, run the trainings that are missing, print and write the tables."""
    options = parse_options(arguments)
    folder = GridFolder(options.out)
    sizes = {name: getattr(options, name) for name in ("resize", "crop", "view", "pooling")}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    weights = find_weights(options.weights, backbone=options.backbone)
    for dataset in options.dataset:
        prepare_features(
            dataset,
            folder.features(dataset),
            cache=options.cache or options.out / "cache",
            backbone=options.backbone,
            weights=str(weights),
            backend=options.backend,
            sizes=resolve_input(options.backbone, **sizes),
            workers=options.workers,
        )
    given = {"seeds": options.seeds, "options": dict(options.option)}
    tables = {
        each: {method: list_cells(method, *each, **given) for method in options.method}
        for each in itertools.product(options.dataset, options.noise, options.width)
    }
    cells = [cell for rows in tables.values() for each in rows.values() for cell in each]
    run_cells(folder, cells, workers=options.workers)
    print_machine(options.seeds)
    for (dataset, noise, width), rows in tables.items():
        summary = summarise(folder, dataset, rows)
        title = (
            f"**{short_name(dataset)}, {noise}, {width}-d**, in %, seeds {', '.join(map(str, options.seeds))}: {SAID}"
        )
        text = f"{title}\n\n{format_rows(summary)}"
        print(f"\n{text}")
        others = digest([options.method, options.seeds, options.option])  # tells other tables apart
        path = options.out / "results" / f"{name_set(dataset, noise, f'{width}d', others)}.json"
        write_record(path, settings=vars(options), results={"rows": summary}, text=text)


if __name__ == "__main__":
    main()
