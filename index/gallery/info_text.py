"""What a gallery's index is, how good, what it costs and what to change, in lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from index.gallery.info import GalleryInfo
from index.text_table import align, command_line, show_bytes
from index.vectors.kinds import KINDS

_DRAWN_POINTS = 9
_DRAWN_RECALL = 0.8
_BAR = 30  # characters
_BETTER_TARGETS = (0.95, 0.98, 0.99, 0.995, 0.999)


def describe_index(described: GalleryInfo, *, gallery: Path) -> list[str]:
    """The lines of `index info` on the index."""
    index = described.index
    is_exact = KINDS[index["type"]].is_exact
    lines = list(_describe_scan(index, described) if is_exact else _describe_ann(index))
    if not is_exact:
        lines += _draw_curve(index)
        lines += _describe_filters(index["filtered"])
        lines += _advise(index, gallery=gallery)
    deleted = int(described.counts["deleted"])
    if described.beside_index or deleted:
        advice = f"worth {command_line('compact', gallery)}" if described.should_compact else "too few to compact"
        lines.append(f"vectors added since: {described.beside_index:,}, deleted: {deleted:,}; {advice}")
    return lines


def _describe_scan(index: Mapping[str, Any], described: GalleryInfo) -> Iterator[str]:
    yield f"Flat: every search reads all vectors, {show_bytes(described.disk_bytes['vectors'])}; {index['reason']}"
    yield f"exact; {_describe_speed(index)}"


def _describe_ann(index: Mapping[str, Any]) -> Iterator[str]:
    size = show_bytes(index["memory_bytes"])
    yield f"{index['factory']}, about {size} in memory: {index['reason']}"
    error = f"{100 * 2 * index['recall_error']:.1f}"
    met = "met" if index["target_met"] else "NOT met"
    yield (
        f"finds {_percent(index['recall_at_10'])} (± {error}) of the true 10 nearest, in exact order; "
        f"target {100 * index['recall_target']:g} % {met}"
    )
    yield _describe_speed(index)
    asked = (
        f"{index['queries']:,} of its own vectors, before it held them"
        if index["own_queries"]
        else f"{index['queries']:,} queries given"
    )
    yield f"measured with {asked}:"


def _describe_speed(index: Mapping[str, Any]) -> str:
    rate = f"{index['queries_per_second']:,.0f}"
    return (
        f"{index['latency_ms_median']:.3g} ms for a query alone, {rate} a second in batches, when it was measured"
    )


def _draw_curve(index: Mapping[str, Any]) -> list[str]:
    """The settings measured, a bar as long as a search takes; the one in use is marked."""
    points = _choose_points(index["curve"], chosen=index["parameters"])
    names = list(index["parameters"])
    slowest = max(point["latency_ms_median"] for point in points)
    rows = [(*names, "recall", "ms", "")]
    for point in points:
        bar = "█" * max(1, round(_BAR * point["latency_ms_median"] / slowest))
        mark = " in use" if point["parameters"] == index["parameters"] else ""
        cells = (f"{point['parameters'][name]:,}" for name in names)
        rows.append((*cells, _percent(point["recall_at_10"]), f"{point['latency_ms_median']:.3f}", bar + mark))
    return ["  " + line for line in align(rows, right=set(range(len(names) + 2)))]


def _choose_points(curve: Sequence[Mapping[str, Any]], *, chosen: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """Some points of a long curve, the one in use and the best among them."""
    good = [point for point in curve if point["recall_at_10"] >= _DRAWN_RECALL or point["parameters"] == chosen]
    step = max(1, -(-len(good) // _DRAWN_POINTS))
    last = len(good) - 1
    return [
        point for number, point in enumerate(good) if (last - number) % step == 0 or point["parameters"] == chosen
    ]


def _describe_filters(filtered: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [("filter keeps", "recall", "ms")]
    for point in filtered:
        kept = f"{100 * point['kept']:g} %"
        rows.append((kept, _percent(point["recall_at_10"]), f"{point['latency_ms_median']:.3f}"))
    return ["  " + line for line in align(rows, right={0, 1, 2})]


def _advise(index: Mapping[str, Any], *, gallery: Path) -> Iterator[str]:
    if not index["target_met"]:
        yield f"for the target, search exactly: {command_line('tune', gallery, {'--index-type': 'flat'})}"
        return
    for target in _BETTER_TARGETS:
        if target <= max(index["recall_target"], index["recall_at_10"]):
            continue
        for point in index["curve"]:
            if point["recall_at_10"] - 2 * point["recall_error"] >= target:
                command = command_line("tune", gallery, {"--recall-target": f"{target:g}"})
                yield f"{100 * target:g} % would take {point['latency_ms_median']:.3f} ms: {command}"
                return


def _percent(share: float) -> str:
    """Rounded down: only all is 100 %."""
    return f"{math.floor(round(1e4 * share, 6)) / 100:.2f} %"
