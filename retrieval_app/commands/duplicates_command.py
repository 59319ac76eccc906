"""`retrieval duplicates`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from index.commands.console import build_config, config_options, emit, output_options, progress_bars, refuse_unused
from index.commands.images_or_gallery import settle_gallery
from index.duplicates.duplicate_config import DuplicateConfig

_PATH = click.Path(path_type=Path)


@click.command(short_help="Find the images of a gallery that are there more than once.")
@click.argument("gallery", type=_PATH)
@click.option("--out", type=_PATH, required=True, metavar="FOLDER", help="Folder to write.")
@click.option(
    "--kind", type=click.Choice(["exact", "near"]), default="near", show_default=True,
    help="Equal files only, or also what looks alike by the two options that follow.",
)  # fmt: skip
@config_options(DuplicateConfig)
@click.option(
    "--limit", type=click.IntRange(min=1), default=500, show_default=True, metavar="N",
    help="Groups drawn on the page; the table has all.",
)  # fmt: skip
@output_options
def duplicates(gallery: Path, out: Path, kind: str, limit: int, as_json: bool, **options: Any) -> None:
    """List the images of GALLERY that are there more than once, in groups around the one to keep.

    Every image of a group was found to repeat the group's kept image, the first of its kind. Groups in which labels
    differ are marked: one of those labels is likely wrong. Writes FOLDER/duplicates.html, to look at, and
    FOLDER/duplicates.csv. Images and gallery are never touched. In the place of GALLERY, images may be named: theirs is
    then made beside them, once.

    \b
    Examples:
      retrieval duplicates photos --out duplicates
      retrieval duplicates gallery --out duplicates
      retrieval duplicates gallery --out duplicates --kind exact --json
    """
    if kind == "exact":
        limits = (field.name for field in fields(DuplicateConfig))
        refuse_unused(
            click.get_current_context(), *limits, needs="--kind near: equal files are equal in everything"
        )
    from index.gallery.gallery import Gallery
    from retrieval_app.reports.duplicates_page import write_duplicates_page
    from retrieval_app.reports.duplicates_report import (
        PAGE_NAME,
        TABLE_NAME,
        check_duplicates_folder,
        describe_report,
        format_report,
        read_report,
        require_outside,
        write_table,
    )

    config = build_config(DuplicateConfig, options) if kind == "near" else None
    opened = Gallery.open(settle_gallery(gallery, check=lambda: check_duplicates_folder(out)))
    require_outside(out, gallery=opened)
    check_duplicates_folder(out)
    with progress_bars() as begin:
        report = read_report(opened, config=config, progress=begin("comparing", unit="images"))
        table, page = out / TABLE_NAME, out / PAGE_NAME
        out.mkdir(parents=True, exist_ok=True)
        write_table(report, table)
        shown = write_duplicates_page(report, page, limit=limit, progress=begin("page", unit="groups"))
    document = describe_report(report) | {"kind": kind, "shown": shown, "files": [str(table), str(page)]}
    emit(document, as_json=as_json, text=format_report(report, out=out, shown=shown))
