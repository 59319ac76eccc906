"""What the kinds share that keep vectors in lists, one around each centre, and look through the nearest lists."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from index.faiss_library import find_inner, import_faiss
from index.vectors.kinds.kind import BUILDING_OVERHEAD, PROCESS_BYTES, Building, Wanted

if TYPE_CHECKING:
    from index.arrays import Vectors

logger = logging.getLogger(__name__)

LIST_OVERHEAD = 8  # bytes of the id that a list keeps beside each code
_MANY_LISTS = 8192  # from here on the nearest centres are found by a graph
_MAX_LISTS = 65_536
_TRAINING_ROWS = 65_536
_TRAINING_PER_LIST = 64  # faiss's k-means wants 39 to 256
_TRAINING_ROUNDS = 10  # of faiss's k-means
_GROWTH = 1.5  # of what lists hold, for they double when they are full
_GRAPH_CENTRES = 8192  # that the search of a graph for the nearest centre takes as long as
_PRODUCTS_A_SECOND = 2e10  # numbers that a core multiplies with others


class Lists:
    """Vectors in lists around centres, which k-means finds: on all GPUs where there are any."""

    is_exact = False
    most_rows = float("inf")
    loose_share = 0.02
    effort = "nprobe"
    keeps_effort = False

    def count_training_rows(self, count: int) -> int:
        """Enough for every centre."""
        return count_training_rows(count)

    def train(self, index: Any, sample: Vectors) -> None:
        """Find the centres, and what the codes need."""
        faiss, lists = import_faiss(), find_inner(index)
        for clustering in (lists, *([lists.pq] if isinstance(lists, faiss.IndexIVFPQ) else [])):
            clustering.cp.min_points_per_centroid = 1  # with few vectors it would warn on stderr of every codebook
        if not faiss.get_num_gpus():
            index.train(sample)
            return
        try:
            lists.clustering_index = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(lists.d))
            index.train(sample)
        except RuntimeError as error:  # others may have taken its memory
            logger.warning("faiss cannot find centres on the GPU (%s): the CPU does", error)
            lists.clustering_index = None
            index.train(sample)
        lists.clustering_index = None  # gives a GPU's memory back

    def parameters(self, effort: int, **others: Any) -> Any:
        """`nprobe`: the lists that are looked through."""
        return import_faiss().SearchParametersIVF(nprobe=effort, **others)

    def most_effort(self, index: Any) -> int:
        """All lists."""
        return int(import_faiss().extract_index_ivf(index).nlist)


def count_lists(count: int) -> int:
    """Lists for so many vectors: the power of two nearest to 4 sqrt(N), at least 39 vectors in each.

    4 sqrt(N) to 16 sqrt(N) is faiss's guidance below a million ("Guidelines to choose an index"); its k-means wants 39
    to 256 training points for each centre.
    """
    lists = 1 << round(4 * count**0.5).bit_length() - 1
    if 4 * count**0.5 > 1.5 * lists:
        lists *= 2
    while lists > 1 and 39 * lists > count:
        lists //= 2
    return int(min(lists, _MAX_LISTS))


def count_training_rows(count: int) -> int:
    """Vectors to find the centres of the lists of `count` with."""
    return max(_TRAINING_ROWS, _TRAINING_PER_LIST * count_lists(count))


def plan_lists(wanted: Wanted, *, code_bytes: int) -> Building:
    """What it takes to put vectors into lists, with codes of so many bytes."""
    lists, held = count_lists(wanted.count), wanted.reduced_width or wanted.width
    centres = lists * (4 * held + 300)
    sample = min(wanted.count, count_training_rows(wanted.count))
    lists_grow = round(_GROWTH * wanted.count * (code_bytes + LIST_OVERHEAD))
    memory = lists_grow + wanted.count * BUILDING_OVERHEAD + centres + sample * 4 * (wanted.width + held)
    looked_at = _GRAPH_CENTRES if lists >= _MANY_LISTS else lists
    products = held * (_TRAINING_ROUNDS * sample * lists + wanted.count * looked_at)
    return Building(
        memory + PROCESS_BYTES,
        wanted.count * (code_bytes + LIST_OVERHEAD) + centres,
        products / _PRODUCTS_A_SECOND,
    )


def name_lists(lists: int) -> str:
    """faiss's name of so many lists."""
    return f"IVF{lists}_HNSW32" if lists >= _MANY_LISTS else f"IVF{lists}"


def list_efforts(most_effort: int) -> list[int]:
    """Numbers of lists to look through: powers of the root of 2."""
    steps = [round(2 ** (step / 2)) for step in range(2 * most_effort.bit_length())]
    return sorted({effort for effort in steps if effort <= most_effort})
