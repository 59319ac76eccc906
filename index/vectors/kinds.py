"""Kinds of ANN index: cost, training, search parameters, and settings to measure.

A new kind is a class and its entry in the table at the end. Nothing here loads numpy or faiss, for `--help`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from index.faiss_library import find_inner, import_faiss

if TYPE_CHECKING:
    from index.arrays import Vectors

logger = logging.getLogger(__name__)

CANDIDATES = (20, 40, 80, 160, 320, 640, 1280)  # to be ranked exactly
_SURE_CANDIDATES, _REDUCED_CANDIDATES = CANDIDATES[:2], CANDIDATES[:4]
_ROW_BYTES = 24  # of ids and positions, for every vector
_BUILDING_ROW_BYTES = 48  # the same during the build: in the order of the vectors and of the index
_PROCESS_BYTES = 130_000_000  # of the interpreter and its libraries
_TRAINING_ROWS = 65_536

_LIST_ID_BYTES = 8  # that a list keeps beside each code
_MANY_LISTS = 8192  # from here on a graph finds the nearest centres, in the time of scanning so many
_MAX_LISTS = 65_536
_TRAINING_PER_LIST = 64  # faiss's k-means wants 39 to 256
_TRAINING_ROUNDS = 10  # of faiss's k-means
_GROWTH = 1.5  # of lists, which double when they are full
_PRODUCTS_A_SECOND = 2e10  # multiplications of a core
_NUMBERS_OF_A_BYTE = (2, 4, 8, 16)

_LINKS, _CONSTRUCTION_EFFORT = 24, 200
_STEP_SECONDS, _NUMBER_SECONDS = 3e-6, 1.5e-7  # of a core, for each vector and doubling, and each of its numbers
_GRAPH_EFFORTS = (20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


@dataclass(frozen=True, slots=True)
class AnnPlan:
    """An ANN index to be built, with estimated costs.

    Attributes:
        type: the name of its kind.
        factory: faiss's factory string; `Flat` is a scan of the stored vectors.
        reduced_width: dimensions of the indexed vectors; None: all.
        reason: why it was chosen, for people.
        building_bytes: peak memory of the build, without the mapped vectors.
        core_seconds: of training and filling it.
    """

    type: str
    factory: str
    reduced_width: int | None
    memory_bytes: int
    reason: str
    building_bytes: int = 0
    disk_bytes: int = 0
    core_seconds: float = 0.0

    @property
    def full_factory(self) -> str:
        """faiss's factory string of the whole index."""
        return self.factory if self.reduced_width is None else f"PCA{self.reduced_width},{self.factory}"

    def describe_building(self, *, count: int, cores: int) -> str:
        minutes = self.core_seconds / cores / 60
        return (
            f"the ANN index {self.full_factory} of {count:,} vectors takes about "
            f"{self.building_bytes / 1e9:.1f} GB of memory while it is built, "
            f"{self.disk_bytes / 1e9:.1f} GB on disk, and "
            f"{'less than a minute' if minutes < 1 else f'some {minutes:.0f} minutes'} of {cores} idle cores, "
            "without measuring it"
        )


class IndexKind:
    """A kind of ANN index; the base class is the exact scan.

    Attributes:
        name: in `--index-type` and in manifests.
        summary: a few words that follow the name in `--help`.
        explanation: half a sentence for people.
        is_exact: whether it is a scan of the stored vectors, without a file.
        is_reducible: whether it may hold rotated vectors of fewer dimensions.
        has_full_scores: whether scores, without reduction, differ only by rounding numbers to bytes.
        most_rows: vectors above which `auto` skips it.
        loose_share: share of vectors that may lie beside it before it is rebuilt.
        effort: faiss's name of its search parameter.
        keeps_effort: whether the effort is the number of candidates that a search keeps.
    """

    name: ClassVar[str] = "flat"
    summary: ClassVar[str] = "is exact"
    explanation: ClassVar[str] = "every vector is compared, so nothing is missed"
    is_exact: ClassVar[bool] = True
    is_reducible: ClassVar[bool] = False
    has_full_scores: ClassVar[bool] = True
    most_rows: ClassVar[float] = float("inf")
    loose_share: ClassVar[float] = 0.1
    effort: ClassVar[str] = ""
    keeps_effort: ClassVar[bool] = False

    def plan(self, count: int, width: int, reduced_width: int | None = None) -> Sequence[AnnPlan]:
        """Possible indexes of so many vectors, the fastest first and the smallest last.

        `reduced_width` is the number of rotated dimensions that suffices; None: all.
        """
        return [AnnPlan(self.name, "Flat", None, 4 * width * count, "asked for")]

    def count_training_rows(self, count: int) -> int:
        """The number of training vectors; more than there are means all."""
        return 0

    def train(self, index: Any, sample: Vectors) -> None:
        """Train an index of `faiss.index_factory`, maybe behind a rotation, with (n, D) vectors."""

    def is_of(self, inner: Any) -> bool:
        """Whether a faiss index, without its rotation, is of this kind."""
        return False

    def parameters(self, effort: int, **others: Any) -> Any:
        """faiss's parameters of one search."""
        return None

    def most_effort(self, index: Any) -> int:
        """The effort from which on nothing more is searched."""
        return 1

    def sweep(self, most_effort: int, *, is_reduced: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Settings to measure: efforts, and numbers of candidates to rank exactly; both rising."""
        return (), ()


class _Graph(IndexKind):
    """HNSW: the fastest at the same recall; tens of millions of vectors take hours to build."""

    name = "hnsw"
    summary = "a graph"
    explanation = "a graph of neighbours is followed"
    is_exact = False
    is_reducible = True
    most_rows = 5_000_000.0
    loose_share = 0.02
    effort = "efSearch"
    keeps_effort = True

    def plan(self, count: int, width: int, reduced_width: int | None = None) -> Sequence[AnnPlan]:
        links = 4 * (2 * _LINKS + 2) + 12  # bytes: the lowest level, some above, and their offsets
        held = reduced_width or width
        disk = count * (held + links)
        memory, building = disk + count * _ROW_BYTES, disk + count * _BUILDING_ROW_BYTES + _PROCESS_BYTES
        seconds = count * math.log2(count) * (_STEP_SECONDS + held * _NUMBER_SECONDS)
        reason, factory = "the fastest that fits into memory", f"HNSW{_LINKS},SQ8"
        return [AnnPlan(self.name, factory, reduced_width, memory, reason, building, disk, seconds)]

    def count_training_rows(self, count: int) -> int:
        return _TRAINING_ROWS

    def train(self, index: Any, sample: Vectors) -> None:
        find_inner(index).hnsw.efConstruction = _CONSTRUCTION_EFFORT
        index.train(sample)

    def is_of(self, inner: Any) -> bool:
        return isinstance(inner, import_faiss().IndexHNSW)

    def parameters(self, effort: int, **others: Any) -> Any:
        return import_faiss().SearchParametersHNSW(efSearch=effort, **others)

    def most_effort(self, index: Any) -> int:
        return int(index.ntotal)

    def sweep(self, most_effort: int, *, is_reduced: bool) -> tuple[Sequence[int], Sequence[int]]:
        efforts = [effort for effort in _GRAPH_EFFORTS if effort < most_effort] or [most_effort]
        return efforts, _REDUCED_CANDIDATES if is_reduced else _SURE_CANDIDATES


class _ByteLists(IndexKind):
    """IVF with scalar quantisation: smaller than a graph and built sooner, but slower at the same recall.

    k-means finds the centres, on all GPUs where there are any.
    """

    name = "ivf"
    summary = "lists around centres"
    explanation = "only the clusters nearest to the query are looked into"
    is_exact = False
    is_reducible = True
    loose_share = 0.02
    effort = "nprobe"

    def plan(self, count: int, width: int, reduced_width: int | None = None) -> Sequence[AnnPlan]:
        lists, held = count_lists(count), reduced_width or width
        memory = count * (held + _LIST_ID_BYTES + _ROW_BYTES) + lists * (4 * held + 300)
        reason = "a graph would take too much memory, or hours to build"
        plan = AnnPlan(self.name, f"{_name_lists(lists)},SQ8", reduced_width, memory, reason)
        return [_estimate_lists(plan, count=count, width=width, code_bytes=held)]

    def count_training_rows(self, count: int) -> int:
        return max(_TRAINING_ROWS, _TRAINING_PER_LIST * count_lists(count))

    def train(self, index: Any, sample: Vectors) -> None:
        faiss, lists = import_faiss(), find_inner(index)
        for clustering in (lists, *([lists.pq] if isinstance(lists, faiss.IndexIVFPQ) else [])):
            clustering.cp.min_points_per_centroid = 1  # no warning on stderr with few vectors
        if not faiss.get_num_gpus():
            index.train(sample)
            return
        try:
            lists.clustering_index = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(lists.d))
            index.train(sample)
        except RuntimeError as error:  # others may have taken its memory
            logger.warning("faiss cannot train on the GPU (%s): the CPU does", error)
            lists.clustering_index = None
            index.train(sample)
        lists.clustering_index = None  # gives a GPU's memory back

    def is_of(self, inner: Any) -> bool:
        return isinstance(inner, import_faiss().IndexIVFScalarQuantizer)

    def parameters(self, effort: int, **others: Any) -> Any:
        return import_faiss().SearchParametersIVF(nprobe=effort, **others)

    def most_effort(self, index: Any) -> int:
        return int(import_faiss().extract_index_ivf(index).nlist)

    def sweep(self, most_effort: int, *, is_reduced: bool) -> tuple[Sequence[int], Sequence[int]]:
        return _list_efforts(most_effort), _REDUCED_CANDIDATES if is_reduced else _SURE_CANDIDATES


class _CodeLists(_ByteLists):
    """IVF with product quantisation: the smallest; scores are coarse, so more candidates are ranked exactly."""

    name = "pq"
    summary = "very small lists"
    explanation = "only the clusters nearest to the query are looked into, by short codes of their vectors"
    is_reducible = False
    has_full_scores = False

    def plan(self, count: int, width: int, reduced_width: int | None = None) -> Sequence[AnnPlan]:
        """Codes of a byte for `_NUMBERS_OF_A_BYTE` numbers each; `np` leaves polysemous codes out, unused here."""
        lists, plans = count_lists(count), []
        for numbers in _NUMBERS_OF_A_BYTE:
            most = max(1, width // numbers)
            parts = max(parts for parts in range(1, most + 1) if width % parts == 0)
            memory = count * (parts + _LIST_ID_BYTES + _ROW_BYTES) + lists * (4 * width + 300) + 1024 * width
            reason = "nothing larger fits into memory; searches are slower for it"
            plan = AnnPlan(self.name, f"{_name_lists(lists)},PQ{parts}np", None, memory, reason)
            plans.append(_estimate_lists(plan, count=count, width=width, code_bytes=parts))
        return plans

    def is_of(self, inner: Any) -> bool:
        return isinstance(inner, import_faiss().IndexIVFPQ)

    def sweep(self, most_effort: int, *, is_reduced: bool) -> tuple[Sequence[int], Sequence[int]]:
        return _list_efforts(most_effort), CANDIDATES


def count_lists(count: int) -> int:
    """The number of lists: the power of two nearest to 4 sqrt(N), with at least 39 vectors in each.

    faiss recommends 4 sqrt(N) to 16 sqrt(N) below a million ("Guidelines to choose an index"), and 39 to 256 training
    points for each centre.
    """
    lists = 1 << round(4 * count**0.5).bit_length() - 1
    if 4 * count**0.5 > 1.5 * lists:
        lists *= 2
    while lists > 1 and 39 * lists > count:
        lists //= 2
    return int(min(lists, _MAX_LISTS))


def _estimate_lists(plan: AnnPlan, *, count: int, width: int, code_bytes: int) -> AnnPlan:
    """A plan of lists, with codes of so many bytes, with its costs."""
    lists, held = count_lists(count), plan.reduced_width or width
    centres = lists * (4 * held + 300)
    sample = min(count, KINDS["ivf"].count_training_rows(count))
    growing = round(_GROWTH * count * (code_bytes + _LIST_ID_BYTES))
    memory = growing + count * _BUILDING_ROW_BYTES + centres + sample * 4 * (width + held)
    products = held * (_TRAINING_ROUNDS * sample * lists + count * min(lists, _MANY_LISTS))
    return replace(
        plan,
        building_bytes=memory + _PROCESS_BYTES,
        disk_bytes=count * (code_bytes + _LIST_ID_BYTES) + centres,
        core_seconds=products / _PRODUCTS_A_SECOND,
    )


def _name_lists(lists: int) -> str:
    return f"IVF{lists}_HNSW32" if lists >= _MANY_LISTS else f"IVF{lists}"


def _list_efforts(most_effort: int) -> list[int]:
    """Numbers of lists to look through: powers of the root of 2."""
    steps = [round(2 ** (step / 2)) for step in range(2 * most_effort.bit_length())]
    return sorted({effort for effort in steps if effort <= most_effort})


_ALL = (IndexKind(), _Graph(), _ByteLists(), _CodeLists())  # `auto` takes the first that fits
KINDS: Mapping[str, IndexKind] = {kind.name: kind for kind in _ALL}
INDEX_TYPES = ("auto", *KINDS)


def list_summaries() -> str:
    exact = ", ".join(f"{kind.name} {kind.summary}" for kind in _ALL if kind.is_exact)
    others = ", ".join(f"{kind.name} {kind.summary}" for kind in _ALL if not kind.is_exact)
    return f"{exact}; {others}, re-ranked exactly"
