"""The kinds of ANN index; a further one is a class and its entry in the table at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from index.faiss_library import find_inner, import_faiss
from index.vectors.kinds.kind import (
    BUILDING_OVERHEAD,
    PROCESS_BYTES,
    ROW_OVERHEAD,
    AnnPlan,
    Building,
    IndexKind,
    Sweep,
    Wanted,
    list_candidates,
)
from index.vectors.kinds.lists import LIST_OVERHEAD, Lists, count_lists, list_efforts, name_lists, plan_lists

if TYPE_CHECKING:
    from index.arrays import Vectors


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


class Flat:
    """A scan: exact, with nothing to train, to set or to measure."""

    name = "flat"
    summary = "is exact"
    explanation = "every vector is compared, so nothing is missed"
    is_exact = True
    is_reducible = False
    has_full_scores = True
    most_rows = float("inf")
    loose_share = 0.1
    effort = ""
    keeps_effort = False

    def plan(self, wanted: Wanted) -> Sequence[AnnPlan]:
        """A scan takes no memory of its own; said is what the vectors take."""
        return [AnnPlan(self.name, "Flat", None, 4 * wanted.width * wanted.count, "asked for")]

    def count_training_rows(self, count: int) -> int:
        """None."""
        return 0

    def train(self, index: Any, sample: Vectors) -> None:
        """Nothing to do."""

    def is_of(self, inner: Any) -> bool:
        """Nothing is: a scan has no file."""
        return False

    def parameters(self, effort: int, **others: Any) -> Any:
        """None."""
        return None

    def most_effort(self, index: Any) -> int:
        """Every search looks at all."""
        return 1

    def sweep(self, most_effort: int, *, is_reduced: bool) -> Sweep:
        """Nothing can be set."""
        return Sweep((), ())


_ALL: tuple[IndexKind, ...] = (  # `auto` takes the first that fits
    Flat(),
    Graph(),
    ByteLists(),
    CodeLists(),
)
KINDS: Mapping[str, IndexKind] = {kind.name: kind for kind in _ALL}
INDEX_TYPES = ("auto", *KINDS)


def list_summaries() -> str:
    """What each kind is, for `--help`."""
    exact = ", ".join(f"{kind.name} {kind.summary}" for kind in _ALL if kind.is_exact)
    others = ", ".join(f"{kind.name} {kind.summary}" for kind in _ALL if not kind.is_exact)
    return f"{exact}; {others}, re-ranked exactly"
