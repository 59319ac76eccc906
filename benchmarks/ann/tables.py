"""Markdown tables of `benchmarks.ann`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.ann.curves import MODES, rate_at
from benchmarks.ann.filters import PEERS, choose_peer
from benchmarks.ann.peers import OURS, Parameters
from benchmarks.common.tables import format_table

GOAL_FILTERED_RECALL = 0.98
RECALLS = (0.95, 0.97, 0.98, 0.99, 0.995, 0.998)
TITLES = {"single": "one query after another, one thread", "batch": "all queries at once, all cores"}


def format_curves(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_curves`."""
    head = f"## {results['vectors']:,} vectors, {results['width']}-d, {results['queries']:,} queries"
    parts = [head, _format_builds(results), _format_held_out(results)]
    for mode in MODES:
        parts += [
            f"### {TITLES[mode]}",
            "Queries/s at a recall@10, on each front:",
            _format_fronts(results["fronts"][mode]),
        ]
    return "\n\n".join(part for part in parts if part)


def _format_builds(results: Mapping[str, Any]) -> str:
    count = results["vectors"]

    rows = []
    for name, built in results["builds"].items():
        figures = f"{built['seconds']:.1f}", f"{built['peak_mib']:,.0f}", f"{built['disk_bytes'] / count:.0f}"
        rows.append((_name(name, results), *figures))
    return format_table(["", "build, s", "peak MiB", "bytes a vector on disk"], rows)


def _name(name: str, results: Mapping[str, Any]) -> str:
    described = results["described"]
    return f"{name} ({described.get('factory') or described['type']})" if name == OURS and described else name


def _format_fronts(fronts: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = []
    for family, points in fronts.items():
        rates = [rate_at(points, recall) for recall in RECALLS]
        rows.append((family, *("-" if rate is None else f"{rate:,.0f}" for rate in rates)))
    return format_table(["", *(f"{recall:g}" for recall in RECALLS)], rows)


def _format_held_out(results: Mapping[str, Any]) -> str:
    """The recall that the index says of itself beside that of the benchmark's queries."""
    described = results["described"]
    if not described or not described.get("curve"):
        return ""
    points = next(row["points"] for row in results["rows"] if row["contestant"] == OURS)
    rows = [
        (
            format_parameters(said["parameters"]) + " *(chosen)*" * (said["parameters"] == described.get("parameters")),
            f"{said['recall_at_10']:.4f}",
            f"{point['single']['recall']:.4f}",
        )
        for said, point in zip(described["curve"], points, strict=True)
    ]
    return format_table(["ours", "recall@10 by held-out members", "by queries"], rows)


def format_filters(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_filters`."""
    rows = []
    for cell in results["cells"]:
        names = dict.fromkeys(point["contestant"] for point in cell["points"])
        for name in (name for name in (OURS, *PEERS) if name in names):
            point = choose_peer(cell["points"], name, least_recall=GOAL_FILTERED_RECALL)
            missed = " (below)" if name == OURS and point["recall"] < GOAL_FILTERED_RECALL else ""
            rows.append(
                (
                    f"{cell['kind']}, {100 * cell['share']:g} % ({cell['kept']:,})",
                    name,
                    format_parameters(point["parameters"]) or "its own",
                    f"{point['recall']:.4f}{missed}",
                    f"{point['median_ms']:.3f}",
                    f"{point['short']} of {point['queries']}",
                )
            )
    head = ["rows kept", "", "parameters", "recall@10", "ms", "fewer than 10 found"]
    title = f"## Filters: {results['vectors']:,} vectors, {results['width']}-d"
    note = f"A peer's row is its fastest parameter with a recall of {GOAL_FILTERED_RECALL}, or else its best recall."
    return f"{title}\n\n{note}\n\n{format_table(head, rows)}"


def format_parameters(parameters: Parameters) -> str:
    """`name value`, by commas."""
    return ", ".join(f"{name} {value}" for name, value in parameters.items())
