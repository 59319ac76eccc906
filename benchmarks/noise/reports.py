"""An experiment's finished cells as a Markdown table and as numbers for the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common.tables import format_deviation, format_interval, format_table
from benchmarks.noise.cells import GridFolder, short_name
from benchmarks.noise.experiments import Experiment, Row
from benchmarks.noise.feature_sets import is_seen, list_query_classes, load_features
from benchmarks.noise.grid import load_shaped
from benchmarks.noise.shapes import BANDS, name_shape, recall_by_size
from index.evaluation.comparison import paired_bootstrap, spread
from training.options.losses import RIVALS


def summarise_experiment(folder: GridFolder, experiment: Experiment) -> dict[str, Any]:
    """Mean and deviation over seeds of every row, and its paired difference from the first one at K=1."""
    features = load_features(folder.features(experiment.setting.dataset))
    query_classes = list_query_classes(features)
    first = [folder.read(cell) for cell in experiment.rows[0].cells]
    rows = []
    for row in experiment.rows:
        records = [folder.read(cell) for cell in row.cells]
        rows.append({
            "name": row.name, "at": list(row.at), "embedding_dim": records[0]["embedding_dim"],
            "settings": row.cells[0].settings,
            "recall": {k: _percent(records, lambda r, k=k: r["recall"][k]) for k in records[0]["recall"]},
            "map_at_r": _percent(records, lambda r: r["map_at_r"]),
            "r_precision": _percent(records, lambda r: r["r_precision"]),
            "nmi": None if records[0]["nmi"] is None else _percent(records, lambda r: r["nmi"]),
            "seconds": [record["seconds"] for record in records],
            "samples_used": [record["samples_used"] for record in records],
            "by_class_size": _split_by_size(folder, row, records) if is_seen(features) else None,
            "first_minus_this": _compare(first, records, classes=query_classes),
        })  # fmt: skip
    setting = experiment.setting
    return {
        "name": experiment.name, "title": experiment.title, "dataset": short_name(setting.dataset),
        "noise": setting.noise, "shape": setting.shape, "width": setting.width, "seeds": list(setting.seeds),
        "axes": list(experiment.axes), "rows": rows, "phase1": _phase1(folder, experiment),
    }  # fmt: skip


def over_seeds(values: Sequence[float]) -> dict[str, float]:
    """Mean and deviation."""
    found = spread(values)
    return {"mean": found.mean, "deviation": found.deviation}


def lead_in_points(first: np.ndarray, other: np.ndarray, *, classes: np.ndarray | None = None) -> dict[str, float]:
    """Points that the first leads by on the same queries, with its 95 % interval, from (…, Q) hits.

    The interval is over classes and seeds with the (Q,) classes of the queries, and over queries without.
    """
    found = paired_bootstrap(first, other, seed=0, clusters=classes, draw_seeds=classes is not None)
    return {"mean": 100 * found.mean, "low": 100 * found.low, "high": 100 * found.high, "p_value": found.p_value}


def describe_labels(summary: Mapping[str, Any]) -> str:
    """The noise of the training labels, and the shape of the classes unless all images train."""
    return ", ".join([summary["noise"], *name_shape(summary["shape"])])


def _percent(records: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> dict[str, float]:
    return over_seeds([100 * value(record) for record in records])


def _split_by_size(
    folder: GridFolder, row: Row, records: list[dict[str, Any]]
) -> dict[str, dict[str, float] | None]:
    """Recall@1 (%) of the queries of rare, middle and frequent classes; None for a third without a query."""
    found = []
    for cell, record in zip(row.cells, records, strict=True):
        features = load_shaped(folder, cell.labels)
        own = {name: number for number, name in enumerate(features.classes)}
        names = np.array(features.test_names)[np.unique(features.test_labels, return_index=True)[1]]
        classes = np.array([own[name] for name in names])[list_query_classes(features)]
        found.append(recall_by_size(record["hits"], classes, class_sizes=np.bincount(features.train_labels)))
    return {
        band: None if found[0][band] is None else over_seeds([100 * float(one[band] or 0) for one in found])
        for band in BANDS
    }


def _compare(first: list[dict[str, Any]], other: list[dict[str, Any]], *, classes: np.ndarray) -> dict[str, float]:
    """Points that the first row leads by at K=1, over the same queries."""
    seeds = max(len(first), len(other))
    hits = [np.stack([r["hits"] for r in records]).astype(np.float64) for records in (first, other)]
    one, two = (np.broadcast_to(h, (seeds, h.shape[1])) if len(h) == 1 else h for h in hits)
    return lead_in_points(one, two, classes=classes)


def _phase1(folder: GridFolder, experiment: Experiment) -> list[dict[str, Any]]:
    """AUC of the confidences at telling wrong labels, and seconds, of every label set that phase 1 ran on."""
    labels = {cell.labels.name: cell.labels for cell in experiment.cells if cell.needs_confidences}
    reports = [json.loads(folder.report(one).read_text()) for one in labels.values()]
    return [{key: report[key] for key in ("samples", "wrong", "auc", "seconds")} for report in reports]


def format_experiment(summary: dict[str, Any]) -> str:
    """The experiment as Markdown: Recall@K by row, or a grid of Recall@1 where rows stand on two axes."""
    width = "" if "embedding width" in summary["axes"] else f" {summary['width']}-d,"
    seeds = ", ".join(map(str, summary["seeds"]))
    spread = f"mean ± deviation over seeds {seeds}" if len(summary["seeds"]) > 1 else f"seed {seeds}"
    title = f"**{summary['title']}**: {summary['dataset']}, {describe_labels(summary)},{width} {spread}, in %"
    if not summary["axes"]:
        title += "; points at K=1 that the first row leads by, with their 95 % interval over classes and seeds"
    table = _format_grid if len(summary["axes"]) == 2 else _format_rows
    lines = [title, "", table(summary["axes"], summary["rows"])]
    aucs = [report["auc"] for report in summary["phase1"] if report["auc"] is not None]
    if aucs:
        lines += ["", f"AUC of the confidences at telling wrong labels from right ones: {np.mean(aucs):.3f}"]
    return "\n".join(lines)


def _format_rows(axes: list[str], rows: list[dict[str, Any]]) -> str:
    ks = list(rows[0]["recall"])
    bands = BANDS if not axes and rows[0]["by_class_size"] else ()
    head = ["method", *axes, "width", *(f"R@{k}" for k in ks), "MAP@R", "NMI", *(f"R@1 {band}" for band in bands)]
    head += [] if axes else [f"{rows[0]['name']} leads by"]
    lines = []
    for number, row in enumerate(rows):
        scores = [*(row["recall"][k] for k in ks), row["map_at_r"], row["nmi"]]
        scores += [row["by_class_size"][band] for band in bands]
        places = [f"{value:g}" for value in row["at"]]
        lead = [] if axes else [format_interval(row["first_minus_this"]) if number else ""]
        lines.append([row["name"], *places, str(row["embedding_dim"]), *map(format_deviation, scores), *lead])
    return format_table(head, lines)


def _format_grid(axes: list[str], rows: list[dict[str, Any]]) -> str:
    down, across = (list(dict.fromkeys(row["at"][axis] for row in rows)) for axis in (0, 1))
    found = {tuple(row["at"]): format_deviation(row["recall"]["1"]) for row in rows}
    head = [" \\ ".join(axes), *(f"{value:g}" for value in across)]
    return format_table(head, [[f"{one:g}", *(found[one, two] for two in across)] for one in down])


def format_noises(summaries: Sequence[dict[str, Any]]) -> str:
    """Recall@1 of every row by noise, from several tables of one dataset and width; the best trained one is bold."""
    first = summaries[0]
    title = f"Recall@1 in %, {first['dataset']}, {first['width']}-d; the best trained method is bold:"
    recalls = [{row["name"]: row["recall"]["1"] for row in summary["rows"]} for summary in summaries]
    trained = [[v["mean"] for name, v in found.items() if name not in RIVALS] for found in recalls]
    best = [max(values, default=None) for values in trained]
    lines = []
    for row in first["rows"]:
        cells = [row["name"], str(row["embedding_dim"])]
        for found, most in zip(recalls, best, strict=True):
            text, value = format_deviation(found[row["name"]]), found[row["name"]]["mean"]
            cells.append(f"**{text}**" if value == most and row["name"] not in RIVALS else text)
        lines.append(cells)
    return f"{title}\n\n{format_table(['method', 'width', *map(describe_labels, summaries)], lines)}"


def format_leads(summaries: Sequence[dict[str, Any]]) -> str:
    """The first row of every table against the best other of equal width, by noise, dataset and width; raw beside."""
    name = summaries[0]["rows"][0]["name"]
    title = f"Recall@1 in %: {name}, and the best other method or untrained embedding of equal width"
    lines = []
    for summary in summaries:
        first, *others = summary["rows"]
        rivals = [row for row in others if row["embedding_dim"] == first["embedding_dim"]]
        raw = [format_deviation(row["recall"]["1"]) for row in others if row["name"] == "raw"]
        if rivals:
            best = max(rivals, key=lambda row: row["recall"]["1"]["mean"])
            ours, theirs = (format_deviation(row["recall"]["1"]) for row in (first, best))
            lead = format_interval(best["first_minus_this"])
            about = [summary["dataset"], str(summary["width"]), describe_labels(summary)]
            lines.append([*about, ours, best["name"], theirs, lead, *(raw or [""])])
    head = ["dataset", "width", "labels", name, "best other", "", f"{name} leads by", "raw"]
    return f"{title}\n\n{format_table(head, lines)}"
