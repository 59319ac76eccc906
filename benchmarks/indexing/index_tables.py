"""What `benchmarks.indexing` measured, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common.tables import format_interval, format_spread, format_table, spread

GOAL_OVER_LOOP, GOAL_OF_BOUND = 2.5, 0.9


def format_speed(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_speed`."""
    rates = results["rates"]
    loop, alone = (results[name]["chosen"] for name in ("loop_settings", "inference_settings"))
    rule = "min(d, i)" if results["on_gpu"] else "1 / (1/d + 1/i)"
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in loop.items())
    by_batch_size = []
    if tried := results.get("by_batch_size"):
        each = ", ".join(f"{size}: {format_spread(found)}" for size, found in tried["rates"].items())
        what = f"ours by batch size, {tried['images']:,} of them (default {tried['default']})"
        by_batch_size = [(what, each)]
    batches = f"batches of {alone['batch_size']}, {alone['callers']} at once"
    rows = [
        ("`retrieval index build`", format_spread(rates["ours"])),
        (f"torchvision + DataLoader + faiss ({settings})", format_spread(rates["loop"])),
        ("decoding and resizing alone, d", format_spread(rates["decoding"])),
        (f"model alone, i ({batches})", format_spread(rates["inference"])),
        (f"what the machine allows, {rule}", f"{results['allowed']:.1f}"),
        *by_batch_size,
        ("ours / loop", _judge(results["over_loop"], GOAL_OVER_LOOP)),
        ("ours / allowed", _judge(results["of_bound"], GOAL_OF_BOUND)),
    ]
    agreement = results["agreement"]
    head = f"{results['images']:,} {results['what']}, {results['mib']:.0f} MiB"
    note = (
        f"Cosine between our vectors and the loop's, {agreement['images']} images: mean "
        f"{agreement['mean_cosine']:.4f}, least {agreement['least_cosine']:.4f}."
    )
    return f"{format_table([head, 'images/s'], rows)}\n\n{note}"


def format_memory(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_hundred_thousand`."""
    build, anonymous, resident = results["build"], results["anonymous_mib"], results["resident_mib"]
    pace, line = results["images_per_second"], results["bytes_per_image"]
    growth = "-" if line is None else f"{line['slope']:.1f} ± {line['standard_error']:.1f} bytes an image"
    early, late = _number(anonymous["20-40 %"]), _number(anonymous["80-100 %"])
    rows = [
        ("images/s", f"{build['images_per_second']:.1f}"),
        ("images/s in the first / last fifth", f"{_number(pace['first fifth'])} / {_number(pace['last fifth'])}"),
        ("anonymous memory added from 20 % on", growth),
        ("anonymous memory at 20-40 % / 80-100 %, median", f"{early} / {late} MiB"),
        *(
            (f"{peak}, anonymous / resident", f"{anonymous[peak]:.0f} / {resident[peak]:.0f} MiB")
            for peak in resident
        ),
        ("publication", f"{results['publication_seconds']:.1f} s"),
    ]
    return format_table([str(results["what"]), ""], rows)


def format_decoding(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_decoding`: the ways of every dataset, the steps of ours, threads beside processes."""
    tables = [_format_ways(row) for row in results["datasets"]]
    steps = list(results["datasets"][0]["steps"])
    rows = [[step, *(f"{row['steps'][step]:.0f}" for row in results["datasets"])] for step in steps]
    tables.append(
        format_table(["processor time, µs an image", *(row["what"] for row in results["datasets"])], rows)
    )
    pools = [(f"{results['workers']} {pool}", format_spread(rates)) for pool, rates in results["rates"].items()]
    return "\n\n".join([*tables, format_table(["decoding and resizing the photos", "images/s"], pools)])


def _format_ways(row: Mapping[str, Any]) -> str:
    """Rates of each way, and ours over it: the ratio of the medians."""
    rates = {way: {kind: spread(each) for kind, each in kinds.items()} for way, kinds in row["rates"].items()}
    kinds = {
        "one_thread": "one thread",
        "threads": "a thread a core",
        "of_processor_time": "processor time, one core",
    }
    rows = []
    for way, found in rates.items():
        ratio = rates["ours"]["of_processor_time"]["median"] / found["of_processor_time"]["median"]
        rows.append([way, *(format_spread(found[kind], digits=0) for kind in kinds), f"{ratio:.2f}"])
    return format_table([f"{row['images']:,} {row['what']}", *kinds.values(), "ours over it"], rows)


def format_quality(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_quality`."""
    rows = [
        [
            row["dataset"], row["photos"], row["model"], f"{row['queries']:,}", f"{100 * row['identical']:.0f} %",
            f"{row['mean_apart']:.2f}", f"{row['most_apart']}", f"{row['recall']:.2f}",
            f"{row['changed']}", format_interval(row["difference"]),
        ]
        for row in results["rows"]
    ]  # fmt: skip
    words = "dataset, photos, model, queries, same input, mean apart, most apart, Recall@1 of the reference"
    head = [*words.split(", "), "hits changed", "ours less it"]
    return format_table(head, rows)


def _judge(ratio: float, goal: float) -> str:
    return f"{ratio:.2f} (goal {goal}: {'met' if ratio >= goal else 'not met'})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
