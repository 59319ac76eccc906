"""A table's finished trainings as numbers for the record and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common.tables import format_deviation, format_interval, format_table
from benchmarks.noise.experiments import Experiment
from benchmarks.noise.features import list_query_classes, load_features
from benchmarks.noise.grid import GridFolder, short_name
from index.evaluation.comparison import paired_bootstrap


def summarise_experiment(folder: GridFolder, experiment: Experiment) -> dict[str, Any]:
    """Mean and deviation over seeds of every row, and its paired difference from the first one at K=1."""
    setting = experiment.setting
    query_classes = list_query_classes(load_features(folder.features(setting.dataset)))
    first = [folder.read(cell) for cell in experiment.rows[0].cells]
    rows = []
    for row in experiment.rows:
        records = [folder.read(cell) for cell in row.cells]
        rows.append(
            {
                "name": row.name,
                "at": list(row.at),
                "embedding_dim": records[0]["embedding_dim"],
                "settings": row.cells[0].settings,
                "recall": {k: _percent(records, lambda r, k=k: r["recall"][k]) for k in records[0]["recall"]},
                "recall_at_1": _compare(records, None, classes=query_classes),
                "map_at_r": _percent(records, lambda r: r["map_at_r"]),
                "nmi": None if records[0]["nmi"] is None else _percent(records, lambda r: r["nmi"]),
                "seconds": [record["seconds"] for record in records],
                "samples_used": [record["samples_used"] for record in records],
                "first_minus_this": _compare(first, records, classes=query_classes),
            }
        )
    sets = {cell.labels.name: cell.labels for cell in experiment.cells if cell.needs_module}
    reports = [json.loads(folder.module_confidences(one).with_suffix(".json").read_text()) for one in sets.values()]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "dataset": short_name(setting.dataset),
        "noise": setting.noise,
        "width": setting.width,
        "seeds": list(setting.seeds),
        "axes": list(experiment.axes),
        "rows": rows,
        "module_auc": [each["auc"] for each in reports if each["auc"] is not None],
    }


def over_seeds(values: Sequence[float]) -> dict[str, float]:
    """Mean and deviation."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "deviation": deviation}


def lead_in_points(first: np.ndarray, other: np.ndarray, *, classes: np.ndarray) -> dict[str, float]:
    """Points that the first leads by on the same queries, from (…, Q) hits, with the 95 % interval.

    The interval is over classes and seeds; `classes` are those of the queries, (Q,).
    """
    found = paired_bootstrap(first, other, seed=0, clusters=classes, draw_seeds=True)
    return {"mean": 100 * found.mean, "low": 100 * found.low, "high": 100 * found.high, "p_value": found.p_value}


def _percent(records: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> dict[str, float]:
    return over_seeds([100 * value(record) for record in records])


def _compare(
    first: list[dict[str, Any]], other: list[dict[str, Any]] | None, *, classes: np.ndarray
) -> dict[str, float]:
    """Points that the first row leads by at K=1, over the same queries; its own Recall@1 where there is no other."""
    one = np.stack([record["hits"] for record in first]).astype(np.float64)
    two = np.stack([record["hits"] for record in other]).astype(np.float64) if other else np.zeros_like(one)
    shape = np.broadcast_shapes(one.shape, two.shape)
    return lead_in_points(np.broadcast_to(one, shape), np.broadcast_to(two, shape), classes=classes)


def format_experiment(summary: dict[str, Any]) -> str:
    """Recall@K by row, or a grid of Recall@1 where rows are a grid of two options, as Markdown."""
    seeds = ", ".join(map(str, summary["seeds"]))
    spread = f"mean ± deviation over seeds {seeds}" if len(summary["seeds"]) > 1 else f"seed {seeds}"
    title = f"**{summary['title']}**: {summary['dataset']}, {summary['noise']}, {summary['width']}-d, {spread}, in %"
    if not summary["axes"]:
        title += "; 95 % intervals over classes and seeds of Recall@1 and of the points that the first row leads by"
    table = _format_grid if summary["axes"] else _format_rows
    lines = [title, "", table(summary["axes"], summary["rows"])]
    if summary["module_auc"]:
        auc = np.mean(summary["module_auc"])
        lines += ["", f"AUC of the module's confidences at telling wrong labels from right ones: {auc:.3f}"]
    return "\n".join(lines)


def _format_rows(_: list[str], rows: list[dict[str, Any]]) -> str:
    ks = list(rows[0]["recall"])
    recalls = [*(f"R@{k}" for k in ks), f"R@{ks[0]}, 95 %"]
    head = ["method", "width", *recalls, "MAP@R", "NMI", f"{rows[0]['name']} leads by"]
    lines = []
    for number, row in enumerate(rows):
        recall, others = [row["recall"][k] for k in ks], [row["map_at_r"], row["nmi"]]
        bounds = f"{row['recall_at_1']['low']:.2f} - {row['recall_at_1']['high']:.2f}"
        lead = format_interval(row["first_minus_this"]) if number else ""
        scores = [*map(format_deviation, recall), bounds, *map(format_deviation, others)]
        lines.append([row["name"], str(row["embedding_dim"]), *scores, lead])
    return format_table(head, lines)


def _format_grid(axes: list[str], rows: list[dict[str, Any]]) -> str:
    down, across = (list(dict.fromkeys(row["at"][axis] for row in rows)) for axis in (0, 1))
    found = {tuple(row["at"]): format_deviation(row["recall"]["1"]) for row in rows}
    head = [" \\ ".join(axes), *(f"{value:g}" for value in across)]
    return format_table(head, [[f"{one:g}", *(found[one, two] for two in across)] for one in down])
