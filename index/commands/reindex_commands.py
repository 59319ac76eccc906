"""The commands of `retrieval index` that write the ANN index of a gallery anew: compact, tune."""

from __future__ import annotations

from pathlib import Path

import click

from index.commands.build_text import describe_build, indexing_bars
from index.commands.console import NAMED, PATH, emit, output_options, wait_option
from index.vectors.kinds.registry import INDEX_TYPES


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
    from index.writing.reindex import compact_gallery

    with indexing_bars() as (_, begin_step):
        report = compact_gallery(gallery, begin_step=begin_step, wait_s=wait_s)
    emit(report.to_json(), as_json=as_json, text=describe_build(report, out=gallery))


@click.command(name="tune")
@click.argument("gallery", type=PATH)
@click.argument("queries", nargs=-1, type=NAMED, metavar="[QUERY]...")
@click.option("--recall-target", type=float, metavar="SHARE", help="Share of the true 10 nearest to be found.")
@click.option("--index-type", type=click.Choice(INDEX_TYPES), help="As of `index build`: auto, or one of them.")
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory that the ANN index may take, such as 500MB or 4GB; '' is half of the machine's.",
)
@wait_option
@output_options
def tune(
    *,
    gallery: Path,
    queries: tuple[str, ...],
    recall_target: float | None,
    index_type: str | None,
    memory_limit: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
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
    from index.gallery.info import read_info
    from index.gallery.info_text import describe_index
    from index.versions.versions import find_version
    from index.writing.reindex import tune_gallery

    given = {"recall_target": recall_target, "index_type": index_type, "memory_limit": memory_limit}
    changes = {name: value for name, value in given.items() if value is not None}
    find_version(gallery)
    with indexing_bars() as (_, begin_step):
        report = tune_gallery(gallery, changes=changes, queries=queries, begin_step=begin_step, wait_s=wait_s)
    described = read_info(gallery)
    text = "\n".join([describe_build(report, out=gallery), *describe_index(described, gallery=gallery)])
    emit({**report.to_json(), "index": described.index}, as_json=as_json, text=text)
