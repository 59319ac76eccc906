"""Recall against rate as a picture, one query after another beside all at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.ann.ann_curves import MODES
from benchmarks.ann.ann_peers import OURS
from benchmarks.ann.ann_tables import TITLES
from benchmarks.noise.plots import DPI, WIDTH_PIXELS

LEAST_RECALL = 0.9
# Okabe and Ito's colours, which the colour-blind tell apart.
LOOKS = {
    OURS: ("#D55E00", "o"), "hnswlib": ("#0072B2", "s"), "usearch": ("#009E73", "^"), "faiss HNSW": ("#CC79A7", "v"),
    "faiss IVF": ("#E69F00", "D"), "faiss Flat": ("#000000", "*"),
}  # fmt: skip


def plot_curves(results: Mapping[str, Any], out: Path) -> Figure:
    """Write the fronts of `measure_curves` with every other point small behind them."""
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(WIDTH_PIXELS / DPI, 5), dpi=DPI, layout=layout)
    panels = figure.subplots(1, len(MODES))
    for axes, mode in zip(panels, MODES, strict=True):
        _draw(axes, results, mode)
    figure.suptitle(f"{results['vectors']:,} vectors, {results['width']}-d", fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(out, format="png")
    return figure


def _draw(axes: Axes, results: Mapping[str, Any], mode: str) -> None:
    for row in results["rows"]:
        colour, marker = LOOKS[row["family"]]
        shown = [point[mode] for point in row["points"] if point[mode]["recall"] >= LEAST_RECALL]
        axes.plot(
            [each["recall"] for each in shown], [each["rate"] for each in shown],
            linestyle="none", marker=marker, markersize=3, color=colour, alpha=0.35,
        )  # fmt: skip
    for family, points in results["fronts"][mode].items():
        colour, marker = LOOKS[family]
        front = [point for point in points if point["recall"] >= LEAST_RECALL]
        axes.plot(
            [point["recall"] for point in front], [point["rate"] for point in front], label=family, color=colour,
            marker=marker, markersize=5, linewidth=2.2 if family == OURS else 1.3, zorder=3 if family == OURS else 2,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlim(LEAST_RECALL, 1.002)
    axes.set(title=TITLES[mode], xlabel="recall@10", ylabel="queries/s")
    axes.title.set_fontsize(10)
    axes.grid(color="#E3E3E3", linewidth=0.8, which="both")
    axes.set_axisbelow(True)
