"""What was measured held against the goals: pure arithmetic on documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GOAL_CLIENTS = 32
MOST_BY_ID_P99_MS = 20.0
LEAST_OF_BOUND = 0.7
LEAST_OVER_PEER = 2.0
MOST_RISE_SHARE = 0.02
MOST_START_SECONDS = 3.0
UPLOAD, QUICK = "by upload", "by upload, int8"
OURS = {UPLOAD: "ours", QUICK: "ours in int8"}

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]  # contestant, clients: summary of the rounds


def set_goal(name: str, measured: float, limit: float, unit: str = "", *, at_most: bool = False) -> dict[str, Any]:
    """A figure, its limit, which it may not exceed (`at_most`) or fall short of, and whether that is met."""
    met = measured <= limit if at_most else measured >= limit
    return {"name": name, "measured": measured, "limit": limit, "unit": unit, "at_most": at_most, "met": met}


def find_bound(decoding: float, inference: float) -> float:
    """Photos/s that cores allow which decoding, alone at d photos/s, and inference, alone at i, share."""
    return 1 / (1 / decoding + 1 / inference)


def judge_speed(cells: Cells, *, bound: float, peers: Sequence[str]) -> list[dict[str, Any]]:
    """The goals of searches; one whose number of clients was not measured is left out."""
    goals, many = [], str(GOAL_CLIENTS)
    if (one := cells["by id"].get("1")) is not None and one["p99_ms"] is not None:
        goals.append(set_goal("by id, one client: p99", one["p99_ms"], MOST_BY_ID_P99_MS, " ms", at_most=True))
    uploads = {name: cells[name][many]["per_second"]["median"] for name in OURS if many in cells.get(name, {})}
    if UPLOAD in uploads:
        name = f"uploads, {many} clients: ours / (1 / (1/d + 1/i))"
        goals.append(set_goal(name, uploads[UPLOAD] / bound, LEAST_OF_BOUND))
    for own, ours in uploads.items():
        for peer in peers:
            theirs = cells[peer][many]["per_second"]["median"]
            ratio = ours / theirs if theirs else float("inf")
            goals.append(set_goal(f"uploads, {many} clients: {OURS[own]} / {peer}", ratio, LEAST_OVER_PEER))
    return goals


def judge_memory(rise: float, *, middle: float) -> dict[str, Any]:
    """Whether memory is flat: bytes that it rises by over the second half, of those at its beginning."""
    limit = 100 * MOST_RISE_SHARE
    return set_goal("anonymous memory, rise over the second half", 100 * rise / middle, limit, " %", at_most=True)


def judge_start(name: str, seconds: float) -> dict[str, Any]:
    """Whether the start is fast enough."""
    return set_goal(f"{name} start to the first 200 of /v1/ready", seconds, MOST_START_SECONDS, " s", at_most=True)
