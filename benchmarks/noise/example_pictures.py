"""What the methods of an experiment find for the same queries, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.noise.cells import GridFolder, short_name
from benchmarks.noise.experiments import Experiment
from benchmarks.noise.feature_sets import FeatureSet, load_features
from index.errors import InputError
from index.sources.items import Place
from index.text import printable_path
from retrieval_app.demo.sheets import QUERY, RIGHT, WRONG, Tile, draw_sheet


def draw_retrieval_grid(
    folder: GridFolder, experiment: Experiment, out: Path, *, methods: Sequence[str], queries: int = 3
) -> None:
    """Draw a few queries, each once a method, with what the method's first seed finds: green where labels agree.

    Args:
        folder: of the finished cells; their images must still be where they were.
        experiment: whose rows are shown.
        out: the PNG file.
        methods: names of rows, in the order in which they stand below each other.
        queries: how many, spread over those that the cells kept neighbours of.

    Raises:
        InputError: the experiment has no such row, or its cells kept no neighbours.
        ImageError: an image has vanished.
    """
    found = _read_neighbours(folder, experiment, methods=methods)
    kept = sorted(next(iter(found.values())))
    shown = [kept[i] for i in np.linspace(0, len(kept) - 1, num=min(queries, len(kept))).round().astype(int)]
    features = load_features(folder.features(experiment.setting.dataset))
    rows = [_list_tiles(features, query, found[name][query], method=name) for query in shown for name in methods]
    setting = experiment.setting
    title = f"{short_name(setting.dataset)}, {setting.noise}, {setting.width}-d: the query and its nearest images"
    draw_sheet([tile for row in rows for tile in row], out, columns=len(rows[0]), title=title)


def _read_neighbours(
    folder: GridFolder, experiment: Experiment, *, methods: Sequence[str]
) -> dict[str, dict[int, list[int]]]:
    """By method and query, the rows of its nearest test images."""
    cells = {row.name: row.cells[0] for row in experiment.rows}
    unknown = [name for name in methods if name not in cells]
    if unknown or not methods:
        raise InputError(f"{experiment.name} has no row named {unknown or methods}; it has {', '.join(cells)}")
    neighbours = {name: folder.read(cells[name])["neighbours"] for name in methods}
    if not all(neighbours.values()):
        raise InputError(
            f"{experiment.name}: its cells kept no neighbours, as those of a tuning do; nothing to draw"
        )
    return {
        name: {int(query): [row for row in rows if row >= 0] for query, rows in each.items()}
        for name, each in neighbours.items()
    }


def _list_tiles(features: FeatureSet, query: int, neighbours: Sequence[int], *, method: str) -> list[Tile]:
    label = features.test_names[query]
    tiles = [Tile(_place(features.test_paths[query]), (f"query: {label}", method), QUERY)]
    for rank, row in enumerate(neighbours, start=1):
        other = features.test_names[row]
        border = RIGHT if other == label else WRONG
        tiles.append(Tile(_place(features.test_paths[row]), (f"{rank}. {other}",), border))
    return tiles


def _place(path: str) -> Place:
    return Place(Path(path), printable_path(path))
