"""A folder of images to a gallery: walk, embed with checkpoints, publish; a stopped build continues."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from index.ahead import usable_cores
from index.build_config import BuildConfig as BuildConfig
from index.catalog import Catalog, write_catalog
from index.embedder import Embedder
from index.errors import GalleryError, InputError
from index.flat_index import import_faiss
from index.images import check_folder, printable_path, walk_folder
from index.labels import folder_label, read_labels
from index.pipeline import EmbeddedFile, embed_files
from index.progress import Progress
from index.versions import lock_gallery, looks_like_gallery, remove_old_versions
from index.workspace import Workspace

logger = logging.getLogger(__name__)

_RIVALS = (("faiss-cpu", "faiss-gpu"), ("onnxruntime", "onnxruntime-gpu"))


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did.

    `indexed`, `skipped` and `skipped_by_reason` count the whole version, `new_images` those embedded by this
    run; `changed` tells whether it made a new version. `seconds` is the whole run, `images_per_second` counts
    new images.
    """

    gallery: str
    version: str
    changed: bool
    indexed: int
    skipped: int
    skipped_by_reason: dict[str, int]
    new_images: int
    seconds: float
    images_per_second: float

    def to_json(self) -> dict[str, Any]:
        """The document that `index build --json` prints."""
        return asdict(self)


def build_gallery(
    *,
    model_path: Path,
    folder: Path,
    out: Path,
    labels_file: Path | None = None,
    moved: bool = False,
    config: BuildConfig | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Build the gallery `out` of every image below `folder`, continue a stopped build, or update a finished one.

    Files whose size and modification time are unchanged keep their ids and vectors. A new version is made only
    where something changed, and of the older ones only the one before it is kept. Every file met is in the
    catalogue, indexed or skipped with a reason.

    Args:
        model_path: an exported model.
        folder: the images; its first folders are the labels, unless `labels_file` gives them.
        out: the gallery folder; made if there is none.
        labels_file: CSV of `path,label`; files without a row are unlabelled.
        moved: take `folder` as the new place of the gallery's photos, where it was built of another folder.
        config: see `BuildConfig`.
        progress: called with (done, total) files.

    Raises:
        InputError: the folders or labels cannot be used, or no image is usable.
        ModelFileError: the model cannot be used, or fails on a batch; what is done is kept.
        GalleryMismatchError: the gallery is of another model or another folder.
        GalleryError: `out` is something else, is being built by another process, is damaged, or the disk is full.
    """
    start = time.perf_counter()
    source = check_folder(folder)
    gallery = _check_out(out, source=source)
    labels = None if labels_file is None else _FileLabels(labels_file, roots=(source, folder))
    import_faiss()
    embedder = Embedder(model_path)
    _warn_of_rivals()
    try:
        gallery.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{printable_path(str(out))}: the gallery cannot be made: {error.strerror}") from error
    with lock_gallery(gallery):
        try:
            return _build(
                Workspace(gallery, source=source, embedder=embedder, moved=moved),
                labels=labels,
                config=config or BuildConfig(),
                progress=progress or (lambda done, total: None),
                start=start,
            )
        except OSError as error:
            advice = "what is done is kept; mend the cause and run the same command again"
            raise GalleryError(printable_path(str(out)), f"{error}; {advice}") from error


class _FileLabels:
    """Labels from a CSV, whose paths may name the image folder as given or as resolved."""

    def __init__(self, labels_file: Path, *, roots: tuple[Path, ...]) -> None:
        self.source = str(labels_file.absolute())
        self._labels = read_labels(labels_file)
        self._roots = [os.path.normpath(root.absolute()) for root in roots]
        self._matched = 0

    def find(self, relative_path: str) -> str | None:
        """The label of an image below the folder."""
        for root in self._roots:
            label = self._labels.get(os.path.join(root, relative_path))
            if label is not None:
                self._matched += 1
                return label
        return None

    def check(self) -> None:
        """Raise InputError where no file asked for had a label."""
        if not self._matched:
            raise InputError(
                f"{printable_path(self.source)}: none of its {len(self._labels)} labelled paths is a file below "
                f"{printable_path(self._roots[0])}; paths are relative to the CSV's own folder, or absolute"
            )


def _check_out(out: Path, *, source: Path) -> Path:
    """The gallery's absolute path, checked before any work."""
    shown, gallery = printable_path(str(out)), out.resolve()
    if gallery.is_relative_to(source) or source.is_relative_to(gallery):
        raise InputError(
            f"{shown}: the gallery and the image folder {printable_path(str(source))} must lie beside each other, "
            "not one in the other; give another folder with --out"
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


def _build(
    work: Workspace, *, labels: _FileLabels | None, config: BuildConfig, progress: Progress, start: float
) -> BuildReport:
    work.open()
    with write_catalog(work.catalog_path) as catalog:
        catalog.record_found(walk_folder(work.source), label_of=labels.find if labels else folder_label)
        if labels is not None:
            labels.check()
        new_images = _embed_pending(catalog, work, config=config, progress=progress)
        indexed, reasons = catalog.count("indexed"), catalog.skipped_by_reason()
        changed = indexed > 0 and work.has_changed(catalog)
        source = labels.source if labels else "folders"
        version = work.publish(catalog, labels_source=source) if changed else work.base
    work.remove()
    if version is not None:
        remove_old_versions(work.gallery, current=version, previous=work.base if changed else None)
    if not indexed or version is None:
        found = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "it has no files"
        raise InputError(f"{printable_path(str(work.source))}: no usable image in the folder: {found}")
    seconds = time.perf_counter() - start
    return BuildReport(
        gallery=str(work.gallery),
        version=version,
        changed=changed,
        indexed=indexed,
        skipped=sum(reasons.values()),
        skipped_by_reason=reasons,
        new_images=new_images,
        seconds=seconds,
        images_per_second=new_images / seconds,
    )


def _embed_pending(catalog: Catalog, work: Workspace, *, config: BuildConfig, progress: Progress) -> int:
    """Settle every pending file, a checkpoint at a time; the number of vectors made."""
    total, done, made = catalog.count("pending"), 0, 0
    gathered: list[EmbeddedFile] = []
    for batch in embed_files(
        ((row.id, work.source / row.path) for row in catalog.rows(status="pending")),
        work.embedder,
        batch_size=config.batch_size,
        workers=config.workers or usable_cores(),
        max_pixels=config.max_pixels,
    ):
        gathered += batch
        done += len(batch)
        if len(gathered) >= config.checkpoint_images or done == total:
            made += work.save_checkpoint(catalog, gathered)
            gathered = []
        progress(done, total)
    return made
