"""Building an ANN index: choose its kind, build it, measure it with held-out vectors, and write it."""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids, Vectors
from index.errors import InputError
from index.faiss_library import faiss_threads
from index.progress import BeginStep, no_steps
from index.threads import usable_cores
from index.vectors.ann_config import AnnConfig
from index.vectors.ann_index import build_ann, extend_ann, write_ann
from index.vectors.kinds import KINDS, AnnPlan, IndexKind
from index.vectors.search import MEASURED_K, VectorSearch
from index.vectors.shards import VectorRows, write_array
from index.vectors.stored_rows import StoredRows
from index.vectors.tuning import choose_again, describe_flat, tune_ann
from index.versions.manifest import HELD_OUT_NAME, INDEX_NAME

FLAT_ROWS = 100_000
MIN_ROWS = 1_000  # of an index that is not exact: fewer give too few queries to measure it
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

logger = logging.getLogger(__name__)
_SEED = 0
_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05
_WIDE = 128  # only vectors of more numbers are worth a rotation
_KEPT_ENERGY = 0.85
_WIDTH_STEP = 32
_REDUCED_SHARE = 0.7  # of the width, at most: else little is saved
_SAMPLE = 16_384
_SCANNED = 100  # vectors that measure a scan


def choose_ann(
    *, count: int, width: int, config: AnnConfig, reduced_width: int | None = None, machine_bytes: int | None = None
) -> AnnPlan:
    """The ANN index for `count` vectors of `width` dimensions.

    Args:
        reduced_width: rotated dimensions that suffice to find candidates; None: all.
        machine_bytes: memory of the machine; None: of this one.
    """
    kinds, reason = list_kinds(count, config)
    plans = [plan for kind in kinds for plan in kind.plan(count, width, reduced_width)]
    if kinds[0].is_exact:
        return replace(plans[0], reason=reason)
    limit = config.memory_bytes or (machine_bytes or machine_memory()) // 2
    for plan in plans:
        if plan.memory_bytes <= limit:
            return replace(plan, reason=reason or plan.reason)
    smallest = min(plan.memory_bytes for plan in plans)
    otherwise = "" if config.index_type == "auto" else ", or --index-type auto"
    raise InputError(
        f"an index of {count:,} vectors of {width} numbers takes at least {smallest:,} bytes as "
        f"{config.index_type}, {limit:,} are allowed; allow more, also for a finished gallery, with "
        f"`retrieval index tune GALLERY --memory-limit SIZE`{otherwise}"
    )


def list_kinds(count: int, config: AnnConfig) -> tuple[Sequence[IndexKind], str]:
    """The kinds for so many vectors, the first choice first; and the reason, empty where it is the chosen kind's."""
    flat, asked = KINDS["flat"], KINDS.get(config.index_type)
    if asked is None and count <= FLAT_ROWS:
        return [flat], f"up to {FLAT_ROWS:,} images exact search is fast enough"
    if asked is not flat and count < MIN_ROWS:
        return [flat], f"fewer than {MIN_ROWS:,} images, too few to measure another index with"
    if asked is not None:
        return [asked], "asked for"
    return [kind for kind in KINDS.values() if not kind.is_exact and count <= kind.most_rows], ""


def machine_memory() -> int:
    """Bytes of memory of the machine or the container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        path = Path(name)
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdigit():
            memory = min(memory, int(text))
    return memory


def build_ann_index(
    shards: Sequence[VectorRows],
    *,
    config: AnnConfig,
    folder: Path,
    queries: Vectors | None = None,
    begin_step: BeginStep = no_steps,
) -> dict[str, Any]:
    """Build, measure and write an ANN index over the shards; its entry in the manifest.

    Random held-out vectors are added only after they served as unseen queries. A scan has no file.

    Args:
        queries: (n, D) float32 unit vectors to measure it with; None: the held-out ones.
    """
    stored = StoredRows.of(shards)
    with faiss_threads(usable_cores()):
        is_reducible = any(kind.is_reducible for kind in list_kinds(len(stored), config)[0])
        axes = find_reduced_axes(stored) if is_reducible else None
        reduced_width = None if axes is None else len(axes)
        plan = choose_ann(count=len(stored), width=stored.width, config=config, reduced_width=reduced_width)
        described = {
            "type": plan.type,
            "factory": plan.full_factory,
            "reason": plan.reason,
            "memory_bytes": plan.memory_bytes,
            "shards": len(shards),
            **asdict(config),
        }
        if KINDS[plan.type].is_exact:
            return {**described, **_describe_scan(VectorSearch(stored))}
        size = f"{plan.memory_bytes / 1e9:.1f} GB of memory"
        logger.info("the ANN index %s of %s vectors takes about %s", plan.full_factory, f"{len(stored):,}", size)
        held_out = choose_held_out(len(stored))
        rows = np.setdiff1d(np.arange(len(stored)), held_out, assume_unique=True)
        if plan.reduced_width is None:
            axes = None
        index = build_ann(plan, stored, rows, axes=axes, seed=_SEED, progress=begin_step("Building index"))
        asking = stored.gather(held_out) if queries is None else queries
        measuring = begin_step("Measuring index")
        measured = tune_ann(stored, index, asking, target=config.recall_target, progress=measuring)
        write_ann(extend_ann(index, stored, held_out), folder / INDEX_NAME)
        write_array(folder / HELD_OUT_NAME, stored.ids[held_out])
        return {**described, **measured, "own_queries": queries is None}


def retune_ann_index(
    search: VectorSearch,
    *,
    described: dict[str, Any],
    config: AnnConfig,
    queries: Vectors | None = None,
    begin_step: BeginStep = no_steps,
) -> dict[str, Any]:
    """Measure a built index again and choose its parameters again; its new entry in the manifest.

    Without queries only latencies are measured: recall on held-out vectors does not change.
    """
    described = {**described, **asdict(config)}
    if search.index is None:
        return {**described, **_describe_scan(search)}
    if queries is None:
        asking = search.stored.gather(search.held_out)
        return {**described, **choose_again(search, described=described, queries=asking)}
    measured = tune_ann(
        search.stored, search.index, queries, target=config.recall_target, progress=begin_step("Measuring index")
    )
    return {**described, **measured, "own_queries": False}


def _describe_scan(search: VectorSearch) -> dict[str, Any]:
    step = max(1, len(search.stored) // _SCANNED)
    queries = search.stored.gather(np.arange(0, len(search.stored), step))
    return describe_flat(queries, partial(search.search, k=MEASURED_K, threads=usable_cores()))


def choose_held_out(count: int) -> Ids:
    """(n,) int64 rising positions of the held-out vectors of `count`."""
    size = min(_HELD_OUT, int(_HELD_OUT_SHARE * count))
    return np.sort(np.random.default_rng(_SEED).choice(count, size=size, replace=False))


def find_reduced_axes(stored: StoredRows) -> Vectors | None:
    """(d, D) float32 orthonormal axes with 85 % of the vectors' energy, if d is clearly less than D.

    They are eigenvectors of the second moment of a sample, not of its covariance, because inner products count.
    """
    if stored.width <= _WIDE:
        return None
    chosen = np.random.default_rng(_SEED).choice(len(stored), size=min(_SAMPLE, len(stored)), replace=False)
    sample = stored.gather(np.sort(chosen)).astype(np.float64)
    energies, axes = np.linalg.eigh(sample.T @ sample)
    held = np.cumsum(energies[::-1]) / energies.sum()
    width = -(-(int(np.searchsorted(held, _KEPT_ENERGY)) + 1) // _WIDTH_STEP) * _WIDTH_STEP
    return axes[:, ::-1].T[:width].astype(np.float32) if width <= _REDUCED_SHARE * stored.width else None
