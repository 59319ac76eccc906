"""The commands that write a gallery: build, add, update, remove, compact; what was stopped is continued."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path
from typing import Any

from index.assigned_labels import AssignedLabels
from index.build_config import BuildConfig as BuildConfig
from index.catalog_writer import CatalogWriter, write_catalog
from index.duplicate_config import DuplicateConfig
from index.embedder import Embedder
from index.errors import GalleryError, GalleryMismatchError, InputError
from index.flat_index import import_faiss
from index.images import printable_path
from index.progress import Progress
from index.scanning import find_parts, scan_parts, scan_sources
from index.selection import Selection
from index.settling import settle
from index.sources import Source, find_source
from index.versions import lock_gallery, looks_like_gallery, remove_old_versions
from index.workspace import Workspace, find_model

logger = logging.getLogger(__name__)

_RIVALS = (("faiss-cpu", "faiss-gpu"), ("onnxruntime", "onnxruntime-gpu"))


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a command did to a gallery.

    `found`, `indexed`, `duplicate`, `skipped` and `skipped_by_reason` count the whole version: the first is the sum of
    the next three. `new_images` were embedded by this run, `moved` found in another place, `vanished` not found any
    more, `removed` taken out; `changed` tells whether there is a new version. `seconds` is the whole run,
    `images_per_second` counts new images.
    """

    gallery: str
    version: str
    changed: bool
    found: int
    indexed: int
    duplicate: int
    skipped: int
    skipped_by_reason: dict[str, int]
    new_images: int
    moved: int
    vanished: int
    removed: int
    seconds: float
    images_per_second: float

    def to_json(self) -> dict[str, Any]:
        """The document that the command prints with `--json`."""
        return asdict(self)


def build_gallery(
    *,
    model_path: Path,
    sources: Sequence[str | Path],
    out: Path,
    labels_file: Path | None = None,
    dedup: str = "off",
    duplicates: DuplicateConfig | None = None,
    config: BuildConfig | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Make the gallery `out` of every image of the sources, continue what was stopped, or update what is finished.

    Items whose size and time, or else whose bytes, are unchanged keep their ids and vectors. A new version is made
    only where something changed. Every item found is in the catalogue: indexed, a duplicate, or skipped with a reason.

    Args:
        model_path: an exported model.
        sources: folders, archives, globs, lists, tables or single images; see `index.sources.find_source`.
        out: the gallery folder; made if there is none.
        labels_file: CSV or Parquet of `path,label`, which goes before other labels; items without a row have none.
        dedup: `off`, or which repetitions are set aside: `exact` ones, or `near` ones too.
        duplicates: what counts as near.
        config: see `BuildConfig`.
        progress: called with (done, total) items to embed.

    Raises:
        InputError: the sources or labels cannot be used, or no image is usable.
        ModelFileError: the model cannot be used, or fails on a batch; what is done is kept.
        GalleryMismatchError: the gallery is of another model or of other sources.
        GalleryError: `out` is something else, is written by another process, is damaged, or the disk is full.
    """
    start = time.perf_counter()
    given = [find_source(os.fspath(source)) for source in sources]
    gallery = _check_out(out, sources=given)
    labels = None if labels_file is None else AssignedLabels(labels_file)
    embedder = Embedder(model_path)
    settings = {
        "labels": None if labels_file is None else str(labels_file.absolute()),
        "dedup": None if dedup == "off" else dedup,
        **{
            name: json.dumps(value) if dedup == "near" else None
            for name, value in asdict(duplicates or DuplicateConfig()).items()
        },
    }
    try:
        gallery.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{printable_path(str(out))}: the gallery cannot be made: {error.strerror}") from error

    def change(catalog: CatalogWriter) -> None:
        repeats = {name: settings[name] for name in settings if name != "labels"}
        if {name: catalog.setting(name) for name in repeats} != repeats:
            catalog.release_all_duplicates()
        catalog.set(settings)
        numbers = catalog.add_sources(given)
        catalog.record_scan(scan_sources(catalog, numbers, labels=labels), scanned=numbers, restore=False)
        if labels is not None:
            labels.check_used()

    with _writing(gallery, embedder=embedder) as work:
        _check_sources(work, given)
        return _run(work, change, config=config, progress=progress, start=start)


def add_to_gallery(
    gallery: Path,
    sources: Sequence[str | Path],
    *,
    config: BuildConfig | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Add the images of some sources; none of the others is looked at.

    A source that is a part of a folder that the gallery has already stays a part of it. What was taken out and is
    named here comes back.

    Raises:
        InputError, ModelFileError, GalleryError: as `build_gallery`.
    """
    start = time.perf_counter()
    given = [find_source(os.fspath(source)) for source in sources]

    def change(catalog: CatalogWriter) -> None:
        parts = find_parts(catalog, given)
        numbers = catalog.add_sources(source for source in given if source.location not in parts)
        labels = _read_labels(catalog)
        found = chain(
            scan_parts(catalog, parts, labels=labels), scan_sources(catalog, numbers, labels=labels, restore=True)
        )
        catalog.record_scan(found, scanned=numbers, restore=True)

    with _writing(gallery) as work:
        return _run(work, change, config=config, progress=progress, start=start)


def update_gallery(
    gallery: Path,
    *,
    roots: Mapping[str | None, Path] | None = None,
    config: BuildConfig | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Bring a gallery in line with its sources as they are now, and finish what was stopped.

    An item is looked at again where its size or time changed, and embedded again where its bytes did. One that is
    found in another place keeps its id and vector.

    Args:
        gallery: the gallery folder.
        roots: the new place of sources that were moved, by their old one; None as the old one stands for the only
            source.
        config: see `BuildConfig`.
        progress: called with (done, total) items to embed.

    Raises:
        InputError, ModelFileError, GalleryError: as `build_gallery`.
    """
    start = time.perf_counter()

    def change(catalog: CatalogWriter) -> None:
        _move_sources(catalog, {old: find_source(os.fspath(new)).location for old, new in (roots or {}).items()})
        for source in catalog.sources().values():
            if source.kind == "folder" and not source.root.is_dir():
                raise InputError(
                    f"{printable_path(source.location)}: no such folder; if it was moved, say where it is now with "
                    "--root, or forget it: retrieval index remove GALLERY --source"
                )
        numbers = list(catalog.sources())
        found = scan_sources(catalog, numbers, labels=_read_labels(catalog))
        catalog.record_scan(found, scanned=numbers, restore=False)

    with _writing(gallery) as work:
        return _run(work, change, config=config, progress=progress, start=start)


def remove_from_gallery(
    gallery: Path,
    *,
    selection: Selection | None = None,
    sources: Sequence[str] = (),
    config: BuildConfig | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Take items out of a gallery, or whole sources; the files themselves are not touched.

    Items taken out stay out in later updates, until they are added again by name.

    Raises:
        InputError: nothing is selected, or nothing would be left.
        GalleryError: as `build_gallery`.
    """
    start, removed = time.perf_counter(), 0

    def change(catalog: CatalogWriter) -> None:
        nonlocal removed
        for source in sources:
            removed += _forget_source(catalog, source)
        if selection is not None:
            rows = list(selection.select(catalog))
            catalog.take_out(rows)
            removed += len(rows)
        if not catalog.count("indexed") + catalog.count("pending"):
            shown = printable_path(str(gallery))
            raise InputError(
                f"{shown}: nothing would be left of it, so nothing was removed; delete the folder instead"
            )

    with _writing(gallery) as work:
        return _run(work, change, config=config, progress=progress, start=start, removed=lambda: removed)


def compact_gallery(gallery: Path) -> BuildReport:
    """Write the current version anew: one index over all members, and no room for what is none any more.

    Raises:
        GalleryError: as `build_gallery`.
    """
    start = time.perf_counter()
    with _writing(gallery) as work:
        return _run(work, None, start=start, compact=True)


@contextmanager
def _writing(gallery: Path, *, embedder: Embedder | None = None) -> Iterator[Workspace]:
    """The gallery's workspace, opened under its lock; trouble with the disk becomes a GalleryError."""
    shown = printable_path(str(gallery))
    import_faiss()
    _warn_of_rivals()
    if not gallery.is_dir():
        raise GalleryError(shown, "no such gallery; make one with `retrieval index build MODEL SOURCE --out`")
    with lock_gallery(gallery):
        try:
            work = Workspace(gallery.resolve(), embedder=embedder or Embedder(find_model(gallery)))
            work.open()
            yield work
        except OSError as error:
            advice = "what is done is kept; mend the cause and run the same command again"
            raise GalleryError(shown, f"{error}; {advice}") from error


def _run(
    work: Workspace,
    change: Callable[[CatalogWriter], None] | None,
    *,
    start: float,
    config: BuildConfig | None = None,
    progress: Progress | None = None,
    removed: Callable[[], int] = lambda: 0,
    compact: bool = False,
) -> BuildReport:
    """Change the catalogue in one step, settle what is pending, and publish."""
    config, progress = config or BuildConfig(), progress or (lambda done, total: None)
    with write_catalog(work.catalog_path) as catalog:
        if change is not None:
            with catalog.transaction():
                change(catalog)
        settled = settle(work, catalog, config=config, progress=progress)
        indexed, reasons = catalog.count("indexed"), catalog.skipped_by_reason()
        if not indexed:
            _refuse_empty(work, reasons)
        previous = work.base
        changed = compact or work.has_changed(catalog)
        version = work.publish(catalog, compact=compact).name if changed or previous is None else previous.name
        counts = {"indexed": indexed, "duplicate": catalog.count("duplicate"), "skipped": sum(reasons.values())}
    work.remove()
    remove_old_versions(work.gallery, current=version, previous=previous.name if previous and changed else None)
    seconds = time.perf_counter() - start
    return BuildReport(
        gallery=str(work.gallery),
        version=version,
        changed=changed,
        found=sum(counts.values()),
        **counts,
        skipped_by_reason=reasons,
        new_images=settled.embedded,
        moved=settled.moved,
        vanished=settled.vanished,
        removed=removed(),
        seconds=seconds,
        images_per_second=settled.embedded / seconds,
    )


def _refuse_empty(work: Workspace, reasons: Mapping[str, int]) -> None:
    """Raise InputError: a gallery of no image is never published; the version before stays."""
    work.remove()
    found = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "there are no files"
    shown = printable_path(str(work.gallery))
    raise InputError(f"{shown}: no usable image in its sources: {found}")


def _check_out(out: Path, *, sources: Sequence[Source]) -> Path:
    """The gallery's absolute path, checked before any work."""
    shown, gallery = printable_path(str(out)), out.resolve()
    for source in sources:
        if source.kind == "folder" and (
            gallery.is_relative_to(source.root) or source.root.is_relative_to(gallery)
        ):
            raise InputError(
                f"{shown}: the gallery and the image folder {printable_path(source.location)} must lie beside each "
                "other, not one in the other; give another folder with --out"
            )
    if not gallery.exists():
        return gallery
    if not gallery.is_dir():
        raise InputError(f"{shown}: expected a folder for the gallery, found a file; give another --out")
    if not os.access(gallery, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"{shown}: permission denied; the gallery cannot be written there")
    if not looks_like_gallery(gallery):
        raise GalleryError(shown, "the folder has other files in it and is no gallery; give a new or empty --out")
    return gallery


def _check_sources(work: Workspace, given: Sequence[Source]) -> None:
    """Raise GalleryMismatchError where the gallery is of other sources than given."""
    with write_catalog(work.catalog_path) as catalog:
        known = {source.location for source in catalog.sources().values()}
    locations = {source.location for source in given}
    if not known or known == locations:
        return
    if work.base is None and not work.has_vectors():  # nothing was done for them yet
        work.restart()
        return
    raise GalleryMismatchError(
        printable_path(str(work.gallery)),
        what="sources",
        expected=_list_locations(known),
        seen=_list_locations(locations),
        advice="add to it with `retrieval index add`, say where they are now with `retrieval index update --root`, "
        "or build into another folder with --out",
    )


def _move_sources(catalog: CatalogWriter, roots: Mapping[str | None, str]) -> None:
    """Record where sources are now; one that a stopped command has recorded already is left as it is."""
    known = {source.location: number for number, source in catalog.sources().items()}
    moves = {
        _find_number(catalog, old): new
        for old, new in roots.items()
        if not (old is not None and new in known and not known.keys() & _spellings(old))
    }
    for number, new in moves.items():
        if known.get(new, number) != number and known[new] not in moves:
            raise InputError(
                f"{printable_path(new)}: already a source of the gallery; forget the other one with "
                "`retrieval index remove --source`, then `retrieval index update`"
            )
    for number in moves:  # out of each other's way first: two may swap places
        catalog.move_source(number, f"moving {number}")
    for number, new in moves.items():
        catalog.move_source(number, new)


def _forget_source(catalog: CatalogWriter, location: str) -> int:
    """Remove a source; the number of its items, 0 where a stopped command has removed it already."""
    forgotten = set(json.loads(catalog.setting("forgotten_sources") or "[]"))
    known = {source.location for source in catalog.sources().values()}
    if forgotten & _spellings(location) and not known & _spellings(location):
        return 0
    number = _find_number(catalog, location)
    forgotten.add(catalog.sources()[number].location)
    catalog.set({"forgotten_sources": json.dumps(sorted(forgotten))})
    return catalog.remove_source(number)


def _spellings(location: str) -> set[str]:
    """The ways in which a source's location may have been recorded."""
    return {location, os.path.abspath(location), os.path.realpath(location)}


def _list_locations(locations: set[str]) -> str:
    return ", ".join(printable_path(location) for location in sorted(locations))


def _find_number(catalog: CatalogWriter, location: str | None) -> int:
    """The number of a source by its location, as it was given or as it is recorded.

    Raises:
        InputError: there is no such source, or it is not clear which one is meant.
    """
    sources = catalog.sources()
    names = set() if location is None else _spellings(location)
    found = [number for number, source in sources.items() if location is None or source.location in names]
    if len(found) == 1:
        return found[0]
    listed = _list_locations({source.location for source in sources.values()})
    seen = "the gallery has several sources; say which one moved: OLD=NEW" if location is None else (
        f"{printable_path(location)}: no source of the gallery")  # fmt: skip
    raise InputError(f"{seen}; its sources are {listed}")


def _read_labels(catalog: CatalogWriter) -> AssignedLabels | None:
    """The labels that the gallery was built with, as they are now."""
    name = catalog.setting("labels")
    return None if name is None else AssignedLabels(Path(name))


def _warn_of_rivals() -> None:
    """Say where two packages that overwrite each other's files are both installed."""
    for names in _RIVALS:
        if all(map(_is_installed, names)):
            logger.warning("both %s and %s are installed; uninstall both, then install one of them", *names)


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
