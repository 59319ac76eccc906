"""An experiment's finished cells as a Markdown table and as numbers for the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.noise.cells import GridFolder, short_name
from benchmarks.noise.experiments import Experiment
from index.evaluation.comparison import paired_bootstrap, spread
from training.options.losses import UNTRAINED_METHODS


def summarise_experiment(folder: GridFolder, experiment: Experiment) -> dict[str, Any]:
    """Mean and deviation over seeds of every row, and its paired difference from the first one at K=1."""
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
                "map_at_r": _percent(records, lambda r: r["map_at_r"]),
                "r_precision": _percent(records, lambda r: r["r_precision"]),
                "nmi": None if records[0]["nmi"] is None else _percent(records, lambda r: r["nmi"]),
                "seconds": [record["seconds"] for record in records],
                "samples_used": [record["samples_used"] for record in records],
                "first_minus_this": _compare(first, records),
            }
        )
    setting = experiment.setting
    return {
        "name": experiment.name, "title": experiment.title, "dataset": short_name(setting.dataset),
        "noise": setting.noise, "width": setting.width, "seeds": list(setting.seeds), "axes": list(experiment.axes),
        "rows": rows, "phase1": _phase1(folder, experiment),
    }  # fmt: skip


def _percent(records: list[dict[str, Any]], value: Any) -> dict[str, float]:
    found = spread([100 * value(record) for record in records])
    return {"mean": found.mean, "deviation": found.deviation}


def _compare(first: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, float]:
    """Points that the first row leads by at K=1, over the same queries, with its 95 % interval over queries."""
    seeds = max(len(first), len(other))
    hits = [np.stack([r["hits"] for r in records]).astype(np.float64) for records in (first, other)]
    one, two = (np.broadcast_to(h, (seeds, h.shape[1])) if len(h) == 1 else h for h in hits)
    found = paired_bootstrap(one, two, seed=0)
    return {
        "mean": 100 * found.mean, "low": 100 * found.low, "high": 100 * found.high, "p_value": found.p_value
    }  # fmt: skip


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
    title = f"**{summary['title']}**: {summary['dataset']}, {summary['noise']},{width} {spread}, in %"
    if not summary["axes"]:
        title += (
            "; points at K=1 that the first row leads by, with their 95 % interval over queries for these seeds"
        )
    table = _format_grid if len(summary["axes"]) == 2 else _format_rows
    lines = [title, "", *table(summary["axes"], summary["rows"])]
    aucs = [report["auc"] for report in summary["phase1"] if report["auc"] is not None]
    if aucs:
        lines += ["", f"AUC of the confidences at telling wrong labels from right ones: {np.mean(aucs):.3f}"]
    return "\n".join(lines)


def _format_rows(axes: list[str], rows: list[dict[str, Any]]) -> list[str]:
    ks = list(rows[0]["recall"])
    header = ["method", *axes, "width", *(f"R@{k}" for k in ks), "MAP@R", "NMI"]
    header += [] if axes else [f"{rows[0]['name']} leads by"]
    lines = [_line(header), _line(["---"] * len(header))]
    for number, row in enumerate(rows):
        lines.append(
            _line([
                row["name"], *(f"{value:g}" for value in row["at"]), str(row["embedding_dim"]),
                *(_spread(row["recall"][k]) for k in ks), _spread(row["map_at_r"]), _spread(row["nmi"]),
                *([] if axes else [_lead(row["first_minus_this"]) if number else ""]),
            ])
        )  # fmt: skip
    return lines


def _format_grid(axes: list[str], rows: list[dict[str, Any]]) -> list[str]:
    down, across = (list(dict.fromkeys(row["at"][axis] for row in rows)) for axis in (0, 1))
    found = {tuple(row["at"]): row["recall"]["1"] for row in rows}
    lines = [_line([" \\ ".join(axes), *(f"{value:g}" for value in across)])]
    lines.append(_line(["---"] * (len(across) + 1)))
    return lines + [_line([f"{one:g}", *(_spread(found[one, two]) for two in across)]) for one in down]


def _lead(lead: dict[str, float]) -> str:
    return f"{lead['mean']:+.2f} [{lead['low']:+.2f}, {lead['high']:+.2f}]"


def _spread(value: dict[str, float] | None) -> str:
    if value is None:
        return ""
    return f"{value['mean']:.2f} ± {value['deviation']:.2f}" if value["deviation"] else f"{value['mean']:.2f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def format_noises(summaries: Sequence[dict[str, Any]]) -> str:
    """Recall@1 of every row by noise, from several tables of one dataset and width; the best trained one is bold."""
    first = summaries[0]
    lines = [
        f"Recall@1 in %, {first['dataset']}, {first['width']}-d; the best trained method is bold:", "",
        _line(["method", "width", *(summary["noise"] for summary in summaries)]),
        _line(["---"] * (2 + len(summaries))),
    ]  # fmt: skip
    recalls = [{row["name"]: row["recall"]["1"] for row in summary["rows"]} for summary in summaries]
    trained = [[v["mean"] for name, v in found.items() if name not in UNTRAINED_METHODS] for found in recalls]
    best = [max(values, default=None) for values in trained]
    for row in first["rows"]:
        cells = []
        for found, most in zip(recalls, best, strict=True):
            text, value = _spread(found[row["name"]]), found[row["name"]]["mean"]
            cells.append(f"**{text}**" if value == most and row["name"] not in UNTRAINED_METHODS else text)
        lines.append(_line([row["name"], str(row["embedding_dim"]), *cells]))
    return "\n".join(lines)


def format_leads(summaries: Sequence[dict[str, Any]]) -> str:
    """The first row of every table against the best other of equal width, by noise, dataset and width; raw beside."""
    name = summaries[0]["rows"][0]["name"]
    lines = [
        f"Recall@1 in %: {name}, and the best other method or untrained embedding of equal width", "",
        _line(["dataset", "width", "noise", name, "best other", "", f"{name} leads by", "raw"]), _line(["---"] * 8),
    ]  # fmt: skip
    for summary in summaries:
        first, *others = summary["rows"]
        rivals = [row for row in others if row["embedding_dim"] == first["embedding_dim"]]
        raw = [_spread(row["recall"]["1"]) for row in others if row["name"] == "raw"]
        if rivals:
            best = max(rivals, key=lambda row: row["recall"]["1"]["mean"])
            values = (_spread(first["recall"]["1"]), best["name"], _spread(best["recall"]["1"]))
            lead = _lead(best["first_minus_this"])
            lines.append(
                _line([summary["dataset"], str(summary["width"]), summary["noise"], *values, lead, *(raw or [""])])
            )
    return "\n".join(lines)
