"""Fine-tuning of the network by loss under label noise, beside untrained embeddings of equal width.

Datasets x noise x losses x seeds, one after the other, each a run of `retrieval train` with the same options
of the network. The test images are searched with each run, and with the best untrained embedding of several views and
poolings. The same command continues after a stop and skips the runs that have a record.

    python -m benchmarks.network --out bench/network --dataset cars --noise uniform:0.3 --seeds 0 1 2
    python -m benchmarks.network --out bench/network --dataset groceries-seen --dataset groceries-disjoint --seeds 0 1 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.common.tables import format_deviation, format_interval, format_table
from benchmarks.network.cells import (
    BACKBONE,
    DEFAULT,
    FROZEN,
    RATES,
    VARIANTS,
    NetworkCell,
    judge_cell,
    run_cell,
    search_rivals,
)
from benchmarks.noise.grid import CLEAN, name_set
from benchmarks.noise.reports import lead_in_points, over_seeds
from index.threads import usable_cores
from training.options.finetuning import USUAL_BLOCKS

SEEING = ("crop:own", "both:layers")
NOISES = ("uniform:0.3", CLEAN)
HEADS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "exported": lambda cell: cell,
    "whitening": lambda cell: cell["closed_form"],
}
"""What was searched: the exported model, or its network with within-class whitening, the head of `--for new`."""
PLANNED = ("finetune", "max_per_class", "epochs", "lr", "image_size", "wise_ft_alpha", "view", "pooling")
OF_FROZEN = ("max_per_class", "view", "pooling", "backbone")  # what of that a head on the frozen backbone has
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 50, 190, 20, 45  # of the chart
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of runs, records and tables")
    add("--dataset", action="append", metavar="NAME", help="as of benchmarks.noise (default: cars)")
    add("--noise", action="append", metavar="KIND:P", help=f"default: {', '.join(NOISES)}")
    add("--variant", action="append", choices=tuple(VARIANTS), help=f"default: {DEFAULT}")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--finetune", default=f"last-{USUAL_BLOCKS}")
    add("--epochs", type=int, default=10)
    add("--lr", type=float, help="default: as `retrieval train`, or that of `cells.RATES`")
    add("--image-size", type=int, help="default: as `retrieval train`")
    add("--max-per-class", type=int, help="photos of a class that train (default: all)")
    add("--wise-ft-alpha", type=float, help="default: as `retrieval train`")
    add("--view", help="of the exported model (default: as `retrieval train`)")
    add("--pooling", help="default: as `retrieval train`")
    add("--backbone", default=BACKBONE, help="as of `retrieval train`")
    add("--width", type=int, default=512)
    add("--rival", action="append", metavar="VIEW:POOLING", help=f"default: {', '.join(SEEING)}")
    add("--weights", help="default: the backbone's of RETRIEVAL_SHARED")
    add("--cache", type=Path, help="folder of features and unpacked images (default OUT/cache)")
    options = parser.parse_args(arguments)
    options.dataset = options.dataset or ["cars"]
    options.noise = options.noise or list(NOISES)
    options.variant = options.variant or [DEFAULT]
    options.rival = [tuple(one.split(":")) for one in options.rival or SEEING]
    return options


def list_cells(options: argparse.Namespace, dataset: str, noise: str, variant: str) -> list[NetworkCell]:
    """One for every seed."""
    plan: dict[str, Any] = {name: getattr(options, name) for name in PLANNED}
    plan["lr"] = options.lr or RATES.get((variant, noise))
    if options.backbone != BACKBONE:
        plan["backbone"] = options.backbone
    given = tuple(
        (name, value) for name, value in plan.items() if value is not None and (variant != FROZEN or name in OF_FROZEN)
    )
    return [NetworkCell(dataset, noise, variant, seed, given) for seed in options.seeds]


@ending_in_words("network")
def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, and report."""
    options = parse_options(arguments)
    cache = options.cache or options.out / "cache"
    weights = find_weights(options.weights, backbone=options.backbone)
    shared = {"weights": weights, "width": options.width, "cache": cache}
    print_machine(options.seeds)
    for dataset in options.dataset:
        rivals = search_rivals(
            dataset, options.rival, options.out, **shared, backbone=options.backbone, workers=usable_cores()
        )
        curves: dict[str, dict[float, float]] = {variant: {} for variant in options.variant}
        for noise in options.noise:
            found = {
                variant: [
                    run_cell(cell, options.out, **shared) | judge_cell(cell, options.out, cache=cache)
                    for cell in list_cells(options, dataset, noise, variant)
                ]
                for variant in options.variant
            }
            report(options, dataset, noise, found, rivals)
            kind, _, share = noise.partition(":")
            for variant, cells in found.items() if kind in (CLEAN, "uniform") else ():
                recalls = [100 * HEADS["whitening"](cell)["recall"]["1"] for cell in cells]
                curves[variant][float(share or 0)] = np.mean(recalls)
        if all(len(line) > 1 for line in curves.values()):
            chart = draw_curve(curves, title=f"Recall@1 in %, {dataset}, head of --for new")
            (options.out / "results" / f"{name_set(dataset, options.backbone.replace('/', '-'))}.svg").write_text(
                chart, encoding="utf-8"
            )


def report(
    options: argparse.Namespace,
    dataset: str,
    noise: str,
    cells_of: Mapping[str, Sequence[Mapping[str, Any]]],
    rivals: Mapping[str, Mapping[str, Any]],
) -> None:
    """Print and write one table: of one dataset and noise, with the lead of the first variant under either head."""
    classes = np.array(next(iter(rivals.values()))["classes"])
    rows, results = [], {}
    for head, of in HEADS.items():
        found = {variant: [of(cell) for cell in cells] for variant, cells in cells_of.items()}
        found |= {name: [one] * len(options.seeds) for name, one in rivals.items()}
        hits = {name: np.array([one["hits"] for one in ones], dtype=np.float64) for name, ones in found.items()}
        ours = next(iter(hits))
        for name, ones in found.items():
            recall = over_seeds([100 * one["recall"]["1"] for one in ones])
            precision = over_seeds([100 * one["map_at_r"] for one in ones])
            lead = None if name == ours else lead_in_points(hits[ours], hits[name], classes=classes)
            scores = [format_deviation(recall), format_deviation(precision), format_interval(lead) if lead else ""]
            rows.append([head, name, *scores, *_describe_networks(cells_of.get(name, ()))])
            results[f"{name}, {head}"] = {"recall_at_1": recall, "map_at_r": precision, "lead": lead}
    kept = ("name", "seconds", "load")
    cells = [{name: cell[name] for name in kept} for cells in cells_of.values() for cell in cells]
    title = f"{dataset}, {noise}, {options.width}-d, in %, seeds {options.seeds}; 95 % over classes, seeds"
    columns = ["head", "variant", "Recall@1", "MAP@R", "the first leads by", "alpha", "minutes"]
    text = f"{title}\n\n{format_table(columns, rows)}"
    print(f"\n{text}", flush=True)
    plan = [f"{name}-{value}" for name in PLANNED if (value := getattr(options, name)) is not None]
    name = name_set(dataset, noise, "_".join(plan))
    file, results = options.out / "results" / f"{name}.json", {**results, "cells": cells}
    write_record(file, settings=vars(options), results=results, text=text)


def _describe_networks(cells: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Weights of interpolation and minutes of trainings, by seed; a frozen backbone has none."""
    networks = [cell["report"].get("finetuning") for cell in cells]
    weights = [f"{one['wise_ft_alpha']:g}" if one and one["selected"] else "frozen" for one in networks]
    return ", ".join(weights), ", ".join(f"{one['seconds'] / 60:.0f}" for one in networks if one)


def draw_curve(lines: Mapping[str, Mapping[float, float]], *, title: str) -> str:
    """A line for each name: Recall@1 in % by the share of wrong labels (0..1)."""
    values = [value for line in lines.values() for value in line.values()]
    shares = sorted({share for line in lines.values() for share in line})
    low, high = 5 * (min(values) // 5), 5 * (max(values) // 5 + 1)

    def place(share: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (share - shares[0]) / max(shares[-1] - shares[0], 1e-9)
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    def write(x: float, y: float, text: str, more: str = "") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{text}</text>'

    parts = [write(LEFT, 14, title, 'font-weight="bold"')]
    for value in range(int(low), int(high) + 1, 5):
        y = place(shares[0], value)[1]
        parts.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(write(LEFT - 8, y + 4, str(value), 'text-anchor="end"'))
    for share in shares:
        parts.append(write(place(share, low)[0], HEIGHT - 25, f"{100 * share:.0f} %", 'text-anchor="middle"'))
    parts.append(write(LEFT, HEIGHT - 6, "wrong labels, at random"))
    for number, (name, line) in enumerate(sorted(lines.items(), key=lambda one: -one[1][max(one[1])])):
        colour, points = COLOURS[number % len(COLOURS)], [place(*one) for one in sorted(line.items())]
        steps = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        parts.append(f'<polyline points="{steps}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(write(WIDTH - RIGHT + 12, TOP + 30 + 20 * number, name, f'fill="{colour}"'))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([start, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    main()
