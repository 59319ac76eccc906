"""Publishing: the unfinished work becomes the gallery's next version, and is reported."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.durable import hash_file, link_file
from index.errors import GalleryDamagedError, GalleryError, NoUsableImageError
from index.gallery.computed_by import join_runtimes
from index.markers import PART_MARK
from index.outputs import COPY, SEMANTIC, UNTRAINED
from index.sources.local_source import TableSource
from index.text import printable_path
from index.vectors.ann_config import INDEX_SETTING, AnnConfig
from index.vectors.stores import Published, WriterTask, load_store, open_store
from index.versions.gallery_parts import remove_own
from index.versions.manifest import (
    CATALOG_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    check_file,
    describe_file,
    part_folder,
    part_start,
)
from index.versions.versions import next_version, publish_version
from index.words.written import write_words
from index.writing.workspace import Workspace

_VERSION = "version"
_NAMED_LABELS = 5


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The result of a change of a gallery.

    `found` items are the sum of `indexed`, `duplicate` and `skipped`; `from_cache` of the `new_images` came from the
    cache. `labels` has `count`, `images` with one, and the `largest`; None where nothing changed.
    """

    gallery: str
    version: str
    changed: bool
    found: int
    indexed: int
    duplicate: int
    skipped: int
    skipped_by_reason: dict[str, int]
    labels: dict[str, Any] | None
    new_images: int
    from_cache: int
    moved: int
    vanished: int
    removed: int
    seconds: float
    images_per_second: float


def publish(work: Workspace, *, rewrite: bool = False) -> BuildReport:
    """Publish a version of the catalogue where it differs from the current one or is to be rewritten, and report."""
    catalog, base = work.catalog, work.base
    reasons = catalog.skipped_by_reason()
    counts = {name: catalog.count(name) for name in ("indexed", "duplicate", "skipped")}
    if not counts["indexed"]:
        found = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()) or "there are no files"
        first, named = next(iter(catalog.rows(status="skipped")), None), ""
        if first is not None:
            named = f"; the first is {printable_path(first.path)}: {first.detail}"
            if isinstance(catalog.sources()[first.source], TableSource):
                named += "; a table's paths are relative to its folder, or absolute; addresses are in a column url"
        work.remove()
        raise NoUsableImageError(f"no usable image in its sources: {found}{named}", at=work.gallery)
    changed = rewrite or base is None or not catalog.same_as(base.folder / CATALOG_NAME)
    version = next_version(work.gallery) if base is None or changed else base.name
    if changed:
        writing = work.begin_step("Writing")
        writing(0, 0)
        folder = _write_version(work, rewrite=rewrite)
        writing(1, 1)  # the last moment to cancel
        publish_version(work.gallery, folder, name=version)
        work.previous = base.name if base else work.previous
    work.published = version
    seconds = time.perf_counter() - work.start
    return BuildReport(
        gallery=str(work.gallery),
        version=version,
        changed=changed,
        found=sum(counts.values()),
        **counts,
        skipped_by_reason=reasons,
        labels=catalog.indexed_labels(limit=_NAMED_LABELS) if changed else None,
        **work.counts,
        seconds=seconds,
        images_per_second=work.counts["new_images"] / seconds,
    )


def _write_version(work: Workspace, *, rewrite: bool) -> Path:
    """Write a complete version; its folder."""
    folder = work.folder / _VERSION
    folder.mkdir(exist_ok=True)
    if others := remove_own(folder):
        shown = printable_path(str(folder / others[0]))
        raise GalleryError(shown, "not this gallery's, and in the way; move it elsewhere and run this again")
    (folder / PART_MARK).unlink(missing_ok=True)  # of an interrupted publication
    model = work.folder / MODEL_NAME
    model_files = {model: work.embedder.sha256, **work.embedder.contract.text_files(model)}
    for path, sha256 in model_files.items():
        if hash_file(path) != sha256:
            raise GalleryError(work.embedder.path, "the model file changed during the build")
        link_file(path, folder / path.name)
    published = _write_vectors(work, folder, rewrite=rewrite)
    files = {
        f"{part_start(output)}{name}": file for output, part in published.items() for name, file in part.files.items()
    }
    if files and work.base is not None:
        manifest = Manifest.read(work.base)
        for path in model_files:
            check_file(work.base.folder, path.name, manifest, contents=False)
            files[path.name] = manifest.files[path.name]
    work.catalog.write_finished(folder / CATALOG_NAME, compact=rewrite)
    write_words(folder / CATALOG_NAME)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        files[name] = files.get(name) or describe_file(path)
    manifest = _describe(work, published, files)
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return folder


def _write_vectors(work: Workspace, folder: Path, *, rewrite: bool) -> dict[str, Published]:
    """Write the vectors of every output; their entries in the manifest."""
    config = AnnConfig.from_text(work.catalog.setting(INDEX_SETTING))
    members = work.catalog.indexed_ids()
    before = members[:0]
    if work.base is not None:
        before = open_store(work.base.folder, Manifest.read(work.base), SEMANTIC).ids
    new = np.setdiff1d(members, before, assume_unique=True)
    deleted = np.setdiff1d(before, members, assume_unique=True)
    made, published = work.vector_files(), dict[str, Published]()
    for output, width in work.embedder.contract.widths.items():
        task = WriterTask(
            gallery=work.gallery,
            folder=part_folder(folder, output),
            store=work.store,
            config=config if output != UNTRAINED else AnnConfig(index_type="flat"),  # which no search uses
            width=width,
            made=made[output],
            model_sha256=work.embedder.sha256,
            rewrite=rewrite,
            begin_step=work.begin_step,
            output=output,
        )
        published[output] = load_store(work.store.store).publish(task, new, deleted, work.base)
    return published


def _describe(work: Workspace, published: Mapping[str, Published], files: dict[str, dict[str, Any]]) -> Manifest:
    catalog, contract, reasons = work.catalog, work.embedder.contract, work.catalog.skipped_by_reason()
    if catalog.count("pending"):
        raise GalleryDamagedError(CATALOG_NAME, "some items are still pending")
    counts = {name: catalog.count(name) for name in ("indexed", "duplicate", "skipped")}
    deleted, found = published[SEMANTIC].deleted, sum(counts.values())
    parts = {
        output: {"embedding_dim": contract.widths[output], "index": part.index, "deleted": part.deleted}
        for output, part in published.items()
    }
    runtime = work.kept_runtime
    if catalog.checkpoints():  # something was embedded
        runtime = join_runtimes(runtime, work.made_runtime)
    return Manifest(
        model_sha256=files[MODEL_NAME]["sha256"],
        preprocessing=contract.preprocess,
        embedding_dim=contract.embedding_dim,
        counts={"found": found, **counts, "skipped_by_reason": reasons, "deleted": deleted},
        next_id=catalog.next_id(),
        index=published[SEMANTIC].index,
        files=files,
        copy={**parts[COPY], "threshold": contract.copy_threshold} if COPY in parts else None,
        untrained=parts.get(UNTRAINED),
        store=work.store.describe(),
        runtime=runtime,
    )
