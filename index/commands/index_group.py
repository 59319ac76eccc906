"""The group `retrieval index`: the commands that write a gallery; `inspect_commands` has those that look at one."""

from __future__ import annotations

import os
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.build_text import describe_build, indexing_bars
from index.commands.console import (
    NAMED,
    PATH,
    GroupedCommand,
    NumberList,
    build_config,
    cache_option,
    config_options,
    emit,
    is_given,
    output_options,
    refuse_unused,
    wait_option,
    where_option,
)
from index.commands.copy_command import copy
from index.commands.images_or_gallery import is_model, refuse_gallery, refuse_training
from index.commands.inspect_commands import info, list_items, verify
from index.commands.reindex_commands import compact, tune
from index.commands.repair_commands import repair, rollback
from index.duplicates.duplicate_config import DuplicateConfig
from index.public import as_cache
from index.public import build as build_gallery
from index.sources.beside import gallery_beside
from index.text import printable_path
from index.text_table import align
from index.vectors.ann_config import AnnConfig
from index.vectors.store_config import StoreConfig
from index.writing.build_config import DEDUP, BuildConfig

if TYPE_CHECKING:
    from index.filters.condition import Condition
    from index.writing.publish_change import BuildReport


@click.group(name="index")
def index_group() -> None:
    """Build searchable galleries from folders of images, keep them up to date, and check them.

    Every command can be stopped at any moment, and goes on where it was when it is run again.
    """


for _command in (copy, compact, tune, info, list_items, verify, repair, rollback):
    index_group.add_command(_command)


def _strict_option(command: Any) -> Any:
    text = "Exit with 1 where any item was skipped (the gallery is made all the same)."
    return click.option("--strict", is_flag=True, help=text)(command)


def _column_options(command: Any) -> Any:
    for role, what in (("label", "what an image shows"), ("path", "where an image is")):
        command = click.option(
            f"--{role}-column", metavar="NAME",
            help=f"The column of the tables among SOURCE that says {what}.  [default: {role}]",
        )(command)  # fmt: skip
    return command


def _name_columns(
    sources: tuple[str, ...], *, path_column: str | None, label_column: str | None
) -> tuple[str, ...]:
    """The sources, whose tables say what their columns are called, as it was given."""
    from index.sources.registry import find_source
    from index.sources.table import TableSource
    from index.sources.table_columns import TableColumns

    if path_column is None and label_column is None:
        return sources
    columns = TableColumns(path=path_column or "path", label=label_column or "label")
    found = [find_source(text) for text in sources]
    if not any(isinstance(source, TableSource) for source in found):
        raise click.UsageError("--path-column and --label-column go with a .csv or .parquet table as SOURCE")
    return tuple(
        source.naming(columns).location if isinstance(source, TableSource) else text
        for text, source in zip(sources, found, strict=True)
    )


@index_group.command(name="build", cls=GroupedCommand)
@click.argument("given", nargs=-1, required=True, type=NAMED, metavar="[MODEL] SOURCE...")
@click.option(
    "--out",
    type=PATH,
    metavar="GALLERY",
    help="The gallery folder to make or update.  [default: beside the first SOURCE: photos-gallery of photos]",
)
@click.option(
    "--labels",
    "labels_file",
    type=PATH,
    metavar="FILE",
    help="CSV or Parquet file with the columns path,label, which goes before all other labels. Without it, the first "
    "folder below a source is the label, or what a table or sidecar file says.",
)
@click.option(
    "--dedup",
    type=click.Choice(DEDUP),
    default="off",
    show_default=True,
    help="Set images aside that repeat another one: the same bytes, or nearly the same picture too.",
)
@_column_options
@_strict_option
@wait_option
@cache_option
@config_options(BuildConfig, AnnConfig, DuplicateConfig, StoreConfig)
@output_options
@click.pass_context
def build(
    context: click.Context,
    /,
    *,
    given: tuple[str, ...],
    out: Path | None,
    labels_file: Path | None,
    dedup: str,
    path_column: str | None,
    label_column: str | None,
    strict: bool,
    wait_s: float,
    cache: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Embed every image of the SOURCEs and make the gallery.

    MODEL is a file that `retrieval export` wrote, named .onnx; without one it is the model that comes with the package.
    A SOURCE is a folder, a .tar or .zip archive (read in place, with the .json, .txt and .cls files of WebDataset and
    img2dataset), a glob, a .txt list of paths, a .csv or .parquet table with a column `path` (`label` and any others
    are kept as metadata; other names: --path-column and --label-column), or an image.

    Every item ends as indexed, as a duplicate, or as skipped with a reason. A build that was stopped continues when it
    is run again; a finished gallery is brought up to date, and only new or changed images are embedded. Programs that
    have a version open keep it.

    \b
    Examples:
      retrieval index build photos
      retrieval index build model.onnx photos --out gallery
      retrieval index build model.onnx photos more-photos 'shards/*.tar' --out gallery --dedup near
      retrieval index build model.onnx products.csv --out gallery --strict
      retrieval index build products.csv --path-column image --label-column category
      retrieval index build photos --store milvus --uri http://localhost:19530
    """
    if dedup != "near":
        refuse_unused(context, *(field.name for field in fields(DuplicateConfig)), needs="--dedup near")
    chosen = {name: value for name, value in options.items() if is_given(context, name)}
    for config in (BuildConfig, AnnConfig, DuplicateConfig, StoreConfig):
        build_config(config, chosen)  # a value out of range is a mistake in how the command was called
    model, sources = (given[0], given[1:]) if is_model(given[0]) else (None, given)
    if not sources:
        raise click.UsageError("Missing argument 'SOURCE...': what MODEL is to embed.", ctx=context)
    for source in sources:
        if is_model(source):
            raise click.UsageError(
                f"{printable_path(source)} is a model: MODEL comes first, and once", ctx=context
            )
        refuse_training(source)
        refuse_gallery(source)
    gallery = out or gallery_beside(sources[0])
    sources = _name_columns(sources, path_column=path_column, label_column=label_column)
    with indexing_bars() as (progress, begin_step):
        report = build_gallery(
            model, sources, gallery, labels=labels_file, dedup=dedup, cache=cache, progress=progress,
            begin_step=begin_step, wait_s=wait_s, **chosen,
        )  # fmt: skip
    _finish(context, report, gallery, as_json=as_json, strict=strict)


@index_group.command(name="add")
@click.argument("gallery", type=PATH)
@click.argument("sources", nargs=-1, required=True, type=NAMED, metavar="SOURCE...")
@_column_options
@_strict_option
@wait_option
@cache_option
@config_options(BuildConfig)
@output_options
@click.pass_context
def add(
    context: click.Context,
    /,
    *,
    gallery: Path,
    sources: tuple[str, ...],
    path_column: str | None,
    label_column: str | None,
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

    config = build_config(BuildConfig, {**options, "cache": as_cache(cache)})
    sources = _name_columns(sources, path_column=path_column, label_column=label_column)
    with indexing_bars() as (progress, begin_step):
        report = add_to_gallery(
            gallery, sources, config=config, progress=progress, begin_step=begin_step, wait_s=wait_s
        )
    _finish(context, report, gallery, as_json=as_json, strict=strict)


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
@_strict_option
@wait_option
@cache_option
@config_options(BuildConfig)
@output_options
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
    that was renamed or moved keeps its id.

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
            gallery,
            roots=_split_roots(roots),
            thorough=thorough,
            config=config,
            progress=progress,
            begin_step=begin_step,
            wait_s=wait_s,
        )
    _finish(context, report, gallery, as_json=as_json, strict=strict)


def _split_roots(texts: tuple[str, ...]) -> dict[str | None, Path]:
    roots: dict[str | None, Path] = {}
    for text in texts:
        old, separator, new = text.partition("=")
        alone = not separator or Path(text).exists()  # a path may have a = in it
        key = None if alone else old
        if key in roots or (alone and texts[1:]):
            raise click.UsageError("--root NEW stands alone; with several sources give each as OLD=NEW, once")
        roots[key] = Path(text if alone else new)
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

    pairs = tuple(_split_metadata(text) for text in metadata)
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
    emit(report.to_json(), as_json=as_json, text=describe_build(report, out=gallery))


def _split_metadata(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"--metadata expects NAME=VALUE, got {text!r}")
    return name, value


def _list_selected(gallery: Path, selection: Any, forgotten: tuple[str, ...], *, as_json: bool) -> None:
    from index.catalog.reader import read_catalog
    from index.text import printable_path, valid_text
    from index.versions.manifest import CATALOG_NAME
    from index.versions.versions import find_version

    if forgotten:
        raise click.UsageError("--dry-run lists images; leave --source out")
    with read_catalog(find_version(gallery).folder / CATALOG_NAME) as catalog:
        rows, sources = list(selection.select(catalog)), catalog.sources()
    roots = {number: source.root for number, source in sources.items()}
    places = [row.path if len(roots) == 1 else os.path.join(roots[row.source], row.path) for row in rows]
    document = [
        {"id": row.id, "label": row.label, "source": valid_text(roots[row.source]), "path": valid_text(row.path)}
        for row in rows
    ]
    lines = (
        (str(row.id), row.label or "-", printable_path(place)) for row, place in zip(rows, places, strict=True)
    )
    table = [("id", "label", "path"), *lines]
    text = "\n".join([*align(table, right={0}), f"{len(rows):,} would be removed"])
    emit({"selected": document}, as_json=as_json, text=text)


def _finish(context: click.Context, report: BuildReport, gallery: Path, *, as_json: bool, strict: bool) -> None:
    emit(report.to_json(), as_json=as_json, text=describe_build(report, out=gallery))
    if strict and report.skipped:
        context.exit(1)
