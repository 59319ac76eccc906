"""The group `retrieval index`: the commands that write a gallery; `inspect_commands` has those that look at one."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.build_command import build, column_options, finish, merge, name_columns, writing_options
from index.commands.build_text import describe_build, indexing_bars
from index.commands.console import (
    NAMED,
    PATH,
    NumberList,
    build_config,
    cache_option,
    config_options,
    emit,
    output_options,
    wait_option,
    where_option,
)
from index.commands.inspect_commands import info, list_items, verify
from index.public import as_cache
from index.text import align, printable_path
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.writing.build_config import BuildConfig

if TYPE_CHECKING:
    from index.filters.condition import Condition
    from index.repair.repair import RepairReport


@click.command(name="compact")
@click.argument("gallery", type=PATH)
@wait_option
@output_options
def compact(*, gallery: Path, wait_s: float, as_json: bool) -> None:
    """Write GALLERY anew without the room of removed images: one ANN index over all that is left.

    Small additions and removals are kept beside the ANN index, and are folded in by themselves when they are many; this
    does it now.

    \b
    Examples:
      retrieval index compact gallery
    """
    from index.writing.copying import compact_gallery

    with indexing_bars() as (_, begin_step):
        report = compact_gallery(gallery, begin_step=begin_step, wait_s=wait_s)
    emit(asdict(report), as_json=as_json, text=describe_build(report, out=gallery))


@click.command(name="tune")
@click.argument("gallery", type=PATH)
@click.argument("queries", nargs=-1, type=NAMED, metavar="[QUERY]...")
@config_options(AnnConfig, remembered=True)
@wait_option
@output_options
def tune(*, gallery: Path, queries: tuple[str, ...], wait_s: float, as_json: bool, **options: Any) -> None:
    """Set how hard the ANN index of GALLERY looks so that it meets the recall target.

    What is not given stays as the gallery remembers it; another type or memory limit builds the ANN index again,
    without embedding anything. Otherwise times are taken again on this machine, and recall is what was measured when
    the ANN index was built, by vectors of the gallery that asked before it held them. With QUERYs, at least 100 of
    what `search` takes, it is measured again: they should be like what users ask, and no members of the gallery.

    \b
    Examples:
      retrieval index tune gallery
      retrieval index tune gallery --recall-target 0.99
      retrieval index tune gallery --memory-limit 500MB
      retrieval index tune gallery --index-type ivf customers-photos
    """
    from index.gallery.info import describe_index, read_info
    from index.versions.versions import find_version
    from index.writing.copying import tune_gallery

    changes = {name: value for name, value in options.items() if value is not None}
    find_version(gallery)
    with indexing_bars() as (_, begin_step):
        report = tune_gallery(gallery, changes=changes, queries=queries, begin_step=begin_step, wait_s=wait_s)
    described = read_info(gallery)
    text = "\n".join([describe_build(report, out=gallery), *describe_index(described, gallery=gallery)])
    emit({**asdict(report), "index": described.index}, as_json=as_json, text=text)


@click.command(name="copy")
@click.argument("gallery", type=PATH)
@click.argument("out", type=PATH, metavar="NEW_GALLERY")
@config_options(StoreConfig)
@wait_option
@output_options
def copy(*, gallery: Path, out: Path, wait_s: float, as_json: bool, **options: Any) -> None:
    """Copy the current version of GALLERY to the folder NEW_GALLERY, with its vectors there or in Milvus.

    Nothing is embedded, ids stay, and GALLERY is only read. What people made of it, decisions and uploads, is not
    copied: `retrieval backup` takes that. A copy that was stopped is made again by the same command.

    \b
    Examples:
      retrieval index copy gallery in-milvus --store milvus --uri http://localhost:19530
      retrieval index copy in-milvus gallery-again
    """
    from index.writing.copying import copy_gallery

    store = build_config(StoreConfig, options)
    with indexing_bars() as (_, begin_step):
        report = copy_gallery(gallery, out, store=store, begin_step=begin_step, wait_s=wait_s)
    text = f"{report.indexed:,} images in {printable_path(str(out))}, vectors in {report.store}, {report.seconds:.1f} s"
    emit(asdict(report), as_json=as_json, text=text)


@click.command(name="repair")
@click.argument("gallery", type=PATH)
@click.option(
    "--model", type=PATH, metavar="FILE", help="The model of the gallery, where no version has it any more."
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="SOURCE",
    help="Where the images come from, where the gallery does not say it any more. Can be repeated.",
)
@click.option(
    "--uri", metavar="http://HOST:PORT", help="Where the Milvus server of the gallery answers now, where it moved."
)
@cache_option
@output_options
def repair(
    *, gallery: Path, model: Path | None, sources: tuple[str, ...], uri: str | None, cache: bool, as_json: bool
) -> None:
    """Make GALLERY whole again where files of it are damaged or lost. Decisions and uploads are not touched.

    The newest version whose catalogue is intact becomes the current one. Vectors that are lost are taken from another
    version or your cache folder, or embedded again from the images, under the ids they had. Where no catalogue is
    intact, the gallery is built again from its sources, with new ids. A gallery that is not damaged is left as it is.

    \b
    Examples:
      retrieval index repair gallery
      retrieval index repair gallery --model model.onnx
      retrieval index repair in-milvus --uri http://elsewhere:19530
    """
    from index.repair.repair import repair_gallery

    with indexing_bars() as (progress, begin_step):
        report = repair_gallery(
            gallery, model_path=model, sources=sources, uri=uri, config=BuildConfig(cache=as_cache(cache)),
            progress=progress, begin_step=begin_step,
        )  # fmt: skip
    emit(asdict(report), as_json=as_json, text=_describe_repair(report, gallery=gallery))


def _describe_repair(report: RepairReport, *, gallery: Path) -> str:
    if report.version is None:
        state = "no version to repair"
    elif not report.damaged:
        state = f"nothing is damaged, version {report.version}, {report.indexed:,} images"
    else:
        state = f"repaired, version {report.version} ({report.action}), {report.indexed:,} images"
    lines = [f"{printable_path(str(gallery))}: {state}"]
    lines += [f"  {report.embedded:,} embedded again"] if report.embedded else []
    lines += [f"  {report.lost:,} lost: neither a vector nor a usable file is left"] if report.lost else []
    lines += [f"  was damaged: {problem}" for problem in report.damaged]
    return "\n".join(lines + [f"  {note}" for note in report.notes])


@click.command(name="rollback")
@click.argument("gallery", type=PATH)
@click.option("--to", metavar="VERSION", help="The version to go back to; without it, the undamaged one before.")
@output_options
def rollback(*, gallery: Path, to: str | None, as_json: bool) -> None:
    """Go back to the version of GALLERY before the current one, checked byte by byte first.

    The images, uploads and decisions are not touched; `index update` takes in again what was left. Ids that the newer
    version gave are never given again. Programs that have a version open keep it, and a server shows the other one.

    \b
    Examples:
      retrieval index rollback gallery
      retrieval index rollback gallery --to 000012
    """
    from index.repair.repair import rollback_gallery

    with indexing_bars() as (_, begin_step):
        report = rollback_gallery(gallery, to=to, progress=begin_step("Checking"))
    before = "a damaged CURRENT" if report.left is None else f"version {report.left}"
    shown = printable_path(str(gallery))
    lines = [f"{shown}: back from {before} to version {report.version}, {report.indexed:,} images"]
    lines += [f"  not intact: {problem}" for problem in report.passed_over]
    emit(asdict(report), as_json=as_json, text="\n".join(lines))


@click.group(name="index")
def index_group() -> None:
    """Build searchable galleries from folders of images, keep them up to date, and check them.

    Every command can be stopped at any moment, and goes on where it was when it is run again.
    """


for _command in (build, merge, copy, compact, tune, info, list_items, verify, repair, rollback):
    index_group.add_command(_command)


@index_group.command(name="add")
@click.argument("gallery", type=PATH)
@click.argument("sources", nargs=-1, required=True, type=NAMED, metavar="SOURCE...")
@column_options
@writing_options
@click.pass_context
def add(
    context: click.Context,
    /,
    *,
    gallery: Path,
    sources: tuple[str, ...],
    strict: bool,
    wait_s: float,
    cache: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Add the images of the SOURCEs to GALLERY; nothing else is looked at.

    A SOURCE is anything that `index build` takes. Of a part of a folder that is a source already, new and changed
    images are taken in; what is gone from it stays until the next `index update`. What `index remove` took out
    comes back where it is named here.

    \b
    Examples:
      retrieval index add gallery new-photos
      retrieval index add gallery shard-00042.tar extra.csv
    """
    from index.writing.build import add_to_gallery

    sources = name_columns(sources, options)
    config = build_config(BuildConfig, {**options, "cache": as_cache(cache)})
    with indexing_bars() as (progress, begin_step):
        report = add_to_gallery(
            gallery, sources, config=config, progress=progress, begin_step=begin_step, wait_s=wait_s
        )
    finish(context, report, gallery, as_json=as_json, strict=strict)


@index_group.command(name="update")
@click.argument("gallery", type=PATH)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="[OLD=]NEW",
    help="A source was moved to NEW; OLD says which one, where there are several. Can be repeated.",
)
@click.option(
    "--thorough", is_flag=True, help="Read every file again, also where size and time are those of before."
)
@writing_options
@click.pass_context
def update(
    context: click.Context,
    /,
    *,
    gallery: Path,
    roots: tuple[str, ...],
    thorough: bool,
    strict: bool,
    wait_s: float,
    cache: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Bring GALLERY in line with its sources as they are now, and finish what was stopped.

    Files are compared by size and time, and where these changed by their content: only new content is embedded. A file
    that was renamed or moved keeps its id. What lies on a network is compared by its ETag and the time that its server
    tells, and fetched only where these changed.

    \b
    Examples:
      retrieval index update gallery
      retrieval index update gallery --thorough
      retrieval index update gallery --root /new/place/photos
      retrieval index update gallery --root /old/photos=/new/photos --root /old/shards=/new/shards
    """
    from index.writing.build import update_gallery

    config = build_config(BuildConfig, {**options, "cache": as_cache(cache)})
    with indexing_bars() as (progress, begin_step):
        report = update_gallery(
            gallery, roots=_split_roots(roots), thorough=thorough, config=config, progress=progress,
            begin_step=begin_step, wait_s=wait_s,
        )  # fmt: skip
    finish(context, report, gallery, as_json=as_json, strict=strict)


def _split_roots(texts: tuple[str, ...]) -> dict[str | None, str]:
    roots: dict[str | None, str] = {}
    for text in texts:
        old, separator, new = text.partition("=")
        alone = not separator or Path(text).exists()  # a path may have a = in it
        key = None if alone else old
        if key in roots or (alone and texts[1:]):
            raise click.UsageError("--root NEW stands alone; with several sources give each as OLD=NEW, once")
        roots[key] = text if alone else new
    return roots


@index_group.command(name="remove")
@click.argument("gallery", type=PATH)
@click.argument("paths", nargs=-1, type=NAMED, metavar="[PATH_OR_GLOB]...")
@click.option("--id", "ids", type=NumberList(), multiple=True, metavar="ID,ID", help="Images by their ids.")
@click.option("--label", "labels", multiple=True, help="Images of this label, which is one.")
@click.option(
    "--metadata",
    multiple=True,
    metavar="NAME=VALUE",
    help="Images with this metadata. Can be repeated: all must hold.",
)
@where_option("Images that fulfil this.")
@click.option(
    "--source", "sources", multiple=True, metavar="SOURCE", help="A whole source, which is then forgotten."
)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and change nothing.")
@wait_option
@output_options
def remove(
    *,
    gallery: Path,
    paths: tuple[str, ...],
    ids: tuple[tuple[int, ...], ...],
    labels: tuple[str, ...],
    metadata: tuple[str, ...],
    where: Condition | None,
    sources: tuple[str, ...],
    dry_run: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Take images out of GALLERY; the files themselves are not touched.

    PATHs are as `search` prints them, absolute, or from here; a folder or archive stands for all below it, and `*` for
    any characters. Of several kinds of condition all must hold. What was taken out stays out in later updates, until
    `index add` names it.

    \b
    Examples:
      retrieval index remove gallery shoes/0001.jpg 'hats/*.png'
      retrieval index remove gallery --id 12,40
      retrieval index remove gallery --label skip --dry-run
      retrieval index remove gallery --metadata shop=example.com
      retrieval index remove gallery --where "label = 'shoes' AND price >= 100" --dry-run
    """
    from index.gallery.selection import Selection
    from index.writing.build import remove_from_gallery

    pairs = tuple((name, value) for name, _, value in (text.partition("=") for text in metadata))
    if wrong := [text for text in metadata if "=" not in text]:
        raise click.UsageError(f"--metadata expects NAME=VALUE, got {wrong[0]!r}")
    if len(labels) > 1:
        raise click.UsageError("--label can be given once")
    numbers, label = tuple(chain.from_iterable(ids)), labels[0] if labels else None
    is_selective = bool(paths or numbers or pairs or labels or where)
    selection = Selection(paths, numbers, label, pairs, where) if is_selective or not sources else None
    if dry_run:
        _list_selected(gallery, selection, sources, as_json=as_json)
        return
    with indexing_bars() as (progress, begin_step):
        report = remove_from_gallery(
            gallery, selection=selection, sources=sources, progress=progress, begin_step=begin_step, wait_s=wait_s
        )
    emit(asdict(report), as_json=as_json, text=describe_build(report, out=gallery))


def _list_selected(gallery: Path, selection: Any, forgotten: tuple[str, ...], *, as_json: bool) -> None:
    from index.catalog.reader import read_catalog
    from index.text import valid_text
    from index.versions.manifest import CATALOG_NAME
    from index.versions.versions import find_version

    if forgotten:
        raise click.UsageError("--dry-run lists images; leave --source out")
    with read_catalog(find_version(gallery).folder / CATALOG_NAME) as catalog:
        rows, sources = list(selection.select(catalog)), catalog.sources()
    roots = {number: source.root for number, source in sources.items()}
    document, table = [], [("id", "label", "path")]
    for row in rows:
        source, path = valid_text(roots[row.source]), valid_text(row.path)
        document.append({"id": row.id, "label": row.label, "source": source, "path": path})
        place = row.path if len(roots) == 1 else os.path.join(roots[row.source], row.path)
        table.append((str(row.id), row.label or "-", printable_path(place)))
    text = "\n".join([*align(table, right={0}), f"{len(rows):,} would be removed"])
    emit({"selected": document}, as_json=as_json, text=text)
