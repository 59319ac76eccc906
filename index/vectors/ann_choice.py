"""Which ANN index fits so many vectors of a width into so much memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from index.errors import InputError
from index.vectors.ann_config import AnnConfig
from index.vectors.kinds.kind import AnnPlan, IndexKind, Wanted
from index.vectors.kinds.registry import KINDS

FLAT_ROWS = 100_000
MIN_ROWS = 1_000  # of an index that is not exact: fewer give no queries to measure it with
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def choose_ann(
    *,
    count: int,
    width: int,
    config: AnnConfig,
    reduced_width: int | None = None,
    machine_bytes: int | None = None,
) -> AnnPlan:
    """The ANN index for `count` vectors of `width` numbers.

    Args:
        reduced_width: numbers of a rotated vector that are enough to find candidates by; None: all are needed.
        machine_bytes: memory of the machine; None: of this one.

    Raises:
        InputError: not even the smallest fits into the memory that it may take.
    """
    limit = config.memory_bytes or (machine_bytes or machine_memory()) // 2
    wanted = Wanted(count, width, reduced_width)
    reason = find_reason_for_flat(count, config)
    if reason is not None:
        return replace(KINDS["flat"].plan(wanted)[0], reason=reason)
    plans = [plan for kind in list_kinds(count, config) for plan in kind.plan(wanted)]
    for plan in plans:
        if plan.memory_bytes <= limit:
            return plan
    smallest = min(plans, key=lambda plan: plan.memory_bytes)
    otherwise = ", or --index-type auto" if config.kind else ""
    raise InputError(
        f"an index of {count:,} vectors of {width} numbers takes at least {smallest.memory_bytes:,} bytes as "
        f"{config.index_type}, {limit:,} are allowed; allow more, also for a finished gallery, with "
        f"`retrieval index tune GALLERY --memory-limit SIZE`{otherwise}"
    )


def list_kinds(count: int, config: AnnConfig) -> Sequence[IndexKind]:
    """The kinds that so many vectors may get where they are not to be scanned, the first choice first."""
    if config.kind is not None:
        return [config.kind]
    return [kind for kind in KINDS.values() if not kind.is_exact and count <= kind.most_rows]


def find_reason_for_flat(count: int, config: AnnConfig) -> str | None:
    """Why so many vectors are to be searched by a scan; None where they are not."""
    if config.kind is not None and config.kind.is_exact:
        return "asked for"
    if config.kind is None and count <= FLAT_ROWS:
        return f"up to {FLAT_ROWS:,} images exact search is fast enough"
    if count < MIN_ROWS:
        return f"fewer than {MIN_ROWS:,} images, too few to measure another index with"
    return None


def machine_memory() -> int:
    """Bytes of memory that this process may use: those of the machine, or of its container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        path = Path(name)
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdigit():
            memory = min(memory, int(text))
    return memory
