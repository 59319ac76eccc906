"""Build, add, update and remove: the commands that change a gallery's images; they continue stopped work."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from index.catalog.described import switch_facts
from index.catalog.image_texts import switch_texts
from index.catalog.reader import Catalog
from index.catalog.rows import SKIP_SETTING
from index.catalog.scans import emptied_sources, record_scan
from index.catalog.writer import CatalogWriter
from index.duplicates.duplicate_config import LIMITS_SETTING, DuplicateConfig
from index.embedding.text_recognition import require_ocr
from index.errors import GalleryError, GalleryMismatchError, InputError
from index.filters.condition import TAG, Condition, list_columns
from index.filters.parser import write_condition
from index.gallery.computed_by import usual_runtime_in
from index.gallery.selection import Selection
from index.model.builtin import find_builtin
from index.model.embedder import Embedder
from index.model.text_encoder import read_text_files
from index.sources.local_source import FileSource, FolderSource
from index.sources.registry import find_source
from index.sources.source import ImageSource, Reach
from index.text import command_line, printable_path
from index.vectors.ann_config import INDEX_SETTING, STORE_SETTING, AnnConfig, StoreConfig
from index.versions.gallery_identity import FolderState, find_damage, recognise
from index.versions.gallery_parts import make_mark
from index.writing.build_config import RunOptions
from index.writing.pending import embed_pending
from index.writing.publishing import BuildReport, publish
from index.writing.scanning import AssignedLabels, find_assigned, find_parts, scan_sources
from index.writing.shard_plan import check_complete
from index.writing.workspace import Workspace, find_model, open_workspace


def build_gallery(
    *,
    model_path: Path | None,
    sources: Sequence[str | Path],
    out: Path,
    labels_file: Path | None = None,
    dedup: str = "off",
    duplicates: DuplicateConfig | None = None,
    index: Mapping[str, Any] | None = None,
    shards: Path | None = None,
    backend: str | None = None,
    store: StoreConfig | None = None,
    skip_if: Condition | None = None,
    ocr: bool | None = None,
    gps: bool | None = None,
    **run: Unpack[RunOptions],
) -> BuildReport:
    """Build the gallery `out` from all images of the sources, continue a stopped build, or update a finished gallery.

    Items with unchanged size and time, or else unchanged bytes, keep ids and vectors. Without a change no version is
    made. Every item found is indexed, a duplicate, or skipped with a reason.

    Args:
        model_path: an exported model; None: the gallery's own, or the built-in model for a new gallery.
        labels_file: CSV or Parquet of `path,label`, in place of all other labels.
        index: changed fields of `AnnConfig`; the gallery remembers the rest, and its store and runtime.
        shards: a folder of shards with the outcome of every image, so that nothing is embedded here.
        skip_if: images that match are skipped, also in later updates; None takes them in again.
        ocr, gps: read the text in images, keep the places in EXIF, also in later updates; None: as the gallery has it.
    """
    start = time.perf_counter()
    if ocr:
        require_ocr()
    given = [find_source(os.fspath(source)) for source in sources]
    gallery, labels = check_out(out, sources=given), AssignedLabels(labels_file) if labels_file else None
    embedder = Embedder(model_path or choose_model(gallery), threads=1, backend=backend or usual_runtime_in(gallery))
    read_text_files(embedder.path, embedder.contract)  # before anything is made, so that a missing one is refused
    settings = {
        "labels": None if labels_file is None else json.dumps(str(labels_file.absolute())),
        SKIP_SETTING: None if skip_if is None else _write_skip_condition(skip_if),
        **_describe_deduplication(dedup, duplicates or DuplicateConfig()),
    }
    is_new = make_gallery_folder(gallery, shown=out)
    with open_workspace(gallery, embedder=embedder, start=start, is_new=is_new, **run) as work:
        work.shards = shards
        with work.change() as catalog:
            _take_same_sources(work, given)
            is_known = catalog.setting("labels") == settings["labels"]
            _change_settings(work, settings, index=index or {}, store=store)
            switch_texts(catalog, ocr)
            switch_facts(catalog, gps=gps)
            numbers, scanning = catalog.add_sources(given), work.begin_step("Scanning")
            found = scan_sources(catalog, numbers, labels=labels, trust=is_known, progress=scanning)
            record_scan(catalog, found, scanned=numbers)
            if labels:
                labels.check_used()
            if shards:
                check_complete(catalog, shards)
        embed_pending(work)
        return publish(work)


def add_to_gallery(gallery: Path, sources: Sequence[str | Path], **run: Unpack[RunOptions]) -> BuildReport:
    """Add the images of some sources, without scanning the others; removed items that are named here come back."""
    given = [find_source(os.fspath(source)) for source in sources]
    with open_workspace(gallery, **run) as work:
        with work.change() as catalog:
            parts = find_parts(catalog, given)
            numbers = catalog.add_sources(source for source in given if source.location not in parts)
            labels, scanning = find_assigned(catalog), work.begin_step("Scanning")
            found = scan_sources(catalog, numbers, labels=labels, parts=parts, trust=True, progress=scanning)
            record_scan(catalog, found, scanned=numbers, restore=True)
        embed_pending(work)
        return publish(work)


def update_gallery(
    gallery: Path,
    *,
    roots: Mapping[str | None, str | Path] | None = None,
    thorough: bool = False,
    skip_if: Condition | None = None,
    ocr: bool | None = None,
    retry: Sequence[int] | None = None,
    gps: bool | None = None,
    describe: bool = False,
    **run: Unpack[RunOptions],
) -> BuildReport:
    """Scan a gallery's sources again, and finish stopped work.

    `roots` are new locations of moved sources, by the old ones; the key None stands for the only source. With
    `thorough`, the bytes of every item are compared, not only where size or time changed. `ocr` and `gps` as of
    `build_gallery`. Skipped items are tried again: all, or those of `retry`, by their ids, alone. With `describe`,
    files of which no EXIF, IPTC or XMP is known are read again.
    """
    if ocr:
        require_ocr()
    skip_text = None if skip_if is None else _write_skip_condition(skip_if)
    with open_workspace(gallery, **run) as work:
        with work.change() as catalog:
            move_sources(catalog, {old: find_source(os.fspath(new)).location for old, new in (roots or {}).items()})
            if skip_text is not None:
                catalog.set({SKIP_SETTING: skip_text})
            switch_texts(catalog, ocr)
            switch_facts(catalog, gps=gps, describe=describe)
            sources = catalog.sources()
            require_sources(sources.values(), gallery)
            labels, scanning = find_assigned(catalog), work.begin_step("Scanning")
            found = scan_sources(
                catalog, list(sources), labels=labels, trust=not thorough, ask=not thorough, progress=scanning
            )
            record_scan(catalog, found, scanned=list(sources), thorough=thorough, retry=retry)
            for source in emptied_sources(catalog):  # whose disk may not be there
                if not source.is_one_item:
                    raise _lost_source(source, gallery, "nothing is left in it")
        embed_pending(work)
        return publish(work)


def _write_skip_condition(where: Condition) -> str:
    if TAG in list_columns(where):
        raise InputError(
            f"{printable_path(write_condition(where))}: tags are given to images that are indexed, so they cannot say "
            "which to skip; use another column, or drop the images that have the tag"
        )
    return write_condition(where)


def remove_from_gallery(
    gallery: Path, *, selection: Selection | None = None, sources: Sequence[str] = (), **run: Unpack[RunOptions]
) -> BuildReport:
    """Remove items or whole sources, which stay out until they are added by name; a failed removal removes nothing."""
    with open_workspace(gallery, undo=True, **run) as work:
        with work.change() as catalog:
            removed = sum(forget_source(catalog, source) for source in sources)
            if selection is not None:
                rows = list(selection.select(catalog))
                catalog.take_out(rows)
                removed += len(rows)
            if not work.count_usable():
                shown = printable_path(gallery)
                raise InputError(
                    f"{shown}: nothing would be left of it, so nothing was removed; a gallery holds at least one "
                    "image: add others first (`retrieval index add`), or build another gallery into a folder of its own"
                )
        work.counts["removed"] = removed
        embed_pending(work)
        return publish(work)


def make_gallery_folder(gallery: Path, *, shown: Path) -> bool:
    """Make the folder of a gallery; whether there was none."""
    is_new = not gallery.exists()
    try:
        gallery.mkdir(parents=True, exist_ok=True)
        if recognise(gallery) is FolderState.VACANT:
            make_mark(gallery)
    except OSError as error:
        raise InputError(f"the gallery cannot be made: {error.strerror}", at=shown) from error
    return is_new


def choose_model(gallery: Path) -> Path:
    """Model of a gallery, or the built-in model for a new one."""
    try:
        return find_model(gallery)
    except GalleryError:
        return find_builtin()


def _describe_deduplication(dedup: str, config: DuplicateConfig) -> dict[str, str | None]:
    """The settings of `--dedup`."""
    values = {name: json.dumps(value) if dedup == "near" else None for name, value in asdict(config).items()}
    return {"dedup": None if dedup == "off" else dedup, **values}


def _change_settings(
    work: Workspace, settings: Mapping[str, str | None], *, index: Mapping[str, Any], store: StoreConfig | None
) -> None:
    """Set a catalogue's settings; other ones of duplicates release those there are."""
    catalog = work.catalog
    deduplication = _describe_deduplication("off", DuplicateConfig()).keys()
    if any(catalog.setting(name) != settings[name] for name in deduplication):
        catalog.release_all_duplicates()
        catalog.set({LIMITS_SETTING: None})
    if store is not None and store != work.store:
        if work.base is not None:
            raise GalleryMismatchError(
                work.gallery,
                what="store",
                expected=work.store.show(),
                seen=store.show(),
                advice="copy it there with `retrieval index copy`",
            )
        catalog.set({STORE_SETTING: store.to_text()})
    config = replace(AnnConfig.from_text(catalog.setting(INDEX_SETTING)), **index)
    catalog.set({**settings, INDEX_SETTING: config.to_text()})


def check_out(out: Path, *, sources: Sequence[ImageSource]) -> Path:
    """Check that a gallery of the sources can be made at `out`; its absolute path."""
    shown, gallery = printable_path(out), out.resolve()
    for source in sources:
        if isinstance(source, FolderSource) and (
            gallery.is_relative_to(source.root) or Path(source.root).is_relative_to(gallery)
        ):
            raise InputError(
                f"{shown}: the gallery and the image folder {printable_path(source.location)} must lie beside each "
                "other, not one in the other; give another folder with --out"
            )
    if not gallery.exists():
        return gallery
    if not gallery.is_dir():
        raise InputError("expected a folder for the gallery, found a file; give another --out", at=shown)
    if not os.access(gallery, os.R_OK | os.W_OK | os.X_OK):
        raise InputError("permission denied; the gallery cannot be written there", at=shown)
    state = recognise(gallery)
    if state is FolderState.FOREIGN:
        raise GalleryError(shown, "the folder has other files in it and is not a gallery; give a new or empty --out")
    if state is FolderState.DAMAGED:
        raise find_damage(gallery)
    return gallery


def _take_same_sources(work: Workspace, given: Sequence[ImageSource]) -> None:
    """Check the sources; a stopped first build without any vector takes others."""
    try:
        check_same_sources(work.catalog, given, gallery=work.gallery)
    except GalleryMismatchError:
        if work.base is not None or work.has_vectors():
            raise
        for number in work.catalog.sources():
            work.catalog.remove_source(number)


def check_same_sources(catalog: Catalog, given: Sequence[ImageSource], *, gallery: Path) -> None:
    sources, added = catalog.sources(), catalog.added_source()
    known = {source.location for number, source in sources.items() if number != added}
    locations = {source.location for source in given}
    if not known or known == locations:
        return
    raise GalleryMismatchError(
        gallery,
        what="sources",
        expected=_list_locations(known),
        seen=_list_locations(locations),
        advice="add to it with `retrieval index add`, say where they are now with `retrieval index update --root`, "
        "build into another folder with --out, or delete this gallery and build it anew",
    )


def move_sources(catalog: CatalogWriter, roots: Mapping[str | None, str]) -> None:
    """Record new locations of sources; one that a stopped command recorded already stays."""
    known = {source.location: number for number, source in catalog.sources().items()}
    moves = {
        _find_number(catalog, old): new
        for old, new in roots.items()
        if not (old is not None and new in known and not known.keys() & _spellings(old))
    }
    for number, new in moves.items():
        source = catalog.sources()[number]
        if source.reach is Reach.ANYWHERE and os.path.isdir(new):
            raise InputError(
                f"{printable_path(new)}: a folder, but {printable_path(source.location)} is a {source.kind}, whose "
                "lines say where the images are: change these, then `retrieval index update`, or put the images back"
            )
    if len(set(moves.values())) < len(moves):
        raise InputError("two sources cannot be moved to one place; give each its own --root OLD=NEW")
    for number, new in moves.items():
        if known.get(new, number) != number and known[new] not in moves:
            raise InputError(
                f"{printable_path(new)}: already a source of the gallery; forget the other one with "
                "`retrieval index remove --source`, then `retrieval index update`"
            )
    for number in moves:  # temporary names first: two may swap places
        catalog.move_source(number, f"moving {number}")
    for number, new in moves.items():
        catalog.move_source(number, new)


def forget_source(catalog: CatalogWriter, location: str) -> int:
    """Remove a source; the number of its items, 0 where a stopped command removed it already."""
    forgotten = set(json.loads(catalog.setting("forgotten_sources") or "[]"))
    known = {source.location for source in catalog.sources().values()}
    if forgotten & _spellings(location) and not known & _spellings(location):
        return 0
    number = _find_number(catalog, location)
    forgotten |= {catalog.sources()[number].location, catalog.recorded_sources()[number].location}
    catalog.set({"forgotten_sources": json.dumps(sorted(forgotten))})
    return catalog.remove_source(number)


def _find_number(catalog: CatalogWriter, location: str | None) -> int:
    """The number of a source by its current or recorded location."""
    sources, recorded = catalog.sources(), catalog.recorded_sources()
    if location is None:
        found = [number for number in sources if number != catalog.added_source()]
        problem = "the gallery has several sources; say which one moved: OLD=NEW"
    else:
        names = _spellings(location)
        found = [number for number in sources if names & {sources[number].location, recorded[number].location}]
        problem = f"{printable_path(location)}: no source of the gallery"
    if len(found) != 1:
        listed = _list_locations({source.location for source in sources.values()})
        raise InputError(f"{problem}; its sources are {listed}")
    return found[0]


def _spellings(location: str) -> set[str]:
    resolved = FileSource("").at(os.path.abspath(location)).location
    return {location, os.path.abspath(location), os.path.realpath(location), resolved}


def _list_locations(locations: Iterable[str]) -> str:
    return ", ".join(printable_path(location) for location in sorted(locations))


def require_sources(sources: Iterable[ImageSource], gallery: Path) -> None:
    """Check that the sources are there, so that a disk that is not mounted empties no gallery."""
    for source in sources:
        if not source.is_there() and not source.is_one_item:
            raise _lost_source(source, gallery, "no such folder or file")


def _lost_source(source: ImageSource, gallery: Path, problem: str) -> InputError:
    forget = command_line("remove", gallery, {"--source": source.location})
    return InputError(
        f"{printable_path(source.location)}: {problem}; if it was moved, say where it is now with --root; if its disk "
        f"is not mounted, mount it; if it is gone for good, forget it: {forget}"
    )
