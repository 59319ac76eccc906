"""GALLERY arguments that may be images: their gallery is beside them, and is made if need be; summaries of builds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from index.commands.console import progress_bars
from index.errors import GalleryError, InputError, NoUsableImageError
from index.markers import BESIDE
from index.network.remote_store import is_address
from index.public import build
from index.sources.table_rows import split_address
from index.text import align, printable_path
from index.writing.build_config import RunOptions

if TYPE_CHECKING:
    from index.writing.publishing import BuildReport

_MODEL_SUFFIX = ".onnx"


def gallery_beside(source: str | Path) -> Path:
    """`photos-gallery` of the folder `photos`, of `photos.tar`, and of `photos.csv`."""
    if is_address(str(source)):
        raise InputError("an address needs --out GALLERY", at=source)
    path = Path(os.path.abspath(split_address(str(source))[0]))
    name = path.name if path.is_dir() else path.stem
    if not path.exists() and not any(sign in str(source) for sign in "*?["):
        raise InputError("no such file or folder", at=source)
    if not name or not path.exists():
        raise InputError("give --out GALLERY; only a folder or a file has a gallery beside it", at=source)
    return path.with_name(name + BESIDE)


def ensure_gallery(path: Path, *, check: Callable[[], object] = lambda: None) -> Path:
    """`path`, or the gallery beside its images, made, with a note on stderr, after `check`, which may refuse."""
    from index.sources.registry import refuse_models

    refuse_models(str(path))
    if not _holds_images(path):
        return path
    images = printable_path(path)
    elsewhere = f"make it elsewhere, `retrieval index build {images} --out GALLERY`, and name that"
    try:
        gallery = gallery_beside(path)
    except InputError as error:
        raise InputError(f"{error}; {elsewhere}") from error
    near = gallery.relative_to(Path.cwd()) if gallery.is_relative_to(Path.cwd()) else gallery
    shown = printable_path(near)
    if _is_finished(gallery, of=path):
        click.echo(f"{images} has the gallery {shown}; after changes: retrieval index update {shown}", err=True)
        return gallery
    check()
    click.echo(f"{images} has no gallery yet: {shown} is made, with the model that comes with the package", err=True)
    try:
        with indexing_bars() as run:
            report = build(None, path, gallery, **run)
    except KeyboardInterrupt:
        click.echo(f"{shown}: unfinished; the same command continues it", err=True)
        raise
    except NoUsableImageError:  # what was named was rather something else
        raise
    except InputError as error:
        raise InputError(f"{error}; {elsewhere}") from error
    except GalleryError as error:
        raise GalleryError(error.path, f"{error.problem}; or {elsewhere}") from error
    click.echo(describe_build(report, out=near), err=True)
    return gallery


def is_model(given: str) -> bool:
    """Whether an argument is a model file, by its suffix or its content."""
    from index.model.contract import find_contract

    return given.lower().endswith(_MODEL_SUFFIX) or (Path(given).is_file() and find_contract(Path(given)) is not None)


def _holds_images(path: Path) -> bool:
    """Whether it is a folder, an archive, a table or a list, but no gallery and no single image."""
    from index.sources.registry import find_source
    from index.sources.table_rows import find_table
    from index.versions.gallery_identity import FolderState, recognise

    if path.is_dir():
        return recognise(path) is FolderState.FOREIGN
    return find_table(path)[0].is_file() and not is_model(str(path)) and not find_source(str(path)).is_one_item


def _is_finished(gallery: Path, *, of: Path) -> bool:
    from index.catalog.reader import read_catalog
    from index.sources.registry import find_source
    from index.versions.manifest import CATALOG_NAME
    from index.versions.versions import read_current

    version = read_current(gallery) if gallery.is_dir() else None
    if version is None:
        return False
    with read_catalog(version.folder / CATALOG_NAME) as catalog:
        known = {source.location for source in catalog.sources().values()}
    if find_source(str(of)).location not in known:
        raise GalleryError(
            gallery,
            f"a gallery of other images than {printable_path(of)}; name it to search it, or build another with "
            "`retrieval index build` and --out",
        )
    return True


@contextmanager
def indexing_bars(**options: Unpack[RunOptions]) -> Iterator[RunOptions]:
    """The options of a writing command, with bars for the progress of embedding and of other steps."""
    with progress_bars() as begin:
        options["progress"] = begin("Indexing", unit="images")
        options["begin_step"] = lambda name: begin(name, unit="items")
        yield options


def describe_build(report: BuildReport, *, out: Path) -> str:
    """Summary of a writing command."""
    from index.images.image_files import REASONS

    shown = printable_path(out)
    state = "built" if report.changed else "already up to date:"
    lines = [f"{shown}: {state} version {report.version}, {report.indexed:,} images"]
    if report.new_images:
        lines[0] += f", {report.new_images:,} new at {report.images_per_second:,.0f} images/s"
    if report.from_cache:
        lines.append(f"  {report.from_cache:,} of these came from the cache")
    if report.labels is not None and report.new_images:
        lines.append(f"  {_describe_labels(report.labels)}")
    changes = {"moved": report.moved, "vanished": report.vanished, "removed": report.removed}
    lines += [f"  {count:,} {what}" for what, count in changes.items() if count]
    if report.skipped or report.duplicate:
        lines.append(
            f"{report.found:,} found = {report.indexed:,} indexed + {report.duplicate:,} duplicates "
            f"+ {report.skipped:,} skipped"
        )
    if report.skipped:
        rows = [(f"{count:,}", reason, REASONS[reason]) for reason, count in report.skipped_by_reason.items()]
        lines += ["  " + line for line in align(rows, right={0})]
        lines.append(f"list them: retrieval index list {shown} --status skipped")
    return "\n".join(lines)


def _describe_labels(labels: Mapping[str, Any]) -> str:
    """Count and origin of the labels, which most people give as folders."""
    if not labels["count"]:
        return (
            "no labels: an image's is the first folder below its source, or what a table, sidecar or --labels file "
            "says; of photos/* name photos instead"
        )
    largest = ", ".join(f"{printable_path(name)} {count:,}" for name, count in labels["largest"].items())
    others = ", …" if labels["count"] > len(labels["largest"]) else ""
    what = "label" if labels["count"] == 1 else "labels"
    return f"{labels['count']:,} {what}, of {labels['images']:,} images, by folder or table: {largest}{others}"
