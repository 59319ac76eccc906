"""`retrieval index build` and `merge`, and options shared with other commands that write a gallery."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import (
    NAMED,
    PATH,
    GroupedCommand,
    backend_option,
    build_config,
    cache_option,
    config_options,
    emit,
    gps_option,
    help_all_option,
    is_given,
    ocr_option,
    output_options,
    refuse_unused,
    skip_if_option,
    wait_option,
)
from index.commands.images_or_gallery import describe_build, gallery_beside, indexing_bars, is_model
from index.config_fields import make_config, option_names
from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import InputError
from index.public import build as build_gallery
from index.text import printable_path
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.writing.build_config import DEDUP, BuildConfig

if TYPE_CHECKING:
    from index.writing.publishing import BuildReport
    from index.writing.shard_plan import Shard
    from index.writing.sharding import SharedWork


RAY = "ray"
_CONFIGS = (BuildConfig, AnnConfig, DuplicateConfig, StoreConfig)
_CONFIG_OPTIONS = frozenset(option_names(*_CONFIGS))
_ROLES = ("label", "path", "url")
_SHARD = re.compile(r"(\d{1,5})/(\d{1,5})")


def _read_shard(text: str) -> Shard:
    """`3/8` as the third of eight shards."""
    from index.writing.shard_plan import Shard

    match = _SHARD.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not I/N, such as 3/8 for the third of eight shards")
    try:
        return Shard(int(match[1]), int(match[2]))
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def check_machines(context: click.Context, options: dict[str, Any]) -> None:
    """Refuse options that conflict with `--shard` and `--engine ray`, or need them."""
    shard, is_on_ray = options["shard"], options["engine"] == RAY
    if shard is not None and is_on_ray:
        raise click.UsageError("give either --shard or --engine ray", ctx=context)
    if not is_on_ray:
        refuse_unused(context, "address", needs="--engine ray")
    if shard is None and not is_on_ray:
        return
    if shard is not None:
        refuse_unused(context, "strict", needs="`retrieval index merge`, where --shard is given")
    refuse_unused(context, "skip_if", needs="a build by one machine, or `retrieval index update` afterwards")
    refuse_unused(context, "ocr", needs="a build by one machine, or `retrieval index update --ocr` afterwards")
    refuse_unused(context, "gps", needs="a build by one machine, or `retrieval index update --gps` afterwards")
    stores = option_names(StoreConfig)
    refuse_unused(context, *stores, needs="a build by one machine, or `retrieval index copy` afterwards")


def finish(context: click.Context, report: BuildReport, gallery: Path, *, as_json: bool, strict: bool) -> None:
    emit(asdict(report), as_json=as_json, text=describe_build(report, out=gallery))
    if strict and report.skipped:
        context.exit(1)


def strict_option(command: Any) -> Any:
    text = "Exit with 1 if any image was skipped; the gallery is written all the same."
    return click.option("--strict", is_flag=True, help=text)(command)


def writing_options(command: Any) -> Any:
    """Add the options of commands that embed images, with `--json` and `--debug`."""
    shared = (output_options, backend_option, config_options(BuildConfig), cache_option, wait_option, strict_option)
    for add_option in shared:
        command = add_option(command)
    return command


def column_options(command: Any) -> Any:
    for role in _ROLES:
        command = click.option(
            f"--{role}-column",
            metavar="NAME",
            help=f"Column of the {role} in tables among the SOURCEs.  [default: {role}]",
        )(command)
    return command


def name_columns(sources: tuple[str, ...], options: dict[str, Any]) -> tuple[str, ...]:
    """The sources, with the column names of `column_options` in the addresses of tables."""
    from index.sources.registry import find_source
    from index.sources.table_rows import TABLE_SUFFIXES, say_columns, split_address
    from index.sources.url_list import UrlListSource

    found = {role: options[f"{role}_column"] for role in _ROLES}
    given = {role: name for role, name in found.items() if name is not None}
    if not given:
        return sources
    if {"path", "url"} <= given.keys():
        raise click.UsageError("give either --path-column (tables of files) or --url-column (tables of addresses)")
    if not any(split_address(text)[0].lower().endswith(TABLE_SUFFIXES) for text in sources):
        raise click.UsageError(
            "--path-column, --url-column and --label-column go with a .csv or .parquet table as SOURCE"
        )
    of_addresses = {role: name for role, name in given.items() if role != "path"}
    return tuple(
        say_columns(text, **(of_addresses if isinstance(find_source(text), UrlListSource) else given))
        for text in sources
    )


@click.command(
    name="build",
    cls=GroupedCommand,
    common=(
        "out",
        "labels_file",
        "dedup",
        "skip_if",
        "ocr",
        "gps",
        "url_column",
        "path_column",
        "label_column",
        "workers",
        "index_type",
        "recall_target",
        "memory_limit",
        "store",
        "uri",
        "strict",
        "as_json",
        "help_all",
    ),
)
@click.argument("given", nargs=-1, required=True, type=NAMED, metavar="[MODEL] SOURCE...")
@click.option(
    "--out",
    type=PATH,
    metavar="GALLERY",
    help="Gallery folder to make or update.  [default: beside the first SOURCE: photos-gallery of photos]",
)
@click.option(
    "--labels",
    "labels_file",
    type=PATH,
    metavar="FILE",
    help="CSV or Parquet file with the columns path,label, in place of all other labels. Without it, the label is the "
    "first folder below the source, or that of a table or sidecar file.",
)
@click.option(
    "--dedup",
    type=click.Choice(DEDUP),
    default="off",
    show_default=True,
    help="Leave duplicates out of the index: equal files, or near-duplicates too.",
)
@skip_if_option
@ocr_option
@gps_option
@column_options
@click.option(
    "--shard",
    type=_read_shard,
    metavar="I/N",
    help="Embed only the I-th of N parts of the images, for `index merge`; all machines must see GALLERY.",
)
@click.option(
    "--engine",
    type=click.Choice(["threads", RAY]),
    default="threads",
    show_default=True,
    help="What embeds: threads of this machine, or a Ray cluster (extra `cluster`).",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="Head of the Ray cluster.  [default: RAY_ADDRESS, or a cluster of this machine alone]",
)
@strict_option
@wait_option
@cache_option
@config_options(*_CONFIGS)
@backend_option
@output_options
@help_all_option
@click.pass_context
def build(
    context: click.Context, /, *, given: tuple[str, ...], out: Path | None, strict: bool, as_json: bool, **options: Any
) -> None:
    """Build a gallery from images.

    MODEL is an .onnx file of `retrieval export`, or builtin: the model that comes with the package, which a new gallery
    has by default. A SOURCE is a folder, a .tar, .tar.gz or .zip archive (also of WebDataset or
    img2dataset), a glob, a .txt list of paths, a .csv or .parquet table with a column `path`, or an image. Other
    columns of a table are kept as metadata.

    With the extra `remote` a SOURCE is also an address (s3://bucket/photos, gs://, az://, https://), or a list of
    addresses: a .csv, .tsv, .jsonl or .parquet with a column `url`, or a .txt. Addresses of lists must be public, or in
    a network that RETRIEVAL_FETCH_FROM names.

    A stopped build continues when it is run again. A finished gallery is updated: only new or changed images are
    embedded. With --shard or --engine ray (see --help-all) many machines share the work.

    \b
    Examples:
      retrieval index build photos
      retrieval index build model.onnx photos more-photos 'shards/*.tar' --out gallery --dedup near
      retrieval index build products.csv --path-column image --label-column category --out gallery
    """
    check_machines(context, options)
    if options["dedup"] != "near":
        refuse_unused(context, *option_names(DuplicateConfig), needs="--dedup near")
    chosen = {name: options[name] for name in options if name in _CONFIG_OPTIONS and is_given(context, name)}
    for config in _CONFIGS:
        build_config(config, chosen)  # a value out of range is a mistake in how the command was called
    model, named = _split_given(context, given)
    gallery = out or gallery_beside(named[0])
    sources = name_columns(named, options)
    with indexing_bars() as run:
        if options["shard"] is not None:
            from index.writing.sharding import embed_shard

            work = _open_shards(model, sources, gallery, options, chosen)
            made = embed_shard(work, options["shard"], progress=run["progress"], begin_step=run["begin_step"])
            images = f"{made.images:,} images, {made.new_images:,} of them new, {made.skipped:,} cannot be used"
            text = f"{printable_path(made.folder)}: shard {made.shard} of {made.count}: {images}"
            emit(asdict(made), as_json=as_json, text=text)
            return
        run["wait_s"] = options["wait_s"]
        if options["engine"] == RAY:
            from index.writing.cluster_build import build_on_cluster, find_cluster

            find_cluster(options["address"])  # before anything is written
            work = _open_shards(model, sources, gallery, options, chosen)
            report = build_on_cluster(work, address=options["address"], **run)
        else:
            chosen |= {
                "labels": options["labels_file"],
                **{name: options[name] for name in ("dedup", "skip_if", "ocr", "gps")},
            }
            report = build_gallery(model, sources, gallery, cache=not options["no_cache"], **chosen, **run)
    finish(context, report, gallery, as_json=as_json, strict=strict)


def _split_given(context: click.Context, given: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The model, if it is given, and the sources."""
    from index.model.builtin import find_named_model

    given = (str(find_named_model(given[0])), *given[1:])
    model, sources = (given[0], given[1:]) if is_model(given[0]) else (None, given)
    if not sources:
        raise click.UsageError("Missing argument 'SOURCE...': the images to embed.", ctx=context)
    for source in sources:
        if is_model(source):
            raise click.UsageError(
                f"{printable_path(source)}: a model among the SOURCEs; give one MODEL, before them", ctx=context
            )
    return model, sources


def _open_shards(
    model: str | None, sources: tuple[str, ...], gallery: Path, options: dict[str, Any], chosen: dict[str, Any]
) -> SharedWork:
    from index.writing.sharding import open_shards

    index = asdict(make_config(AnnConfig, chosen))
    return open_shards(
        model_path=None if model is None else Path(model),
        sources=sources,
        out=gallery,
        labels_file=options["labels_file"],
        dedup=options["dedup"],
        duplicates=make_config(DuplicateConfig, chosen),
        index={name: index[name] for name in chosen if name in index},
        config=make_config(BuildConfig, chosen),
    )


@click.command(name="merge")
@click.argument("gallery", type=PATH)
@strict_option
@wait_option
@output_options
@click.pass_context
def merge(context: click.Context, /, *, gallery: Path, strict: bool, wait_s: float, as_json: bool) -> None:
    """Merge the shards of `index build --shard`.

    It equals to the byte the gallery of one `index build` with the same model, sources and options. If a shard is
    missing or unfinished, or the sources changed, nothing is made, and the message names the shards to run again.
    The shards are removed at the end.

    \b
    Examples:
      retrieval index merge gallery
      retrieval index merge /shared/gallery
      retrieval index merge gallery --strict --json
    """
    from index.writing.sharding import merge_shards

    with indexing_bars(wait_s=wait_s) as run:
        report = merge_shards(gallery, **run)
    finish(context, report, gallery, as_json=as_json, strict=strict)
