"""Copies the current version of a gallery into a new one, whose vectors may lie elsewhere; nothing is embedded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.catalog.writer import CatalogWriter, write_catalog
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.gallery.gallery import Gallery
from index.gallery.queries import read_queries
from index.limits import LOCK_WAIT_S
from index.marks import read_mark
from index.model.contract import find_contract
from index.progress import BeginStep, no_steps
from index.text import printable_path, valid_text
from index.vectors.ann_building import find_reason_for_flat
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.vectors.store import Publication
from index.vectors.stores import store_of
from index.versions.gallery_identity import Standing, recognise
from index.versions.gallery_lock import lock_gallery
from index.versions.gallery_parts import make_mark, make_part, remove_part
from index.versions.manifest import CATALOG_NAME, MODEL_NAME, Manifest, Version, check_file, part_folder
from index.versions.versions import hold_current, next_version, publish_version, read_current
from index.versions.work_plan import BUILDING, announce
from index.writing.publish_change import BuildReport, open_workspace, run_change
from index.writing.publishing import write_version

_FEW_QUERIES = 100


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied: `indexed` images of a `version` of `source`, into `gallery`, whose vectors lie in `store`."""

    source: str
    version: str
    gallery: str
    store: str
    indexed: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The document that the command prints with `--json`."""
        return asdict(self)


def copy_gallery(
    source: Path,
    out: Path,
    *,
    store: StoreConfig | None = None,
    begin_step: BeginStep = no_steps,
    wait_s: float = LOCK_WAIT_S,
) -> CopyReport:
    """Copy the current version of a gallery to a new folder, with its vectors in that folder or elsewhere.

    Ids stay as they are. What people made is not copied. A copy that was stopped is made when it is asked for again.

    Raises:
        InputError: `out` has something in it.
        GalleryError: the source is damaged, or a store cannot be reached.
    """
    start, store = time.perf_counter(), store or StoreConfig()
    version, held = hold_current(source)
    try:
        manifest = Manifest.read(version)
        for name in manifest.files:
            check_file(version.folder, name, manifest, contents=True)
        _check_out(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
            make_mark(out)
            with lock_gallery(out, wait_s=wait_s, begin_step=begin_step):
                made = _copy(version, manifest, out.resolve(), store=store, begin_step=begin_step)
        except OSError as error:
            raise GalleryError(printable_path(str(out)), f"{error}; mend the cause and run this again") from error
    finally:
        os.close(held)
    return CopyReport(
        source=valid_text(str(source.resolve())),
        version=version.name,
        gallery=valid_text(str(out.resolve())),
        store=store.show(),
        indexed=int(made.counts["indexed"]),
        seconds=time.perf_counter() - start,
    )


def _check_out(out: Path) -> None:
    shown = printable_path(str(out))
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{shown}: expected a folder for the copy, found a file; give another")
    is_stopped = read_mark(out) is not None and read_current(out) is None
    if not is_stopped and recognise(out) is not Standing.VACANT:
        raise InputError(f"{shown}: the folder has something in it; give a new or empty one for the copy")


def _copy(
    version: Version, manifest: Manifest, out: Path, *, store: StoreConfig, begin_step: BeginStep
) -> Manifest:
    building = out / BUILDING
    remove_part(building, of=make_mark(out))  # of a copy that was stopped
    make_part(out, BUILDING)
    folder = building / "version"
    folder.mkdir()
    for name in (MODEL_NAME, CATALOG_NAME):
        shutil.copyfile(version.folder / name, building / name)
    contract = find_contract(building / MODEL_NAME)
    if contract is None:
        raise GalleryDamagedError(printable_path(str(version.folder / MODEL_NAME)), "damaged: it has no contract")
    made = {
        output: store_of(manifest).hold(part_folder(version.folder, output), manifest.part(output))
        for output in manifest.outputs
    }
    with write_catalog(building / CATALOG_NAME) as catalog:
        catalog.prepare()
        catalog.set({STORE_SETTING: None if store == StoreConfig() else store.to_text()})
        finished = write_version(
            folder, catalog, gallery=out, base=None, made=made, model=building / MODEL_NAME, contract=contract,
            runtime=manifest.runtime, how=Publication(), begin_step=begin_step,
        )  # fmt: skip
        remembered = catalog.remembered()
    name = next_version(out)
    announce(out, name)
    publish_version(out, folder, name=name, remembered=remembered)
    remove_part(building, of=make_mark(out))
    store_of(finished).tidy(out, finished)
    return finished


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
