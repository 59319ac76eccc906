"""The group `retrieval index`: the commands that write a gallery; `inspect_commands` has those that look at one."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.build_command import build, column_options, finish, merge, name_columns, writing_options
from index.commands.console import (
    NAMED,
    PATH,
    GroupedCommand,
    build_config,
    cache_option,
    config_options,
    emit,
    gps_option,
    help_all_option,
    ocr_option,
    output_options,
    read_numbers,
    skip_if_option,
    wait_option,
    where_option,
)
from index.commands.images_or_gallery import describe_build, indexing_bars
from index.commands.inspect_commands import describe_rows, info, list_items, problems, tabulate, verify
from index.commands.tidy_command import tidy
from index.commands.watch_command import watch
from index.public import as_cache
from index.text import align, printable_path
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.writing.build_config import BuildConfig

if TYPE_CHECKING:
    from index.filters.condition import Condition
    from index.repair.repair import RepairReport

_LISTED = 20  # images that --dry-run lists as text


@click.command(name="tune", cls=GroupedCommand)
@click.argument("gallery", type=PATH)
@config_options(AnnConfig, remembered=True)
@wait_option
@output_options
def tune(*, gallery: Path, wait_s: float, as_json: bool, **options: Any) -> None:
    """Rebuild the ANN index: without removed images, to a recall target or a memory limit.

    Nothing is embedded, and options that are not given stay as they were. Small additions and removals are kept beside
    the ANN index, and are folded in automatically when they are many; this does it now. Recall and search times are
    measured by vectors that the index does not have yet.

    \b
    Examples:
      retrieval index tune gallery
      retrieval index tune gallery --recall-target 0.99
      retrieval index tune gallery --memory-limit 500MB
      retrieval index tune gallery --index-type ivf
    """
    from index.gallery.info import describe_index, read_info
    from index.versions.versions import find_version
    from index.writing.copying import tune_gallery

    changes = {name: value for name, value in options.items() if value is not None}
    find_version(gallery)
    with indexing_bars(wait_s=wait_s) as run:
        report = tune_gallery(gallery, changes=changes, **run)
    described = read_info(gallery)
    text = "\n".join([describe_build(report, out=gallery), *describe_index(described, gallery=gallery)])
    emit({**asdict(report), "index": described["index"]}, as_json=as_json, text=text)


@click.command(name="cluster")
@click.argument("gallery", type=PATH)
@click.option(
    "--count",
    type=click.IntRange(1, 1000),
    metavar="K",
    show_default="the square root of half the images",
    help="Number of clusters.",
)
@wait_option
@output_options
def cluster(*, gallery: Path, count: int | None, wait_s: float, as_json: bool) -> None:
    """Cluster the images by their vectors.

    The metadata column `cluster` then has the name of each image's cluster, for filters and facets: its most frequent
    label (`shoes`, `shoes 2`), or `cluster 7` without labels. Images added later have no cluster until the
    command runs again.

    \b
    Examples:
      retrieval index cluster gallery
      retrieval index cluster gallery --count 50
      retrieval search gallery query.jpg --where "cluster = 'shoes 2'"
    """
    from index.writing.copying import cluster_gallery

    with indexing_bars(wait_s=wait_s) as run:
        report, sizes = cluster_gallery(gallery, count=count, **run)
    table = align([("images", "cluster"), *((f"{n:,}", printable_path(name)) for name, n in sizes.items())], right={0})
    text = "\n".join([describe_build(report, out=gallery), f"{len(sizes):,} clusters", *table])
    emit({**asdict(report), "clusters": sizes}, as_json=as_json, text=text)


@click.command(name="copy")
@click.argument("gallery", type=PATH)
@click.argument("out", type=PATH, metavar="NEW_GALLERY")
@config_options(StoreConfig)
@wait_option
@output_options
def copy(*, gallery: Path, out: Path, wait_s: float, as_json: bool, **options: Any) -> None:
    """Copy a gallery, with its vectors in files or in Milvus.

    The current version of GALLERY is copied to the folder NEW_GALLERY. Nothing is embedded, ids stay, and GALLERY is
    only read. Annotations (decisions and uploads) are not copied: use `retrieval backup`. A stopped copy continues when
    it is run again.

    \b
    Examples:
      retrieval index copy gallery second-gallery
      retrieval index copy gallery in-milvus --store milvus --uri http://localhost:19530
      retrieval index copy in-milvus gallery-again
    """
    from index.writing.copying import copy_gallery

    store = build_config(StoreConfig, options)
    with indexing_bars(wait_s=wait_s) as run:
        report = copy_gallery(gallery, out, store=store, **run)
    text = f"{report.indexed:,} images in {printable_path(out)}, vectors in {store.show()}, {report.seconds:.1f} s"
    emit(asdict(report), as_json=as_json, text=text)


@click.command(name="repair")
@click.argument("gallery", type=PATH)
@click.option("--model", type=PATH, metavar="FILE", help="The model of the gallery, or builtin, if no version has it.")
@click.option("--uri", metavar="http://HOST:PORT", help="New address of the gallery's Milvus server.")
@cache_option
@output_options
def repair(*, gallery: Path, model: Path | None, uri: str | None, no_cache: bool, as_json: bool) -> None:
    """Repair a gallery with damaged or lost files.

    The newest version with an intact catalogue becomes the current one. Lost vectors are taken from the cache folder,
    or embedded again from the images, under the same ids. Decisions and uploads are not touched.

    \b
    Examples:
      retrieval index repair gallery
      retrieval index repair gallery --model model.onnx
      retrieval index repair in-milvus --uri http://elsewhere:19530
    """
    from index.model.builtin import find_named_model
    from index.repair.repair import repair_gallery

    model = None if model is None else find_named_model(model)
    with indexing_bars(config=BuildConfig(cache=as_cache(not no_cache))) as run:
        report = repair_gallery(gallery, model_path=model, uri=uri, **run)
    emit(asdict(report), as_json=as_json, text=describe_repair(report, gallery=gallery))


def describe_repair(report: RepairReport, *, gallery: Path) -> str:
    action = "nothing is damaged" if report.action == "used" and not report.damaged else report.action
    state = f"{action}, version {report.version}, {report.indexed:,} images"
    lines = [f"{printable_path(gallery)}: {state if report.version else 'no version to repair'}"]
    lines += [f"  {report.embedded:,} embedded again"] if report.embedded else []
    lines += [f"  {report.lost:,} lost: neither a vector nor a usable file is left"] if report.lost else []
    lines += [f"  was damaged: {problem}" for problem in report.damaged]
    return "\n".join(lines + [f"  {note}" for note in report.notes])


@click.command(name="rollback")
@click.argument("gallery", type=PATH)
@click.option(
    "--to", metavar="VERSION", help="Version to go back to.  [default: the newest intact one before the current]"
)
@output_options
def rollback(*, gallery: Path, to: str | None, as_json: bool) -> None:
    """Go back to an earlier version of a gallery.

    That version is checked byte by byte first. Images, uploads and decisions are not touched; `index update` applies
    later changes again. Ids of the newer version are never reused. Programs that have a version open keep it; a server
    changes to the earlier one.

    \b
    Examples:
      retrieval index rollback gallery
      retrieval index rollback gallery --to 000012
      retrieval index rollback gallery --json
    """
    from index.repair.repair import rollback_gallery

    with indexing_bars() as run:
        report = rollback_gallery(gallery, to=to, progress=run["begin_step"]("Checking"))
    emit(asdict(report), as_json=as_json, text=describe_repair(report, gallery=gallery))


@click.group(name="index")
def index_group() -> None:
    """Build galleries from images, keep them up to date, and check them.

    Every command may be stopped at any moment, and continues when it is run again.

    \b
    Examples:
      retrieval index build photos
      retrieval index update photos-gallery
      retrieval index info photos-gallery
    """


for _command in (build, watch, merge, copy, cluster, tune, info, list_items, problems, verify, repair, rollback, tidy):
    index_group.add_command(_command)


@index_group.command(
    name="add",
    cls=GroupedCommand,
    common=("url_column", "path_column", "label_column", "strict", "as_json", "help_all"),
)
@click.argument("gallery", type=PATH)
@click.argument("sources", nargs=-1, required=True, type=NAMED, metavar="SOURCE...")
@column_options
@writing_options
@help_all_option
@click.pass_context
def add(
    context: click.Context,
    /,
    *,
    gallery: Path,
    sources: tuple[str, ...],
    strict: bool,
    wait_s: float,
    no_cache: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Add the images of SOURCEs to a gallery.

    A SOURCE is anything that `index build` takes. A part of a folder that is a source already may be named too: its new
    and changed images are added; those that are gone from it stay until the next `index update`. Images that `index
    remove` removed come back when they are named here.

    \b
    Examples:
      retrieval index add gallery new-photos
      retrieval index add gallery shard-00042.tar extra.csv
      retrieval index add gallery products.csv --path-column image
    """
    from index.writing.build import add_to_gallery

    sources = name_columns(sources, options)
    config = build_config(BuildConfig, {**options, "cache": as_cache(not no_cache)})
    with indexing_bars(config=config, wait_s=wait_s) as run:
        report = add_to_gallery(gallery, sources, **run)
    finish(context, report, gallery, as_json=as_json, strict=strict)


@index_group.command(
    name="update",
    cls=GroupedCommand,
    common=("roots", "thorough", "skip_if", "ocr", "gps", "describe", "strict", "as_json", "help_all"),
)
@click.argument("gallery", type=PATH)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="[OLD=]NEW",
    help="New place of a source that was moved; OLD names it among several. Can be repeated.",
)
@click.option("--thorough", is_flag=True, help="Read every file again, even if size and time are unchanged.")
@skip_if_option
@ocr_option
@gps_option
@click.option("--describe", is_flag=True, help="Read EXIF, IPTC and XMP of the files again of which none is known.")
@writing_options
@help_all_option
@click.pass_context
def update(
    context: click.Context,
    /,
    *,
    gallery: Path,
    roots: tuple[str, ...],
    thorough: bool,
    skip_if: Condition | None,
    ocr: bool | None,
    gps: bool | None,
    describe: bool,
    strict: bool,
    wait_s: float,
    no_cache: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Update a gallery to its sources as they are now.

    Files are compared by size and time, and if these changed, by content; only new content is embedded. A file that was
    renamed or moved keeps its id. Remote files are compared by ETag and time, and fetched only if these changed.
    A stopped command is finished too.

    \b
    Examples:
      retrieval index update gallery
      retrieval index update gallery --thorough
      retrieval index update gallery --root /old/photos=/new/photos --root /old/shards=/new/shards
    """
    from index.writing.build import update_gallery

    config = build_config(BuildConfig, {**options, "cache": as_cache(not no_cache)})
    with indexing_bars(config=config, wait_s=wait_s) as run:
        report = update_gallery(
            gallery,
            roots=_split_roots(roots),
            thorough=thorough,
            skip_if=skip_if,
            ocr=ocr,
            gps=gps,
            describe=describe,
            **run,
        )
    finish(context, report, gallery, as_json=as_json, strict=strict)


def _split_roots(texts: tuple[str, ...]) -> dict[str | None, str]:
    roots: dict[str | None, str] = {}
    for text in texts:
        old, separator, new = text.partition("=")
        alone = not separator or Path(text).exists()  # a path may have a = in it
        key = None if alone else old
        if key in roots or (alone and texts[1:]):
            raise click.UsageError(
                "--root NEW cannot be repeated: with several sources give --root OLD=NEW for each, once"
            )
        roots[key] = text if alone else new
    return roots


@index_group.command(name="remove")
@click.argument("gallery", type=PATH)
@click.argument("paths", nargs=-1, type=NAMED, metavar="[PATH_OR_GLOB]...")
@click.option("--id", "ids", type=read_numbers, multiple=True, metavar="ID,ID", help="Images by their ids.")
@where_option("Images that match this.")
@click.option("--source", "sources", multiple=True, metavar="SOURCE", help="A whole source; the gallery forgets it.")
@click.option("--dry-run", is_flag=True, help="List what would be removed, with --json all of it; change nothing.")
@wait_option
@output_options
def remove(
    *,
    gallery: Path,
    paths: tuple[str, ...],
    ids: tuple[tuple[int, ...], ...],
    where: Condition | None,
    sources: tuple[str, ...],
    dry_run: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Remove images from a gallery; their files stay.

    PATHs are as `search` prints them, absolute, or relative to here; a folder or archive stands for all below it, and
    `*` for any characters. All kinds of condition that are given must hold. Removed images stay out in later updates,
    until `index add` names them.

    \b
    Examples:
      retrieval index remove gallery shoes/0001.jpg 'hats/*.png'
      retrieval index remove gallery --where "label = 'skip'" --dry-run
      retrieval index remove gallery --where "label = 'shoes' AND price >= 100" --dry-run
    """
    from index.gallery.selection import Selection
    from index.labels.decided_labels import read_current_catalog
    from index.writing.build import remove_from_gallery

    numbers = tuple(chain.from_iterable(ids))
    selection = Selection(paths, numbers, where) if paths or numbers or where or not sources else None
    if dry_run:
        if selection is None or sources:
            raise click.UsageError("--dry-run lists images; leave --source out")
        with read_current_catalog(gallery) as catalog:
            items = describe_rows(list(selection.select(catalog)), catalog)
        more = len(items) - _LISTED
        lines = tabulate(items[:_LISTED], status=None)
        lines += [f"… and {more:,} more, which --json lists"] if more > 0 else []
        text = "\n".join([*lines, f"{len(items):,} would be removed"])
        emit({"selected": items}, as_json=as_json, text=text)
        return
    with indexing_bars(wait_s=wait_s) as run:
        report = remove_from_gallery(gallery, selection=selection, sources=sources, **run)
    emit(asdict(report), as_json=as_json, text=describe_build(report, out=gallery))
