"""What was measured held against the goals: pure arithmetic on documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

GOAL_CLIENTS = 32
MOST_BY_ID_P99_MS = 20.0
LEAST_OF_BOUND = 0.7
LEAST_OVER_PEER = 2.0
MOST_RISE_SHARE = 0.02
MOST_START_SECONDS = 3.0

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]  # contestant, clients: summary of the rounds


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its limit, which it may not exceed (`at_most`) or fall short of."""

    name: str
    measured: float
    limit: float
    unit: str = ""
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def to_json(self) -> dict[str, Any]:
        """With whether it is met."""
        return {**asdict(self), "met": self.met}


def find_bound(decoding: float, inference: float) -> float:
    """Photos/s that cores allow which decoding, alone at d photos/s, and inference, alone at i, share."""
    return 1 / (1 / decoding + 1 / inference)


def judge_speed(cells: Cells, *, bound: float, peers: Sequence[str]) -> list[Goal]:
    """The goals of searches; one whose number of clients was not measured is left out."""
    goals, many = [], str(GOAL_CLIENTS)
    if (one := cells["by id"].get("1")) is not None and one["p99_ms"] is not None:
        goals.append(Goal("by id, one client: p99", one["p99_ms"], MOST_BY_ID_P99_MS, " ms", at_most=True))
    uploads = cells["by upload"].get(many)
    if uploads is None:
        return goals
    ours = uploads["per_second"]["median"]
    name = f"uploads, {many} clients: ours / (1 / (1/d + 1/i))"
    goals.append(Goal(name, ours / bound, LEAST_OF_BOUND))
    for peer in peers:
        theirs = cells[peer][many]["per_second"]["median"]
        name = f"uploads, {many} clients: ours / {peer}"
        goals.append(Goal(name, ours / theirs if theirs else float("inf"), LEAST_OVER_PEER))
    return goals


def judge_memory(rise: float, *, middle: float) -> Goal:
    """Whether memory is flat: bytes that it rises by over the second half, of those at its beginning."""
    limit = 100 * MOST_RISE_SHARE
    return Goal("anonymous memory, rise over the second half", 100 * rise / middle, limit, " %", at_most=True)


def judge_start(name: str, seconds: float) -> Goal:
    """Whether the start is fast enough."""
    return Goal(f"{name} start to the first 200 of /v1/ready", seconds, MOST_START_SECONDS, " s", at_most=True)
