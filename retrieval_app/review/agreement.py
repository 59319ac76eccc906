"""How far people who decided about the same labels agree."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from index.labels.decisions import OPEN

_NAMED = (
    "SELECT sha256, label, decided_by, decision, new_label FROM label_decisions AS d "
    "JOIN steps ON steps.number = d.step WHERE decided_by IS NOT NULL ORDER BY d.step"
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of two people: labels that both decided about, each by the last decision, and those decided alike."""

    reviewers: tuple[str, str]
    both: int
    alike: int


def read_agreement(connection: sqlite3.Connection) -> tuple[Agreement, ...]:
    """Every two people who decided about a label that the other decided about too, by name."""
    by_label: dict[tuple[str, str], dict[str, tuple[str, str | None]]] = {}
    for sha256, label, name, decision, new_label in connection.execute(_NAMED):
        decided = by_label.setdefault((sha256, label), {})
        if decision == OPEN:
            decided.pop(name, None)
        else:
            decided[name] = decision, new_label
    both: Counter[tuple[str, str]] = Counter()
    alike: Counter[tuple[str, str]] = Counter()
    for decided in by_label.values():
        for one, two in combinations(sorted(decided), 2):
            both[one, two] += 1
            alike[one, two] += decided[one] == decided[two]
    return tuple(Agreement(pair, both[pair], alike[pair]) for pair in sorted(both))
