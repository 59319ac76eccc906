"""`ivf`: lists around centres, in which vectors are kept as bytes, number by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from index.faiss_library import import_faiss
from index.vectors.kinds.kind import ROW_OVERHEAD, AnnPlan, Sweep, Wanted, list_candidates
from index.vectors.kinds.lists import LIST_OVERHEAD, Lists, count_lists, list_efforts, name_lists, plan_lists


class ByteLists(Lists):
    """Smaller than a graph and built sooner, but slower for the same recall."""

    name = "ivf"
    summary = "lists around centres"
    explanation = "only the clusters nearest to the query are looked into"
    is_reducible = True
    has_full_scores = True

    def plan(self, wanted: Wanted) -> Sequence[AnnPlan]:
        """A byte for each number that is held, and the centres."""
        lists, held = count_lists(wanted.count), wanted.reduced_width or wanted.width
        memory = wanted.count * (held + LIST_OVERHEAD + ROW_OVERHEAD) + lists * (4 * held + 300)
        reason, building = (
            "a graph would take too much memory, or hours to build",
            plan_lists(wanted, code_bytes=held),
        )
        return [AnnPlan(self.name, f"{name_lists(lists)},SQ8", wanted.reduced_width, memory, reason, building)]

    def is_of(self, inner: Any) -> bool:
        """Lists of bytes are."""
        return isinstance(inner, import_faiss().IndexIVFScalarQuantizer)

    def sweep(self, most_effort: int, *, is_reduced: bool) -> Sweep:
        """Few candidates need to be ranked, for scores are nearly exact."""
        return Sweep(list_efforts(most_effort), list_candidates(is_reduced=is_reduced))
