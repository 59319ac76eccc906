"""Fronts of recall and rate, and what one of them allows at a recall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Point = Mapping[str, float]  # what some parameters gave: `recall`@10 and `rate`, queries a second


def find_front(points: Iterable[Point]) -> list[Point]:
    """Those that no other one beats in both, by rising recall and so falling rate."""
    front: list[Point] = []
    for point in sorted(points, key=lambda each: (-each["recall"], -each["rate"])):
        if not front or point["rate"] > front[-1]["rate"]:
            front.append(point)
    return front[::-1]


def rate_at(front: Sequence[Point], recall: float) -> float | None:
    """The front's rate at a recall: between two points log-linear, before the first that of the first.

    None where it does not reach the recall.
    """
    if not front or recall > front[-1]["recall"]:
        return None
    recalls, logs = [point["recall"] for point in front], [np.log(point["rate"]) for point in front]
    return float(np.exp(np.interp(recall, recalls, logs)))


def compare(point: Point, fronts: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """The best of some peers' fronts at a point's recall, and how often the point's rate is theirs.

    Without a peer where none reaches that recall.
    """
    rates = {name: rate for name, front in fronts.items() if (rate := rate_at(front, point["recall"])) is not None}
    if not rates:
        return {"peer": None, "peer_rate": None, "ratio": None}
    best = max(rates, key=lambda name: rates[name])
    return {"peer": best, "peer_rate": rates[best], "ratio": point["rate"] / rates[best]}
