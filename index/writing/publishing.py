"""Writes a finished version of a gallery: model, vectors, catalogue, and the manifest of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from index.catalog.writer import CatalogWriter
from index.durable import hash_file, link_file
from index.errors import GalleryDamagedError
from index.model.contract import ModelContract
from index.outputs import KIND, PICTURE, UNTRAINED
from index.progress import BeginStep, no_steps
from index.text import printable_path
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.vectors.shards import HeldVectors
from index.vectors.store import Publication, Published, WriterTask
from index.vectors.stores import load_store, open_store
from index.versions.manifest import (
    CATALOG_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    Version,
    check_file,
    describe_file,
    part_folder,
    part_start,
)


def write_version(
    version: Path,
    catalog: CatalogWriter,
    *,
    gallery: Path,
    base: Version | None,
    made: Mapping[str, Sequence[HeldVectors]],
    model: Path,
    contract: ModelContract,
    runtime: dict[str, Any] | None,
    how: Publication,
    begin_step: BeginStep = no_steps,
) -> Manifest:
    """Write every file of a version into an empty folder.

    Args:
        catalog: rows that are all settled.
        gallery: whose version it is.
        base: the version that it starts from.
        made: the vectors made since, by output.
        model: the model file, which every version shares.
        runtime: that computed the vectors, as the manifest says it.
    """
    link_file(model, version / MODEL_NAME)
    config = AnnConfig.from_text(catalog.setting(INDEX_SETTING))
    store = StoreConfig.from_text(catalog.setting(STORE_SETTING))
    model_sha256 = hash_file(model)
    members = np.array(catalog.indexed_ids(), dtype=np.int64)
    manifest = None if base is None else Manifest.read(base)
    before = members[:0] if base is None or manifest is None else open_store(base.folder, manifest, KIND).ids
    new, deleted = (np.setdiff1d(*pair, assume_unique=True) for pair in ((members, before), (before, members)))
    published: dict[str, Published] = {}
    files: dict[str, dict[str, Any]] = {}
    for output, width in contract.widths.items():
        folder = part_folder(version, output)
        own = how if output == KIND else replace(how, queries=None)  # those that were given ask for kinds
        ann = config if output != UNTRAINED else AnnConfig(index_type="flat")  # nobody searches them
        task = WriterTask(gallery, folder, store, ann, width, made[output], own, model_sha256, begin_step, output)
        published[output] = load_store(store.store).publish(task, new, deleted, base)
        files |= {f"{part_start(output)}{name}": file for name, file in published[output].files.items()}
    if files and base is not None and manifest is not None:
        check_file(base.folder, MODEL_NAME, manifest, contents=False)
        files[MODEL_NAME] = manifest.files[MODEL_NAME]
    catalog.write_finished(version / CATALOG_NAME, compact=how.compact)
    for path in sorted(path for path in version.rglob("*") if path.is_file()):
        name = path.relative_to(version).as_posix()
        files[name] = files.get(name) or describe_file(path)
    finished = _describe(
        catalog, contract, store=store, published=published, files=files, runtime=runtime
    )  # fmt: skip
    (version / MANIFEST_NAME).write_text(finished.to_json(), encoding="utf-8")
    return finished


def _describe(
    catalog: CatalogWriter, contract: ModelContract, *, store: StoreConfig, published: Mapping[str, Published],
    files: dict[str, dict[str, Any]], runtime: dict[str, Any] | None,
) -> Manifest:  # fmt: skip
    reasons = catalog.skipped_by_reason()
    counts = {"indexed": catalog.count("indexed"), "duplicate": catalog.count("duplicate")}
    counts["skipped"] = sum(reasons.values())
    found = sum(counts.values())
    if catalog.count("pending"):
        raise GalleryDamagedError(printable_path(CATALOG_NAME), "some items were never settled")
    kinds = published[KIND]
    parts = {
        output: {"embedding_dim": contract.widths[output], "index": part.index, "deleted": part.deleted}
        for output, part in published.items()
    }
    return Manifest(
        model_sha256=files[MODEL_NAME]["sha256"],
        preprocessing=contract.preprocess,
        embedding_dim=contract.embedding_dim,
        counts={"found": found, **counts, "skipped_by_reason": reasons, "deleted": kinds.deleted},
        next_id=catalog.next_id(),
        index=kinds.index,
        files=files,
        picture={**parts[PICTURE], "threshold": contract.picture_threshold} if PICTURE in parts else None,
        untrained=parts.get(UNTRAINED),
        store=store.describe(),
        runtime=runtime,
    )
