"""Kinds of ANN index, in one table; without loading numpy or faiss, for `--help`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from index.faiss_library import find_inner, import_faiss

if TYPE_CHECKING:
    from index.arrays import Vectors

logger = logging.getLogger(__name__)

CANDIDATES = (20, 40, 80, 160)  # to be ranked exactly
_ROW_BYTES = 24  # of ids and positions, for every vector
_TRAINING_ROWS = 65_536

_LIST_ID_BYTES = 8  # that a list keeps beside each code
_MANY_LISTS = 8192  # from here on a graph finds the nearest centres, in the time of scanning so many
_MAX_LISTS = 65_536
_TRAINING_PER_LIST = 64  # faiss's k-means wants 39 to 256
_LIST_EFFORTS = tuple(sorted({round(2 ** (step / 2)) for step in range(33)}))  # powers of the root of 2

GRAPH_LINKS, CONSTRUCTION_EFFORT = 24, 200
_LINK_BYTES = 4 * (2 * GRAPH_LINKS + 2) + 12  # the lowest level, some above, and their offsets
_GRAPH_EFFORTS = (20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


@dataclass(frozen=True, slots=True)
class AnnPlan:
    """An ANN index of a kind to be built: faiss's factory string, estimated memory with ids, and why it was chosen.

    `reduced_width` is the number of dimensions of the indexed vectors; None: all.
    """

    type: str
    factory: str
    reduced_width: int | None
    memory_bytes: int
    reason: str

    @property
    def full_factory(self) -> str:
        """faiss's factory string of the whole index."""
        return self.factory if self.reduced_width is None else f"PCA{self.reduced_width},{self.factory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexKind:
    """A kind of ANN index, which stores a byte for each number; `flat`, the exact scan of the vectors, has no file.

    `summary` follows the name in `--help`, `explanation` is half a sentence for people, and `reason` says why `auto`
    takes it. `faiss_class` is of its index behind the rotation; empty for the scan. `effort` is faiss's name of its
    search parameter, of which `efforts` are measured in order. `auto` skips it above `most_rows`; it is rebuilt once
    `loose_share` of its vectors lie beside it.
    """

    name: str
    summary: str
    explanation: str
    reason: str
    faiss_class: str = ""
    effort: str = ""
    efforts: Sequence[int] = ()
    most_rows: float = float("inf")
    loose_share: float = 0.1

    @property
    def is_exact(self) -> bool:
        """Whether it is the scan."""
        return not self.faiss_class

    @property
    def keeps_effort(self) -> bool:
        """Whether it is a graph: the effort is the number of candidates that a search keeps."""
        return self.effort == "efSearch"

    def plan(self, count: int, width: int, reduced_width: int | None = None) -> AnnPlan:
        """The index of so many vectors; `reduced_width` as of `choose_ann`."""
        if self.is_exact:
            return AnnPlan(self.name, "Flat", None, 4 * width * count, self.reason)
        held, lists = reduced_width or width, count_lists(count)
        if self.keeps_effort:
            factory, beside, fixed = f"HNSW{GRAPH_LINKS},SQ8", _LINK_BYTES, 0
        else:
            graph = "_HNSW32" if lists >= _MANY_LISTS else ""
            factory, beside, fixed = f"IVF{lists}{graph},SQ8", _LIST_ID_BYTES, lists * (4 * held + 300)
        memory_bytes = fixed + count * (held + beside + _ROW_BYTES)
        return AnnPlan(self.name, factory, reduced_width, memory_bytes, self.reason)

    def count_training_rows(self, count: int) -> int:
        """The number of training vectors; more than there are means all."""
        return _TRAINING_ROWS if self.keeps_effort else max(_TRAINING_ROWS, _TRAINING_PER_LIST * count_lists(count))

    def train(self, index: Any, sample: Vectors) -> None:
        """Train an index of `faiss.index_factory`, maybe behind a rotation, with (n, D) vectors; on GPUs if any."""
        faiss, inner = import_faiss(), find_inner(index)
        if self.keeps_effort:
            inner.hnsw.efConstruction = CONSTRUCTION_EFFORT
            index.train(sample)
            return
        inner.cp.min_points_per_centroid = 1  # no warning on stderr with few vectors
        if not faiss.get_num_gpus():
            index.train(sample)
            return
        try:
            inner.clustering_index = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(inner.d))
            index.train(sample)
        except RuntimeError as error:  # others may have taken its memory
            logger.warning("faiss cannot train on the GPU (%s): the CPU does", error)
            inner.clustering_index = None
            index.train(sample)
        inner.clustering_index = None  # gives a GPU's memory back

    def is_of(self, inner: Any) -> bool:
        """Whether a faiss index, without its rotation, is of this kind."""
        return not self.is_exact and isinstance(inner, getattr(import_faiss(), self.faiss_class))

    def parameters(self, effort: int, **others: Any) -> Any:
        """faiss's parameters of one search."""
        faiss = import_faiss()
        kind = faiss.SearchParametersHNSW if self.keeps_effort else faiss.SearchParametersIVF
        return kind(**{self.effort: effort}, **others)

    def most_effort(self, index: Any) -> int:
        """The effort from which on nothing more is searched."""
        return int(index.ntotal if self.keeps_effort else import_faiss().extract_index_ivf(index).nlist)

    def sweep(self, most_effort: int, *, is_reduced: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Settings to measure: efforts, and numbers of candidates to rank exactly; both ascending."""
        efforts = [effort for effort in self.efforts if effort <= most_effort] or [most_effort]
        return efforts, CANDIDATES if is_reduced else CANDIDATES[:2]


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


_ALL = (  # `auto` takes the first that fits
    IndexKind(
        name="flat",
        summary="is exact",
        explanation="every vector is compared, so nothing is missed",
        reason="asked for",
    ),
    IndexKind(
        name="hnsw",
        summary="a graph",
        explanation="a graph of neighbours is followed",
        reason="the fastest that fits into memory",
        faiss_class="IndexHNSW",
        effort="efSearch",
        efforts=_GRAPH_EFFORTS,
        most_rows=5_000_000,  # more take hours to build
        loose_share=0.02,
    ),
    IndexKind(
        name="ivf",
        summary="lists around centres",
        explanation="only the clusters nearest to the query are looked into",
        reason="a graph would take too much memory, or hours to build",
        faiss_class="IndexIVFScalarQuantizer",
        effort="nprobe",
        efforts=_LIST_EFFORTS,
        loose_share=0.02,
    ),
)
KINDS: Mapping[str, IndexKind] = {kind.name: kind for kind in _ALL}
INDEX_TYPES = ("auto", *KINDS)


def list_summaries() -> str:
    exact, *others = (f"{kind.name} {kind.summary}" for kind in _ALL)
    return f"{exact}; {', '.join(others)}, re-ranked exactly"
