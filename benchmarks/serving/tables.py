"""Markdown tables of `benchmarks.serving`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.common.tables import format_spread, format_table


def format_speed(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_speed`."""
    gallery, cores = results["gallery"], results["cores"]
    rows = []
    for name, measured in results["cells"].items():
        for clients, cell in measured.items():
            times = ["-" if cell[key] is None else f"{cell[key]:.1f}" for key in ("p50_ms", "p99_ms")]
            counts = [f"{count:,}" for count in (cell["refused"], cell["failed"] + cell["broken"])]
            shares = [f"{100 * cell[key] / cores:.0f} %" for key in ("own_cores", "server_cores")]
            rate, spent = format_spread(cell["per_second"]), f"{cell['core_ms']:.2f}"
            rows.append((name, clients, rate, *times, *counts, *shares, spent))
    head = ["", "clients", "answers/s", "p50, ms", "p99, ms", "503", "failed"]
    head += ["cores: clients", "cores: server", "core-ms an answer"]
    alone = results["alone"]
    allowed = [
        ("decoding and resizing alone, d", format_spread(alone["decoding"])),
        ("model alone, i", format_spread(alone["inference"])),
        ("what the cores allow, 1 / (1/d + 1/i)", f"{results['bound']:.1f}"),
    ]
    title = f"## {gallery['images']:,} {gallery['what']}, {gallery['width']}-d, index {gallery['index']}"
    tables = [format_table(head, rows), format_table(["", "photos/s"], allowed), _format_tried(results["tried"])]
    parts = [title, *tables, _format_agreement(results["agreement"])]
    parts += [_format_recall(results["recall_at_1"]), format_goals(results["goals"])]
    return "\n\n".join(part for part in parts if part)


def _format_tried(tried: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rows = []
    for name, variants in tried.items():
        for each in variants:
            settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in each["settings"].items())
            rows.append((name, settings, f"{each['per_second']:.1f}"))
    return format_table(["warm-up", "settings", "answers/s"], rows) if rows else ""


def _format_agreement(agreement: Mapping[str, Mapping[str, float]]) -> str:
    shares = [
        f"{name} {100 * each['mean']:.1f} % (least {100 * each['least']:.0f} %, {each['photos']} photos)"
        for name, each in agreement.items()
    ]
    return f"Results in common with ours: {'; '.join(shares)}." if shares else ""


def _format_recall(recall: Mapping[str, float]) -> str:
    found = ", ".join(f"{100 * each:.2f} % in {precision}" for precision, each in recall.items())
    return f"Recall@1, each photo asking all others: {found}; the peers' is that of float32." if found else ""


def format_goals(goals: Iterable[Mapping[str, Any]]) -> str:
    """Each goal, its figure, and whether it is met."""
    rows = []
    for goal in goals:
        limit = f"{'at most' if goal['at_most'] else 'at least'} {goal['limit']:g}{goal['unit']}"
        measured = f"{goal['measured']:.2f}{goal['unit']}"
        rows.append((goal["name"], measured, limit, "met" if goal["met"] else "not met"))
    return format_table(["", "measured", "goal", ""], rows)
