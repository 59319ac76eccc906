"""Recall against rate as a picture, one query after another beside all at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.ann.ann_curves import MODES
from benchmarks.ann.ann_peers import OURS
from benchmarks.ann.ann_tables import TITLES
from benchmarks.noise.plots import make_figure

LEAST_RECALL = 0.9
# Okabe and Ito's colours, which the colour-blind tell apart.
LOOKS = {
    OURS: ("#D55E00", "o"), "hnswlib": ("#0072B2", "s"), "usearch": ("#009E73", "^"), "faiss HNSW": ("#CC79A7", "v"),
    "faiss IVF": ("#E69F00", "D"), "faiss Flat": ("#000000", "*"),
}  # fmt: skip


def plot_curves(results: Mapping[str, Any], out: Path) -> Figure:
    """Write the fronts of `measure_curves` with every other point small behind them."""
    figure = make_figure(500)
    panels = figure.subplots(1, len(MODES))
    for axes, mode in zip(panels, MODES, strict=True):
        _draw(axes, results, mode)
    figure.suptitle(f"{results['vectors']:,} vectors, {results['width']}-d", fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(out, format="png")
    return figure


def _draw(axes: Axes, results: Mapping[str, Any], mode: str) -> None:
    def plot(points: list[Mapping[str, float]], family: str, **look: Any) -> None:
        colour, marker = LOOKS[family]
        shown = [(point["recall"], point["rate"]) for point in points if point["recall"] >= LEAST_RECALL]
        axes.plot(*np.reshape(shown, (-1, 2)).T, marker=marker, color=colour, **look)

    for row in results["rows"]:
        every = [point[mode] for point in row["points"]]
        plot(every, row["family"], linestyle="none", markersize=3, alpha=0.35)
    for family, points in results["fronts"][mode].items():
        width, order = (2.2, 3) if family == OURS else (1.3, 2)
        plot(points, family, label=family, markersize=5, linewidth=width, zorder=order)
    axes.set_yscale("log")
    axes.set_xlim(LEAST_RECALL, 1.002)
    axes.set(title=TITLES[mode], xlabel="recall@10", ylabel="queries/s")
    axes.title.set_fontsize(10)
    axes.grid(color="#E3E3E3", linewidth=0.8, which="both")
    axes.set_axisbelow(True)
