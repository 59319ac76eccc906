"""Which faiss index fits so many vectors of a width into so much memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from index.errors import InputError
from index.index_config import IndexConfig

FLAT_ROWS = 100_000
MIN_ROWS = 1_000  # of an index that is not exact: fewer give no queries to measure it with
_GRAPH_ROWS = 5_000_000  # above, building a graph takes hours
_GRAPH_LINKS = 24
_LIST_OVERHEAD = 8  # bytes of the id that a list keeps beside each code
_ROW_OVERHEAD = 24  # bytes of ids and positions that are held for every vector
_MANY_LISTS = 8192  # from here on the nearest centres are found by a graph
_MAX_LISTS = 65_536
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """An index to be built.

    Attributes:
        type: `flat`, `hnsw`, `ivf` or `pq`.
        factory: faiss's name for it; `Flat` is no index of faiss, but a scan of the stored vectors.
        reduced_width: numbers of a vector that the index holds; None: all.
        memory_bytes: what it takes, estimated.
        reason: why it was chosen, for people.
    """

    type: str
    factory: str
    reduced_width: int | None
    memory_bytes: int
    reason: str


def choose_index(
    *,
    count: int,
    width: int,
    config: IndexConfig,
    reduced_width: int | None = None,
    machine_bytes: int | None = None,
) -> IndexPlan:
    """The index for `count` vectors of `width` numbers.

    Args:
        count: vectors.
        width: numbers of each.
        config: what is wanted.
        reduced_width: numbers of a rotated vector that are enough to find candidates by; None: all are needed.
        machine_bytes: memory of the machine; None: of this one.

    Raises:
        InputError: not even the smallest index fits into the memory that it may take.
    """
    limit = config.memory_bytes or (machine_bytes or machine_memory()) // 2
    reason = find_reason_for_flat(count, config)
    if reason is not None:
        return IndexPlan("flat", "Flat", None, 4 * width * count, reason)
    plans = {
        "hnsw": _plan_graph(count, width, reduced_width),
        "ivf": _plan_lists(count, width, reduced_width),
        **{f"pq{part}": _plan_small_lists(count, width, part) for part in (2, 4, 8, 16)},
    }
    wanted = [name for name in plans if config.index_type in ("auto", name.rstrip("0123456789"))]
    if config.index_type == "auto" and count > _GRAPH_ROWS:
        wanted.remove("hnsw")
    for name in wanted:
        if plans[name].memory_bytes <= limit:
            return plans[name]
    smallest = min((plans[name] for name in wanted), key=lambda plan: plan.memory_bytes)
    otherwise = "" if config.index_type == "auto" else ", or --index-type auto"
    raise InputError(
        f"an index of {count:,} vectors of {width} numbers takes at least {smallest.memory_bytes:,} bytes as "
        f"{config.index_type}, {limit:,} are allowed; allow more, also for a finished gallery, with "
        f"`retrieval index tune GALLERY --memory-limit SIZE`{otherwise}"
    )


def find_reason_for_flat(count: int, config: IndexConfig) -> str | None:
    """Why so many vectors are to be searched by a scan; None where they are not."""
    if config.index_type == "flat":
        return "asked for"
    if config.index_type == "auto" and count <= FLAT_ROWS:
        return f"up to {FLAT_ROWS:,} images exact search is fast enough"
    if count < MIN_ROWS:
        return f"fewer than {MIN_ROWS:,} images, too few to measure another index with"
    return None


def _plan_graph(count: int, width: int, reduced_width: int | None) -> IndexPlan:
    links = 4 * (2 * _GRAPH_LINKS + 2) + 12  # on the lowest level, some above, and where they start
    memory = count * ((reduced_width or width) + links + _ROW_OVERHEAD)
    return IndexPlan("hnsw", f"HNSW{_GRAPH_LINKS},SQ8", reduced_width, memory, "the fastest that fits into memory")


def _plan_lists(count: int, width: int, reduced_width: int | None) -> IndexPlan:
    lists, held = count_lists(count), reduced_width or width
    memory = count * (held + _LIST_OVERHEAD + _ROW_OVERHEAD) + lists * (4 * held + 300)
    reason = "a graph would take too much memory, or hours to build"
    return IndexPlan("ivf", f"{_name_lists(lists)},SQ8", reduced_width, memory, reason)


def _plan_small_lists(count: int, width: int, part: int) -> IndexPlan:
    """Product quantisation to a byte for about `part` numbers each, a whole part of the width.

    `np`: without polysemous codes, which take most of the training and are of no use here.
    """
    lists = count_lists(count)
    parts = max(parts for parts in range(1, max(1, width // part) + 1) if width % parts == 0)
    memory = count * (parts + _LIST_OVERHEAD + _ROW_OVERHEAD) + lists * (4 * width + 300) + 1024 * width
    reason = "nothing larger fits into memory; searches are slower for it"
    return IndexPlan("pq", f"{_name_lists(lists)},PQ{parts}np", None, memory, reason)


def _name_lists(lists: int) -> str:
    return f"IVF{lists}_HNSW32" if lists >= _MANY_LISTS else f"IVF{lists}"


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


def machine_memory() -> int:
    """Bytes of memory that this process may use: those of the machine, or of its container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        path = Path(name)
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdigit():
            memory = min(memory, int(text))
    return memory
