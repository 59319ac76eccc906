"""Markdown tables and the figures in them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def format_spread(values: Mapping[str, float], *, digits: int = 1) -> str:
    """Median, and from least to most."""
    median, least, most = (f"{values[name]:.{digits}f}" for name in ("median", "least", "most"))
    return f"{median} ({least} - {most})"


def format_deviation(value: Mapping[str, float] | None) -> str:
    """Mean and deviation over seeds; the mean alone where there is none, nothing for None."""
    if value is None:
        return ""
    return f"{value['mean']:.2f} ± {value['deviation']:.2f}" if value["deviation"] else f"{value['mean']:.2f}"


def format_interval(value: Mapping[str, float]) -> str:
    """A difference with its 95 % interval."""
    return f"{value['mean']:+.2f} [{value['low']:+.2f}, {value['high']:+.2f}]"
