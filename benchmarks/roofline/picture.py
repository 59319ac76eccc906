"""The roofline as a picture: models and searches under the machine's roofs, and all stages beside their limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from benchmarks.noise.plots import make_figure

# Okabe and Ito's colours, which the colour-blind tell apart.
BLUE, RED, GREY, LIGHT = "#0072B2", "#D55E00", "#999999", "#9ECAE1"
MARKERS = "osDv^P"
SEARCH_INTENSITY = 0.5  # operations a byte: a multiplication and an addition for each float32


def draw_roofline(results: Mapping[str, Any], out: Path) -> None:
    """Write `results` of `benchmarks.roofline` as a PNG."""
    figure = make_figure(480)
    roofs, shares = figure.subplots(1, 2)
    _draw_roofs(roofs, results)
    _draw_shares(shares, results)
    figure.savefig(out, format="png")


def _draw_roofs(axes: Axes, results: Mapping[str, Any]) -> None:
    """Operations a second against operations a byte, both logarithmic."""
    limits = results["limits"]
    intensity = np.logspace(-1, 4, 200)
    for name, colour in (("gemm fp32", BLUE), ("gemm int8", RED)):
        roof = np.minimum(limits["copy"] * intensity, limits[name])
        axes.loglog(intensity, roof / 1e9, color=colour, label=name.replace("gemm", "product in"))
    points = [(row["stage"], row["operations_per_byte"], row["operations_per_second"], row["limited_by"])
              for row in results["stages"] if "operations_per_byte" in row]  # fmt: skip
    for row in results["stages"]:
        if row["stage"] == "index search":
            used = row["of_limit"] * limits["scan"] * SEARCH_INTENSITY
            points.append((row["stage"], SEARCH_INTENSITY, used, "gemm fp32"))
    for number, (name, place, rate, kind) in enumerate(points):
        colour, marker = RED if kind == "gemm int8" else BLUE, MARKERS[number % len(MARKERS)]
        axes.plot(place, rate / 1e9, marker, color=colour, label=name.removeprefix("model: "))
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("thousand million operations a second")
    axes.legend(fontsize=8, frameon=False)


def _draw_shares(axes: Axes, results: Mapping[str, Any]) -> None:
    """Each stage's rate as a share of its limit, with the rate itself beside it."""
    rows = list(reversed(results["stages"]))
    shares = [row["of_limit"] or 0.0 for row in rows]
    axes.barh([row["stage"] for row in rows], shares, color=LIGHT)
    axes.axvline(1.0, color=GREY, linestyle="--")
    for place, row in enumerate(rows):
        told = "not run" if row["rate"] is None else f"{row['of_limit']:.2f}: {row['rate']:,.0f} {row['unit']}"
        axes.text(0.02, place, told, va="center", fontsize=8)
    axes.set_xlabel("share of the limit measured in the same run")
