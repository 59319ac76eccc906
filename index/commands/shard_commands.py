"""Building on many machines: the options of `retrieval index build`, and what it does with them."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import PATH, emit, is_given, refuse_unused
from index.config_fields import make_config
from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import InputError
from index.text import printable_path
from index.vectors.ann_config import AnnConfig
from index.writing.build_config import BuildConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from index.progress import BeginStep, Progress
    from index.writing.publish_change import BuildReport
    from index.writing.shard_plan import Shard
    from index.writing.sharding import ShardReport, SharedWork

RAY = "ray"
_SHARD = re.compile(r"(\d{1,5})/(\d{1,5})")


class ShardText(click.ParamType["Shard"]):
    """`3/8` as the third of eight shards."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        from index.writing.shard_plan import Shard

        match = _SHARD.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not I/N, such as 3/8 for the third of eight shards", param, ctx)
        try:
            return Shard(int(match[1]), int(match[2]))
        except InputError as error:
            self.fail(str(error), param, ctx)


def shards_option(command: Any) -> Any:
    """Add `--shards`, the folder of the shards."""
    return click.option(
        "--shards", type=PATH, metavar="DIR",
        help="The folder of the shards, which every machine must see.  [default: `shards` in the gallery]",
    )(command)  # fmt: skip


def machines_options(command: Any) -> Any:
    """Add `--shard`, `--shards`, `--engine` and `--address`."""
    command = click.option(
        "--address", metavar="HOST:PORT",
        help="The head of the Ray cluster.  [default: what RAY_ADDRESS says, or a cluster of this machine alone]",
    )(command)  # fmt: skip
    command = click.option(
        "--engine", type=click.Choice(["threads", RAY]), default="threads", show_default=True,
        help="Who embeds: threads of this machine, or the machines of a Ray cluster (extra `cluster`).",
    )(command)  # fmt: skip
    command = shards_option(command)
    return click.option(
        "--shard", type=ShardText(), metavar="I/N",
        help="Embed only the I-th of N parts of the images, for `retrieval index merge`.",
    )(command)  # fmt: skip


def check_machines(context: click.Context, *, shard: Shard | None, engine: str) -> bool:
    """Whether shards are to be made; options that do not go together are refused."""
    if shard is not None and engine == RAY:
        raise click.UsageError("--shard and --engine ray are two ways to use many machines: give one", ctx=context)
    if engine != RAY:
        refuse_unused(context, "address", needs="--engine ray")
    if shard is not None:
        refuse_unused(context, "strict", needs="`retrieval index merge`, where --shard is given")
    if shard is None and engine != RAY:
        refuse_unused(context, "shards", needs="--shard or --engine ray")
        return False
    if is_given(context, "cache") and context.params["cache"]:
        raise click.UsageError("--cache is of this machine alone: leave it out where many embed", ctx=context)
    return True


def open_work(
    model: str | None,
    sources: tuple[str, ...],
    *,
    out: Path,
    shards: Path | None,
    labels_file: Path | None,
    dedup: str,
    chosen: Mapping[str, Any],
) -> SharedWork:
    """The work that many machines share, by the options that were `chosen`."""
    from index.writing.sharding import open_shards

    index = asdict(make_config(AnnConfig, chosen))
    return open_shards(
        model_path=None if model is None else Path(model),
        sources=sources,
        out=out,
        shards=shards,
        labels_file=labels_file,
        dedup=dedup,
        duplicates=make_config(DuplicateConfig, chosen),
        index={name: index[name] for name in chosen if name in index},
        config=make_config(BuildConfig, chosen),
    )


def make_shard(
    work: SharedWork, shard: Shard, *, progress: Progress, begin_step: BeginStep, as_json: bool
) -> None:
    """Embed a shard and say what became of it."""
    from index.writing.sharding import embed_shard

    report = embed_shard(work, shard, progress=progress, begin_step=begin_step)
    emit(report.to_json(), as_json=as_json, text=_describe_shard(report))


def check_cluster(address: str | None) -> None:
    """See that there is a Ray cluster to build with, or that one can be begun.

    Raises:
        MissingDependencyError, InputError: there is none.
    """
    from index.writing.cluster_build import find_cluster

    find_cluster(address)


def embed_with_ray(
    work: SharedWork,
    *,
    address: str | None,
    shards: Path | None,
    progress: Progress,
    begin_step: BeginStep,
    wait_s: float,
) -> BuildReport:
    """Build the gallery on a Ray cluster."""
    from index.writing.cluster_build import build_on_cluster

    return build_on_cluster(
        work, address=address, shards=shards, progress=progress, begin_step=begin_step, wait_s=wait_s
    )


def _describe_shard(report: ShardReport) -> str:
    shown = printable_path(report.folder)
    done = f"{report.new_images:,} new at {report.images_per_second:,.0f} images/s" if report.new_images else (
        "all of them were done already"
    )  # fmt: skip
    skipped = f", {report.skipped:,} cannot be used" if report.skipped else ""
    return f"{shown}: shard {report.shard} of {report.count}: {report.images:,} images{skipped}, {done}"
