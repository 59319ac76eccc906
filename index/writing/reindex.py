"""The commands that write a gallery's index anew and leave its images as they are: compact, tune."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.catalog.writer import CatalogWriter
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.queries import read_queries
from index.limits import LOCK_WAIT_S
from index.progress import BeginStep, no_steps
from index.vectors.ann_building import find_reason_for_flat
from index.vectors.ann_config import INDEX_SETTING, AnnConfig
from index.vectors.store import Publication
from index.writing.publish_change import BuildReport, open_workspace, run_change

_FEW_QUERIES = 100


def compact_gallery(
    gallery: Path, *, begin_step: BeginStep = no_steps, wait_s: float = LOCK_WAIT_S
) -> BuildReport:
    """Write the current version anew: one index over all members, and no room for what is none any more."""
    start = time.perf_counter()
    with open_workspace(gallery, wait_s=wait_s, begin_step=begin_step) as work:
        return run_change(work, None, begin_step=begin_step, start=start, how=Publication(compact=True))


def tune_gallery(
    gallery: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    queries: Sequence[str] = (),
    begin_step: BeginStep = no_steps,
    wait_s: float = LOCK_WAIT_S,
) -> BuildReport:
    """Measure the index of a gallery again, and build it again where other wishes call for another one.

    Args:
        changes: fields of `AnnConfig` that are other from now on; the gallery remembers the rest.
        queries: images or vectors, as `gallery.queries.read_queries` takes them, that ask in place of those vectors
            that the index has not seen. They are to be such as are asked later, and no members.

    Raises:
        InputError: a field is out of range, no index fits, or fewer than 100 queries can be used.
        GalleryError: as `build_gallery`.
    """
    start = time.perf_counter()
    AnnConfig(**(changes or {}))  # before any query is embedded
    asking = _embed(gallery, queries) if queries else None

    def change(catalog: CatalogWriter) -> None:
        config = replace(AnnConfig.from_text(catalog.setting(INDEX_SETTING)), **(changes or {}))
        catalog.set({INDEX_SETTING: config.to_text()})
        if queries and find_reason_for_flat(catalog.count("indexed"), config) is not None:
            raise InputError("the index is flat and finds everything, so there is nothing to measure with queries")

    with open_workspace(gallery, wait_s=wait_s, begin_step=begin_step) as work:
        how = Publication(tune=True, queries=asking)
        return run_change(work, change, begin_step=begin_step, start=start, how=how)


def _embed(gallery: Path, queries: Sequence[str]) -> Vectors:
    found = [query.vector for query in read_queries(queries, ids=(), gallery=Gallery.open(gallery))]
    vectors = [vector for vector in found if vector is not None]
    if len(vectors) < _FEW_QUERIES:
        raise InputError(
            f"{len(vectors)} of {len(found)} queries can be used; at least {_FEW_QUERIES} are needed to measure an "
            "index with, so give more of them, or none: then vectors of the gallery ask"
        )
    return np.stack(vectors)
