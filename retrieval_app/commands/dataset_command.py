"""`retrieval dataset`: data sets made from galleries."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from index.commands.console import PATH, emit, output_options, progress_bars, refuse_unused, where_option
from index.text import printable_path
from retrieval_app.dataset_export.public import GROUP, IMAGE, export_dataset

_SHOWN = 5


@click.group(short_help="Write a gallery as a data set for training.")
def dataset() -> None:
    """Write the images of a gallery, with labels as decided, as a data set that other programs read.

    \b
    Examples:
      retrieval dataset export gallery --out dataset
      retrieval dataset export gallery --out dataset --split 80/10/10
      retrieval dataset export gallery --out dataset --where "label IS NOT NULL"
    """


@dataset.command()
@click.argument("gallery", type=PATH)
@click.option("--out", type=PATH, required=True, metavar="FOLDER", help="Folder to write; a new or an empty one.")
@where_option("Export only the images for which this is true.")
@click.option(
    "--split",
    metavar="PERCENTAGES",
    help="New splits: 80/20 for train and test, 80/10/10 for train, validation and test.  "
    "[default: those that the images have]",
)
@click.option(
    "--by",
    type=click.Choice((GROUP, IMAGE)),
    default=GROUP,
    show_default=True,
    help="What --split never divides: groups (images of one scene, and near-duplicates), or single images.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of --split.")
@output_options
@click.pass_context
def export(context: click.Context, /, *, gallery: Path, out: Path, as_json: bool, **options: Any) -> None:
    """Write the images of GALLERY to FOLDER, with labels as decided, without those dropped or set aside.

    Each label is a folder. Tags, the split and metadata become columns of metadata.parquet, which needs the extra
    'parquet'. Images are never changed: they are hard links to the files where possible, else copies. FOLDER appears
    when it is complete. Exits with 1 if images are left out because they cannot be read, or are not the indexed ones
    any more; manifest.json lists them.

    \b
    Examples:
      retrieval dataset export gallery --out dataset
      retrieval dataset export gallery --out dataset --split 80/10/10
      retrieval dataset export gallery --out dataset --where "tag = 'checked'"
    """
    if options["split"] is None:
        refuse_unused(context, "by", "seed", needs="--split")
    with progress_bars() as begin:
        report = export_dataset(gallery, out, progress=begin("Writing"), **options)
    lines = [f"{printable_path(report.out)}: {report.images:,} images of {len(report.labels):,} labels"]
    if report.unlabelled:
        lines[0] += f", {report.unlabelled:,} of them unlabelled"
    if report.linked:
        lines[0] += f"; {report.linked:,} are hard links"
    if report.splits:
        lines.append("splits: " + ", ".join(f"{name} {count:,}" for name, count in report.splits.items()))
    for one in report.left_out[:_SHOWN]:
        lines.append(f"left out: {printable_path(one['path'])}: {one['reason']}: {printable_path(one['detail'])}")
    if len(report.left_out) > _SHOWN:
        lines.append(f"left out in all: {len(report.left_out):,}; manifest.json lists them")
    emit(asdict(report), as_json=as_json, text="\n".join(lines))
    if report.left_out:
        context.exit(1)
