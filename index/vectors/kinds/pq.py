"""`pq`: lists around centres, in which a vector is a byte for every few of its numbers (product quantisation)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from index.faiss_library import import_faiss
from index.vectors.kinds.kind import ROW_OVERHEAD, AnnPlan, Sweep, Wanted
from index.vectors.kinds.lists import LIST_OVERHEAD, Lists, count_lists, list_efforts, name_lists, plan_lists

CANDIDATES = (20, 40, 80, 160, 320, 640, 1280)
_NUMBERS_OF_A_BYTE = (2, 4, 8, 16)


class CodeLists(Lists):
    """The smallest; its scores are coarse, so that more candidates must be ranked exactly."""

    name = "pq"
    summary = "very small lists"
    explanation = "only the clusters nearest to the query are looked into, by short codes of their vectors"
    is_reducible = False
    has_full_scores = False

    def plan(self, wanted: Wanted) -> Sequence[AnnPlan]:
        """A byte for about so many numbers each, a whole part of the width.

        `np`: without polysemous codes, which take most of the training and are of no use here.
        """
        lists, plans = count_lists(wanted.count), []
        for numbers in _NUMBERS_OF_A_BYTE:
            most = max(1, wanted.width // numbers)
            parts = max(parts for parts in range(1, most + 1) if wanted.width % parts == 0)
            memory = wanted.count * (parts + LIST_OVERHEAD + ROW_OVERHEAD)
            memory += lists * (4 * wanted.width + 300) + 1024 * wanted.width
            reason = "nothing larger fits into memory; searches are slower for it"
            building = plan_lists(wanted, code_bytes=parts)
            plans.append(AnnPlan(self.name, f"{name_lists(lists)},PQ{parts}np", None, memory, reason, building))
        return plans

    def is_of(self, inner: Any) -> bool:
        """Lists of codes are."""
        return isinstance(inner, import_faiss().IndexIVFPQ)

    def sweep(self, most_effort: int, *, is_reduced: bool) -> Sweep:
        """Many candidates, for codes tell near ones apart badly."""
        return Sweep(list_efforts(most_effort), CANDIDATES)
