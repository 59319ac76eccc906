"""What the methods of an experiment find for the same queries, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.noise.cells import GridFolder, short_name
from benchmarks.noise.experiments import Experiment
from benchmarks.noise.feature_sets import FeatureSet, load_features
from index.sources.items import Place
from index.text import printable_path
from retrieval_app.demo.sheets import QUERY, RIGHT, WRONG, Tile, draw_sheet

QUERIES = 3  # spread over those that the cells kept neighbours of


def draw_retrieval_grid(folder: GridFolder, experiment: Experiment, out: Path, *, methods: Sequence[str]) -> None:
    """Draw a few queries, each once a method, with what the method's first seed finds: green where labels agree.

    Args:
        folder: of the finished cells; their images must still be where they were.
        methods: names of rows, in the order in which they stand below each other.

    Raises:
        ImageError: an image has vanished.
    """
    cells = {row.name: row.cells[0] for row in experiment.rows}
    found = {name: folder.read(cells[name])["neighbours"] for name in methods}
    kept = sorted(map(int, found[methods[0]]))
    shown = [kept[i] for i in np.linspace(0, len(kept) - 1, num=min(QUERIES, len(kept))).round().astype(int)]
    features = load_features(folder.features(experiment.setting.dataset))
    rows = [_list_tiles(features, query, found[name][str(query)], name) for query in shown for name in methods]
    setting = experiment.setting
    title = f"{short_name(setting.dataset)}, {setting.noise}, {setting.width}-d: the query and its nearest images"
    draw_sheet([tile for row in rows for tile in row], out, columns=len(rows[0]), title=title)


def _list_tiles(features: FeatureSet, query: int, neighbours: Sequence[int], method: str) -> list[Tile]:
    def place(row: int) -> Place:
        return Place(Path(features.test_paths[row]), printable_path(features.test_paths[row]))

    label = features.test_names[query]
    tiles = [Tile(place(query), (f"query: {label}", method), QUERY)]
    for rank, row in enumerate((row for row in neighbours if row >= 0), start=1):
        other = features.test_names[row]
        tiles.append(Tile(place(row), (f"{rank}. {other}",), RIGHT if other == label else WRONG))
    return tiles
