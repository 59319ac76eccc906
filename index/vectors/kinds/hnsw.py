"""`hnsw`: a graph whose links lead from any vector to the nearest ones; vectors are kept as bytes, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from index.faiss_library import find_inner, import_faiss
from index.vectors.kinds.kind import (
    BUILDING_OVERHEAD,
    PROCESS_BYTES,
    ROW_OVERHEAD,
    AnnPlan,
    Building,
    Sweep,
    Wanted,
    list_candidates,
)

if TYPE_CHECKING:
    from index.arrays import Vectors

_LINKS = 24
_CONSTRUCTION_EFFORT = 200
_TRAINING_ROWS = 65_536
_STEP_SECONDS, _NUMBER_SECONDS = (
    3e-6,
    1.5e-7,
)  # of a core, for each vector and doubling, and for each of its numbers
_EFFORTS = (20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


class Graph:
    """The fastest for its recall; of tens of millions of vectors it takes hours to build."""

    name = "hnsw"
    summary = "a graph"
    explanation = "a graph of neighbours is followed"
    is_exact = False
    is_reducible = True
    has_full_scores = True
    most_rows = 5_000_000.0
    loose_share = 0.02
    effort = "efSearch"
    keeps_effort = True

    def plan(self, wanted: Wanted) -> Sequence[AnnPlan]:
        """A byte for each number that is held, and the links."""
        links = 4 * (2 * _LINKS + 2) + 12  # on the lowest level, some above, and where they start
        held = wanted.reduced_width or wanted.width
        disk = wanted.count * (held + links)
        memory, reason = disk + wanted.count * ROW_OVERHEAD, "the fastest that fits into memory"
        building = Building(
            disk + wanted.count * BUILDING_OVERHEAD + PROCESS_BYTES,
            disk,
            wanted.count * math.log2(wanted.count) * (_STEP_SECONDS + held * _NUMBER_SECONDS),
        )
        return [AnnPlan(self.name, f"HNSW{_LINKS},SQ8", wanted.reduced_width, memory, reason, building)]

    def count_training_rows(self, count: int) -> int:
        """For the range of each number."""
        return _TRAINING_ROWS

    def train(self, index: Any, sample: Vectors) -> None:
        """Learn the range of each number."""
        find_inner(index).hnsw.efConstruction = _CONSTRUCTION_EFFORT
        index.train(sample)

    def is_of(self, inner: Any) -> bool:
        """Any graph is."""
        return isinstance(inner, import_faiss().IndexHNSW)

    def parameters(self, effort: int, **others: Any) -> Any:
        """`efSearch`: the candidates that are kept on the way."""
        return import_faiss().SearchParametersHNSW(efSearch=effort, **others)

    def most_effort(self, index: Any) -> int:
        """All vectors as candidates."""
        return int(index.ntotal)

    def sweep(self, most_effort: int, *, is_reduced: bool) -> Sweep:
        """From the least candidates that can be ranked to where a scan is as fast."""
        efforts = [effort for effort in _EFFORTS if effort < most_effort] or [most_effort]
        return Sweep(efforts, list_candidates(is_reduced=is_reduced))
