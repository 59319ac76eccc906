"""An experiment's summary as a picture: curves, dots with error bars, or a heat map, 900 pixels wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle

from benchmarks.common.tables import format_deviation
from benchmarks.noise.cells import CLEAN, FILTERED
from benchmarks.noise.shapes import FULL, name_shape
from training.options.losses import RIVALS

Summary = Mapping[str, Any]
DPI, WIDTH_PIXELS = 100, 900
RECALL = "Recall@1 (%)"
DOTS = frozenset({"table-1", "confidence"})  # experiments whose rows are variants that K tells nothing new about
SYMBOLS = {"lambda": "λ (lambda)", "beta": "β (beta)", "alpha": "α (alpha)", "delta": "δ (delta)",
           "kappa": "κ (kappa)"}  # fmt: skip
# Okabe and Ito's colours, which the colour-blind tell apart; wine stands for their yellow, too pale on white.
LOOKS = {
    "spa": ("#D55E00", "o"), "proxy-anchor": ("#0072B2", "s"), "adaptive-proxy-anchor": ("#56B4E9", "D"),
    "proxy-nca": ("#009E73", "^"), "multi-similarity": ("#CC79A7", "v"), "procsim": ("#E69F00", "p"),
    "superloss": ("#882255", "h"), "raw": ("#000000", "o"), "pca": ("#555555", "s"), "pca-whitened": ("#8A8A8A", "^"),
    "pca-half-whitened": ("#6E6E6E", "D"), "class-whitened": ("#333333", "v"),
}  # fmt: skip
VARIANTS = (("-", None), ((0, (1, 1.2)), "P"), ((0, (5, 1.5, 1, 1.5)), "X"), ((0, (3, 1, 1, 1, 1, 1)), "*"))
RIGHT_LABELS, WRONG_LABELS, WEIGHT = "#0072B2", "#E69F00", "#000000"


def plot_experiment(summary: Summary, out: Path) -> Figure:
    """Write the picture that suits an experiment: by its axes, or else by what its rows are."""
    if len(summary["axes"]) == 2:
        return plot_grid(summary, out)
    if summary["axes"]:
        return plot_axis(summary, out)
    if summary["name"] in DOTS or len(summary["rows"][0]["recall"]) == 1:
        return plot_bars(summary, out)
    return plot_recall_curves(summary, out)


def plot_recall_curves(summary: Summary, out: Path) -> Figure:
    """Recall@K over K, one line a row; the legend gives Recall@1, the best first, as lines lie close together."""
    looks = _looks(summary["rows"])
    ks = [int(k) for k in summary["rows"][0]["recall"]]
    figure, axes = _start(summary, height=600)
    for row in sorted(summary["rows"], key=lambda row: -_recall_at_1(row)["mean"]):
        label = f"{row['name']}: {_recall_at_1(row)['mean']:.2f}"
        look = {**looks[row["name"]], "linewidth": 1.3, "markersize": 5}
        _draw_line(axes, ks, list(row["recall"].values()), label=label, look=look)
    axes.set_xscale("log", base=2)
    _set_ticks(axes, ks)
    axes.set(xlabel="K (nearest images looked at)", ylabel="Recall@K (%)")
    return _finish(figure, axes, out, legend_title=RECALL)


def plot_axis(summary: Summary, out: Path) -> Figure:
    """Recall@1 against the only axis, one line a row name."""
    looks = _looks(summary["rows"])
    figure, axes = _start(summary, height=480)
    for name, look in looks.items():
        rows = sorted((row for row in summary["rows"] if row["name"] == name), key=lambda row: row["at"])
        _draw_line(axes, [row["at"][0] for row in rows], list(map(_recall_at_1, rows)), label=name, look=look)
    values = sorted({row["at"][0] for row in summary["rows"]})
    if values[0] > 0 and values[-1] > 16 * values[0]:
        axes.set_xscale("log", base=2 if all(float(np.log2(value)).is_integer() for value in values) else 10)
    _set_ticks(axes, values)
    (name,) = summary["axes"]
    axes.set(xlabel=SYMBOLS.get(name, name), ylabel=RECALL)
    return _finish(figure, axes, out)


def plot_grid(summary: Summary, out: Path) -> Figure:
    """Recall@1 over two axes, the first one down, as a heat map with its numbers; a frame stands round the best."""
    down, across = (sorted({row["at"][axis] for row in summary["rows"]}) for axis in (0, 1))
    means = np.full((len(down), len(across)), np.nan)
    figure, axes = _start(summary, height=130 + 75 * len(down))
    for row in summary["rows"]:
        means[down.index(row["at"][0]), across.index(row["at"][1])] = _recall_at_1(row)["mean"]
    image = axes.imshow(means, cmap="cividis", aspect="auto")
    axes.grid(visible=False)
    for row in summary["rows"]:
        y, x = down.index(row["at"][0]), across.index(row["at"][1])
        found = _recall_at_1(row)
        colour = "white" if found["mean"] < (np.nanmin(means) + np.nanmax(means)) / 2 else "black"
        text = format_deviation(found).replace(" ±", "\n±")
        axes.text(x, y, text, ha="center", va="center", color=colour)
    y, x = divmod(int(np.nanargmax(means)), len(across))
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=3))
    axes.set_xticks(range(len(across)), [f"{value:g}" for value in across])
    axes.set_yticks(range(len(down)), [f"{value:g}" for value in down])
    ylabel, xlabel = (SYMBOLS.get(name, name) for name in summary["axes"])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    figure.colorbar(image, label=RECALL)
    return _save(figure, out)


def plot_bars(summary: Summary, out: Path) -> Figure:
    """Recall@1 of every row as a dot with its error bar and number: rows differ by less than bars from 0 would show."""
    rows, looks = summary["rows"], _looks(summary["rows"])
    figure, axes = _start(summary, height=130 + 34 * len(rows))
    for y, row in enumerate(rows):
        found = _recall_at_1(row)
        look = {**looks[row["name"]], "markersize": 9}
        axes.errorbar(found["mean"], y, xerr=found["deviation"], capsize=4, **look)
        place = (found["mean"] + found["deviation"], y)
        axes.annotate(f"{found['mean']:.2f}", place, (9, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.set_xlabel(RECALL)
    axes.grid(axis="y", visible=False)
    return _save(figure, out)


def plot_noise(summaries: Sequence[Summary], out: Path) -> Figure:
    """Recall@1 of every method by noise, clean labels first; methods that know no noise are lines across.

    Summaries are of one experiment on one dataset at one width, one a noise.
    """
    ordered = sorted(summaries, key=lambda summary: summary["noise"] != CLEAN)
    looks = _looks([row for summary in ordered for row in summary["rows"]])
    trained = [name for name in looks if name not in RIVALS]
    about = {**ordered[0], "title": "Recall@1 by noise in the training labels", "noise": None}
    figure, axes = _start(about, height=540)
    for name, look in looks.items():
        offset = (trained.index(name) + 0.5) / len(trained) * 0.84 - 0.42 if name in trained else 0.0
        rows = [(group, row) for group, summary in enumerate(ordered) for row in summary["rows"]]
        points = [(group + offset, _recall_at_1(row)) for group, row in rows if row["name"] == name]
        xs, found = zip(*points, strict=True)
        if name in trained:
            _draw_line(axes, xs, found, label=name, look={**look, "linestyle": "none", "markersize": 8})
        else:
            across = [edge for x in xs for edge in (x - 0.5, x, x + 0.5)]
            means = np.repeat([each["mean"] for each in found], 3)
            axes.plot(across, means, label=name, markevery=(1, 3), **look)
    for group in range(1, len(ordered)):
        axes.axvline(group - 0.5, color="#BBBBBB", linewidth=1)
    axes.set_xticks(range(len(ordered)), [summary["noise"] for summary in ordered])
    axes.set_xlim(-0.5, len(ordered) - 0.5)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="noise (kind : share of wrong labels)", ylabel=RECALL)
    return _finish(figure, axes, out)


def plot_confidences(
    confidences_of_right: np.ndarray, confidences_of_wrong: np.ndarray, out: Path, *, lambda_: float, beta: float
) -> Figure:
    """How confident the module is in right and in wrong labels, under the weight that papers/000 Eq. 7 gives them.

    Args:
        confidences_of_right: (n,) confidences of right labels in themselves, 0..1.
        confidences_of_wrong: (m,) those of wrong labels.
        lambda_, beta: of the smoothing function w(c) = 1 / (1 + exp(-beta (c - lambda))).
    """
    figure, axes = _start({"title": "Confidence of training images in their own label"}, height=480)
    bins = np.linspace(0, 1, 51).tolist()
    both = (("right", confidences_of_right, RIGHT_LABELS), ("wrong", confidences_of_wrong, WRONG_LABELS))
    for what, values, colour in both:
        label = f"{what} labels (n = {len(values):,})"
        axes.hist(values, bins, color=colour, alpha=0.35)
        axes.hist(values, bins, histtype="step", color=colour, linewidth=1.6, label=label)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    axes.set(xlabel="confidence in the own label, c", ylabel="training images (count, log)", xlim=(0, 1))
    weights = axes.twinx()
    c = np.linspace(0, 1, 1001)
    w = np.exp(-np.logaddexp(0, -beta * (c - lambda_)))
    weights.plot(c, w, color=WEIGHT, linewidth=2, label=f"w(c), λ = {lambda_:g}, β = {beta:g}")
    weights.set(ylabel="weight w(c)", ylim=(0, 1.04))
    handles = [each for one in (axes, weights) for each in zip(*one.get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=3, frameon=False)
    return _save(figure, out)


def _looks(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Line and marker of every row name: a colour a method, another line and marker for each of its variants."""
    looks: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for name in dict.fromkeys(row["name"] for row in rows):
        method = name.partition(",")[0].partition(" ")[0].removesuffix(FILTERED)
        line, marker = VARIANTS[seen.setdefault(method, 0) % len(VARIANTS)]
        seen[method] += 1
        colour, usual = LOOKS.get(method, ("#444444", "o"))
        untrained = method in RIVALS
        looks[name] = {
            "color": colour, "linestyle": "--" if untrained else line, "marker": marker or usual,
            "markerfacecolor": "white" if untrained else colour, "linewidth": 1.6, "markersize": 7,
        }  # fmt: skip
    return looks


def make_figure(height: int) -> Figure:
    """An empty figure, 900 x height pixels."""
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    return Figure(figsize=(WIDTH_PIXELS / DPI, height / DPI), dpi=DPI, layout=layout)


def _start(summary: Summary, *, height: int) -> tuple[Figure, Axes]:
    """An empty figure under the summary's title and what the numbers are about."""
    figure = make_figure(height)
    axes = figure.add_subplot()
    about = [summary.get("dataset"), summary.get("noise"), *name_shape(summary.get("shape", FULL))]
    if "width" in summary and "embedding width" not in summary["axes"]:
        about.append(f"{summary['width']}-d")
    if "seeds" in summary:
        count = len(summary["seeds"])
        about.append(f"mean ± deviation over {count} seeds" if count > 1 else "1 seed")
    below = textwrap.fill(", ".join(each for each in about if each), 110)
    title = summary["title"][:1].upper() + summary["title"][1:]
    axes.set_title(f"{title}\n{below}" if below else title, fontsize=11)
    axes.grid(color="#E3E3E3", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _recall_at_1(row: Mapping[str, Any]) -> dict[str, float]:
    return row["recall"]["1"]


def _draw_line(
    axes: Axes, xs: Sequence[float], found: Sequence[Mapping[str, float]], *, label: str, look: dict[str, Any]
) -> None:
    means, deviations = ([each[key] for each in found] for key in ("mean", "deviation"))
    axes.errorbar(xs, means, yerr=deviations, label=label, capsize=3, elinewidth=1.1, **look)


def _set_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Ticks where the values are, and nowhere else."""
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)


def _finish(figure: Figure, axes: Axes, out: Path, legend_title: str | None = None) -> Figure:
    """Add the legend, below the axes where it is short, else beside them, and write the file."""
    handles, labels = axes.get_legend_handles_labels()
    below = len(labels) <= 4
    figure.legend(
        handles, labels, title=legend_title, frameon=False, handlelength=3, ncols=2 if below else 1,
        loc="outside lower center" if below else "outside right upper",
    )  # fmt: skip
    return _save(figure, out)


def _save(figure: Figure, out: Path) -> Figure:
    figure.savefig(out, format="png")
    return figure
