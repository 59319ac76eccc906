"""What `benchmarks.indexing` measured, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common.tables import format_spread, format_table

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
    """Markdown of `measure_decoding`."""
    rows = [(f"{results['workers']} {pool}", format_spread(rates)) for pool, rates in results["rates"].items()]
    return format_table([f"decoding and resizing {results['images']:,} photos", "images/s"], rows)


def _judge(ratio: float, goal: float) -> str:
    return f"{ratio:.2f} (goal {goal}: {'met' if ratio >= goal else 'not met'})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
