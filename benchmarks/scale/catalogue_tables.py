"""What the operations of a catalogue cost by its rows: how they grow, and what that comes to for 10⁹."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.common.tables import format_table
from benchmarks.scale.show import show, show_images

FAR = 10**9
_FLAT = 0.2  # the exponent up to which seconds are taken not to grow


def format_catalogue(catalogues: Mapping[int, Mapping[str, Any]]) -> str:
    """Every operation by rows, the exponent of its growth between the two largest, and the estimate for 10⁹."""
    sizes = sorted(catalogues)
    head = ["catalogue alone", *map(show_images, sizes), "grows with n to the", f"{show_images(FAR)}, estimated"]
    rows = []
    for name, unit, values in list_operations(catalogues):
        exponent = find_exponent(values)
        rows.append((
            name, *(show(values[size], unit) for size in sizes), "-" if exponent is None else f"{exponent:.2f}",
            show(extrapolate(values, FAR, unit=unit), unit),
        ))  # fmt: skip
    return format_table(head, rows)


def list_operations(
    catalogues: Mapping[int, Mapping[str, Any]],
) -> Iterator[tuple[str, str, dict[int, float]]]:
    """(name, unit, value by rows) of each operation, of whole changes, of bytes on disk and in memory."""
    one = catalogues[min(catalogues)]

    def collect(*path: str) -> dict[int, float]:
        found = {}
        for rows, measured in catalogues.items():
            value: Any = measured
            for step in path:
                value = value[step]
            found[rows] = float(value)
        return found

    yield "file", "B", collect("bytes")
    yield "disk while a new one is made", "B", collect("disk", "make")
    yield "disk while one row is changed", "B", collect("disk", "change")
    for part in ("make", "read", "change"):
        yield f"memory: {part}", "B", collect("memory", part)
    for part in ("make", "read", "change"):
        yield from ((f"{part}: {name}", "s", collect(part, name)) for name in one[part])
        if part != "read":
            total = {rows: sum(measured[part].values()) for rows, measured in catalogues.items()}
            yield f"{part}: all", "s", total


def find_exponent(values: Mapping[int, float]) -> float | None:
    """x of n^x between the two largest sizes; None where there is one only, or nothing to divide by."""
    if len(values) < 2:
        return None
    below, most = sorted(values)[-2:]
    if min(values[below], values[most]) <= 0:
        return None
    return math.log(values[most] / values[below]) / math.log(most / below)


def extrapolate(values: Mapping[int, float], rows: int, *, unit: str = "s") -> float:
    """What so many rows cost: on the line through the two largest sizes, or as there where seconds hardly grow.

    Memory has a large fixed part, which hides in its exponent that it grows.
    """
    most, exponent = max(values), find_exponent(values)
    if exponent is None or (unit == "s" and exponent <= _FLAT):
        return values[most]
    below = sorted(values)[-2]
    slope = max(0.0, (values[most] - values[below]) / (most - below))
    return values[most] + slope * (rows - most)
