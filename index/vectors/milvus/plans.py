"""The kinds of index that Milvus builds, by the names of ours, and which of them so many vectors get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from index.errors import InputError
from index.vectors.ann_choice import find_reason_for_flat
from index.vectors.ann_config import AnnConfig
from index.vectors.kinds.lists import count_lists
from index.vectors.kinds.registry import KINDS

Build = Callable[[int], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class MilvusPlan:
    """A kind of index as Milvus has it.

    Attributes:
        type: Milvus's name of it.
        build: what it is built with, of so many vectors.
        effort: Milvus's name of how hard it looks; empty where it looks at all.
        efforts: worth measuring, rising.
        bytes_of_number: that it keeps in memory for each number of a vector.
        keeps_effort: whether the effort is a number of candidates, at least as many as are wanted.
    """

    type: str
    build: Build
    effort: str
    efforts: tuple[int, ...]
    bytes_of_number: int
    keeps_effort: bool


PLANS: Mapping[str, MilvusPlan] = {
    "flat": MilvusPlan("FLAT", lambda count: {}, "", (), 4, False),
    "hnsw": MilvusPlan(
        "HNSW", lambda count: {"M": 24, "efConstruction": 200}, "ef", (32, 64, 128, 256, 512, 1024), 4, True
    ),
    "ivf": MilvusPlan(
        "IVF_SQ8", lambda count: {"nlist": count_lists(count)}, "nprobe", (4, 8, 16, 32, 64, 128, 256), 1, False
    ),
}
"""By the names of `index.vectors.kinds.registry`."""


def choose_kind(count: int, config: AnnConfig) -> tuple[str, str]:
    """The kind of index that so many vectors get, and why.

    Raises:
        InputError: it is asked for, and Milvus is not asked for such.
    """
    if config.kind is not None and config.kind.name not in PLANS:
        raise InputError(
            f"index_type {config.index_type}: a gallery in Milvus has one of {', '.join(PLANS)}; give another "
            "--index-type"
        )
    reason = find_reason_for_flat(count, config)
    if reason is not None:
        return "flat", reason
    if config.kind is not None:
        return config.kind.name, "asked for"
    if count <= KINDS["hnsw"].most_rows:
        return "hnsw", "the fastest of those that Milvus builds"
    return "ivf", "a graph would take too much memory, or hours to build"


def scale(plan: MilvusPlan, parameters: Mapping[str, int], *, depth: int) -> Mapping[str, int]:
    """The parameters of a search for so many candidates."""
    if not plan.effort:
        return {}
    effort = parameters[plan.effort]
    return {plan.effort: max(effort, depth) if plan.keeps_effort else effort}
