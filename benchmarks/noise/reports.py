"""A table's finished trainings as numbers for the record and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common.tables import format_deviation, format_interval, format_table
from benchmarks.noise.features import list_query_classes, load_features
from benchmarks.noise.grid import Cell, GridFolder
from index.evaluation.comparison import paired_bootstrap


def summarise(folder: GridFolder, dataset: str, rows: Mapping[str, Sequence[Cell]]) -> list[dict[str, Any]]:
    """Mean and deviation over seeds of every row, and its paired difference from the first one at K=1."""
    query_classes = list_query_classes(load_features(folder.features(dataset)))
    found = {name: [folder.read(cell) for cell in cells] for name, cells in rows.items()}
    first = next(iter(found.values()))
    return [
        {
            "name": name,
            "embedding_dim": records[0]["embedding_dim"],
            "settings": rows[name][0].settings,
            "recall": {k: _percent(records, lambda r, k=k: r["recall"][k]) for k in records[0]["recall"]},
            "recall_at_1": _compare(records, None, classes=query_classes),
            "map_at_r": _percent(records, lambda r: r["map_at_r"]),
            "seconds": [record["seconds"] for record in records],
            "first_minus_this": _compare(first, records, classes=query_classes),
        }
        for name, records in found.items()
    ]


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


def format_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Recall@K and MAP@R by row, as Markdown."""
    ks = list(rows[0]["recall"])
    recalls = [*(f"R@{k}" for k in ks), f"R@{ks[0]}, 95 %"]
    head = ["method", "width", *recalls, "MAP@R", f"{rows[0]['name']} leads by"]
    lines = []
    for number, row in enumerate(rows):
        bounds = f"{row['recall_at_1']['low']:.2f} - {row['recall_at_1']['high']:.2f}"
        lead = format_interval(row["first_minus_this"]) if number else ""
        recall = [format_deviation(row["recall"][k]) for k in ks]
        lines.append([row["name"], str(row["embedding_dim"]), *recall, bounds, format_deviation(row["map_at_r"]), lead])
    return format_table(head, lines)
