"""`retrieval index verify`: files against the manifest, parts against each other, a sample against its images."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import UNIT_TOLERANCE, Ids, unit_rows
from index.catalog.rows import CatalogRow
from index.embedding.engine import ThreadedEngine
from index.errors import GalleryError, ImageError
from index.gallery.computed_by import is_same_runtime
from index.gallery.gallery import Gallery
from index.images.image_files import take_any_content
from index.items import EmbeddedItem, Place
from index.model.contract import find_contract
from index.model.embedder import Embedder
from index.progress import Progress, no_progress
from index.sources.reading import read_place
from index.text import valid_text
from index.threads import map_ahead, usable_cores
from index.vectors.kinds import KINDS
from index.versions.manifest import MODEL_NAME, Manifest, Version, check_file
from index.versions.versions import find_version, hold_version

MIN_COSINE = 0.9999  # of the stored vector and the one made again, maybe on another machine
_OTHER_RUNTIME_COSINE = 0.95  # with another runtime or precision
_SEARCHED = 200  # members searched in an approximate index
_MISSED_SHARE = 0.01  # of them, which an index may miss
_SURE = 4  # standard errors
_READ_AHEAD = 16  # images
_CHANGED = "was changed since it was indexed"


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification.

    Attributes:
        files: compared with the manifest.
        compared: images that were embedded again, with unchanged bytes.
        problems: damage of the gallery.
        spoilt: changed image files that cannot be used any more; an update would remove them.
        notes: images that changed or are gone, which does not count as damage.
        read: images whose bytes were read again.
    """

    gallery: str
    version: str
    files: int = 0
    compared: int = 0
    problems: list[str] = field(default_factory=list)
    spoilt: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: int = 0


_Change = tuple[str, bool]
"""A change of an image file, and whether it is unusable now."""


def verify_gallery(
    path: Path,
    *,
    sample: int = 16,
    seed: int | None = None,
    read_images: bool = False,
    progress: Progress = no_progress,
    embedding: Progress = no_progress,
    reading: Progress = no_progress,
) -> VerifyReport:
    """Check the current version; embed `sample` members again; `read_images` compares the bytes of all images."""
    version = find_version(path)
    report = VerifyReport(valid_text(str(path.resolve())), version.name)
    changes = dict[_Change, None]()  # in their order, and once
    try:
        manifest = Manifest.read(version)
        report.files = len(manifest.files)
        held = hold_version(version.folder)
        try:
            report.problems += _check_files(version, manifest, progress)
        finally:
            os.close(held)
        if report.problems:
            return report
        gallery = Gallery.open(path, threads=usable_cores()).without_decisions
        chosen = _choose(gallery, sample=sample, seed=seed)
        views = [gallery.view(output) for output in manifest.outputs]
        report.problems += _compare_parts(gallery)
        for view in views:
            report.problems += _check_vectors(view, gallery, chosen, seed=seed)
        # With a recorded runtime, any vector may be of it or of the usual one.
        is_of_one = manifest.runtime is None and is_same_runtime(None, gallery.embedder)
        least = MIN_COSINE if is_of_one else _OTHER_RUNTIME_COSINE
        for item, row, place in _embed_again(gallery, chosen, embedding):
            change = _compare_bytes(place, row, gallery.embedder) if item.sha256 != row.sha256 else None
            if change is not None:
                changes[change] = None
                continue
            report.compared += 1
            if difference := _find_difference(item, views, least=least):
                report.problems.append(f"{place.name}: {difference}")
        if read_images:
            looks = list(_read_again(gallery, reading))
            report.read = len(looks)
            changes |= {change: None for change in looks if change is not None}
    except GalleryError as error:
        report.problems.append(str(error))
    report.spoilt, report.notes = ([text for text, spoils in changes if spoils is one] for one in (True, False))
    return report


def _check_files(version: Version, manifest: Manifest, progress: Progress) -> Iterator[str]:
    for done, name in enumerate(manifest.files, start=1):
        try:
            check_file(version.folder, name, manifest, contents=True)
        except GalleryError as error:
            yield str(error)
        progress(done, len(manifest.files))
    if manifest.files.get(MODEL_NAME, {}).get("sha256") != manifest.model_sha256:
        yield "the model file is not the one that the manifest names"
    contract = find_contract(version.folder / MODEL_NAME)
    for path, sha256 in ({} if contract is None else contract.text_files(version.folder / MODEL_NAME)).items():
        if manifest.files.get(path.name, {}).get("sha256") != sha256:
            yield f"{path.name} is not the one that the model names"


def _choose(gallery: Gallery, *, sample: int, seed: int | None) -> Ids:
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(gallery.ids, size=min(sample, gallery.count), replace=False))


def _compare_parts(gallery: Gallery) -> Iterator[str]:
    with gallery.catalog() as catalog:
        catalog.check()
        if not np.array_equal(catalog.indexed_ids(), gallery.ids):
            yield "the catalogue's indexed images are not those that have vectors"
        manifest = gallery.manifest
        seen: dict[str, Any] = {status: catalog.count(status) for status in ("indexed", "duplicate", "skipped")}
        seen = {"found": sum(seen.values()), **seen, "skipped_by_reason": catalog.skipped_by_reason()}
        for name, value in seen.items():
            if manifest.counts.get(name) != value:
                yield f"the manifest says {name} {manifest.counts.get(name)}, the catalogue {value}"
        if pending := catalog.count("pending"):
            yield f"{pending} items of the catalogue are still pending"
        if catalog.next_id() != manifest.next_id:
            yield f"the manifest says next_id {manifest.next_id}, the catalogue {catalog.next_id()}"
        if orphans := catalog.count_orphans():
            yield f"{orphans} duplicates repeat an image that is not indexed"


def _check_vectors(view: Gallery, gallery: Gallery, chosen: Ids, *, seed: int | None) -> Iterator[str]:
    """Check the vectors of one output, and search the first member and chosen ones by their own.

    A scan must find all; an approximate index, tested with more members, nearly as many as when it was measured.
    """
    if not np.array_equal(view.store.ids, gallery.ids):
        yield f"the images that have vectors of their {view.output} are not those of the gallery"
    if not all(unit_rows(vectors).all() for _, vectors in view.store.scan()):
        yield "some vectors are not finite unit vectors"
    described, ids = view.index, np.union1d(view.ids[:1], chosen)
    is_exact = KINDS[described["type"]].is_exact
    if not is_exact:
        ids = np.union1d(ids, _choose(view, sample=_SEARCHED, seed=seed))
    found = [bool(hits) and hits[0].score >= 1 - UNIT_TOLERANCE for hits in view.search_many(view.vectors(ids), k=1)]
    if is_exact:
        missed = (image_id for image_id, is_found in zip(ids.tolist(), found, strict=True) if not is_found)
        yield from (f"the index does not find image {image_id} by its own vector" for image_id in missed)
        return
    share = max(_MISSED_SHARE, 1 - described["recall_at_10"] + 2 * described["recall_error"])
    expected, spread = len(ids) * share, (len(ids) * share * max(0.0, 1 - share)) ** 0.5
    if found.count(False) > expected + _SURE * spread:
        yield (
            f"the index finds {sum(found)} of {len(ids)} images by their own vectors, about "
            f"{len(ids) - expected:.0f} are expected; `retrieval index tune` builds it again"
        )


def _embed_again(gallery: Gallery, chosen: Ids, progress: Progress) -> Iterator[tuple[EmbeddedItem, CatalogRow, Place]]:
    with gallery.catalog() as catalog:
        rows = catalog.find(chosen.tolist())
    places = {number: gallery.sources[rows[number].source].locate(rows[number]) for number in sorted(rows)}
    if not places:
        return
    done = 0
    for batch in ThreadedEngine(gallery.embedder.with_outputs(*gallery.manifest.outputs)).embed(places.items()):
        yield from ((item, rows[item.id], places[item.id]) for item in batch)
        done += len(batch)
        progress(done, len(places))


def _read_again(gallery: Gallery, progress: Progress) -> Iterator[_Change | None]:
    """The change of every image since it was indexed; None for unchanged bytes."""
    embedder = gallery.embedder

    def look_at(row: CatalogRow) -> _Change | None:
        return _compare_bytes(gallery.sources[row.source].locate(row), row, embedder)

    with gallery.catalog() as catalog:
        statuses = ("indexed", "duplicate")
        total = sum(map(catalog.count, statuses))
        rows = chain.from_iterable(catalog.rows(status=status) for status in statuses)
        with closing(map_ahead(look_at, rows, workers=usable_cores(), ahead=_READ_AHEAD)) as looks:
            for done, look in enumerate(looks, start=1):
                yield look
                progress(done, total)


def _compare_bytes(place: Place, row: CatalogRow, embedder: Embedder) -> _Change | None:
    try:
        data = read_place(place, check=take_any_content)
    except ImageError as error:
        return f"{place.name}: cannot be read any more: {error.detail}", error.reason == "corrupt"
    if hashlib.sha256(data).hexdigest() == row.sha256:
        return None
    try:
        embedder.preprocess(data, name=place.name)
    except ImageError as error:
        return f"{place.name}: {_CHANGED}, and cannot be decoded any more: {error.detail}", True
    return f"{place.name}: {_CHANGED}", False


def _find_difference(item: EmbeddedItem, views: Sequence[Gallery], *, least: float) -> str | None:
    """The difference between the new vectors, side by side, and those stored for each output."""
    if item.problem is not None:
        return f"the bytes are those indexed, but cannot be embedded any more: {item.problem.detail}"
    stored = np.concatenate([view.vector(item.id) for view in views])
    starts = np.cumsum([0, *(view.width for view in views[:-1])])
    cosine = 0.0 if item.vector is None else float(np.add.reduceat(item.vector * stored, starts).min())
    if cosine >= least:
        return None
    return (
        f"the bytes are those indexed, but the stored vector and the one made from them now have a cosine of only "
        f"{cosine:.6f}, at least {least} is expected; it is damaged, or was made by other versions of Pillow or "
        "ONNX Runtime"
    )
