"""`retrieval backup` and `retrieval restore`: the annotations of a gallery as one file, and back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.commands.console import PATH, emit, output_options, progress_bars
from index.text import printable_path, show_bytes

if TYPE_CHECKING:
    from retrieval_app.review.backup import RestoreReport

_SHOWN = 5


@click.command(name="backup")
@click.argument("gallery", type=PATH)
@click.option("--out", type=PATH, required=True, metavar="FILE", help="ZIP file to write.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists; it stays if the backup fails.")
@output_options
@click.pass_context
def backup(context: click.Context, /, *, gallery: Path, out: Path, overwrite: bool, as_json: bool) -> None:
    """Write the annotations of a gallery to one file.

    Annotations are decisions on labels and near-duplicates, uploaded images, the log, and which images were removed.
    All else can be built again from the images and the model. A server may keep running; a damaged gallery can be
    backed up too. Exits with 1 if something could not be read and is left out.

    \b
    Examples:
      retrieval backup gallery --out gallery.backup.zip
      retrieval backup gallery --out /backups/gallery.zip --overwrite
      retrieval backup gallery --out gallery.backup.zip --json
    """
    from retrieval_app.review.backup import back_up

    with progress_bars() as begin:
        report = back_up(gallery, out, overwrite=overwrite, progress=begin("Writing", unit="images"))
    decided = report.decisions
    lines = [
        f"{printable_path(report.file)}: {decided['labels']:,} decisions on labels, {decided['duplicates']:,} on "
        f"duplicates, {decided['marks']:,} tags and splits, {decided['searches']:,} saved searches, "
        f"{report.images:,} images sent, {report.removed:,} images removed, {report.log_lines:,} log lines, "
        f"{show_bytes(report.bytes)}"
    ]
    lines += [f"note: {printable_path(note)}" for note in report.notes]
    emit(asdict(report), as_json=as_json, text="\n".join(lines))
    if report.notes:
        context.exit(1)


@click.command(name="restore")
@click.argument("file", type=PATH)
@click.option("--gallery", type=PATH, required=True, metavar="GALLERY", help="Gallery to restore into.")
@output_options
def restore(*, file: Path, gallery: Path, as_json: bool) -> None:
    """Restore the annotations of a backup into a gallery, the same one or a new one of the same images.

    It merges: the later of two decisions on one image counts, no file is lost, and present images stay, except those
    that were removed before the backup; `index add` brings them back by name. Images are known by their bytes, removed
    ones also by their path below their folder, so ids and places may differ. Decisions on images that GALLERY does not
    have are kept. A server may keep running. FILE is checked before anything is changed; a stopped restore is run
    again.

    \b
    Examples:
      retrieval restore gallery.backup.zip --gallery gallery
      retrieval restore gallery.backup.zip --gallery gallery --json
      retrieval index build model.onnx photos --out new && retrieval restore gallery.backup.zip --gallery new
    """
    from index.commands.images_or_gallery import indexing_bars
    from retrieval_app.review.backup import restore as bring_back

    with indexing_bars() as run:
        progress, begin_step = run["progress"], run["begin_step"]
        report = bring_back(file, gallery, checking=begin_step("Checking"), progress=progress, begin_step=begin_step)
    emit(asdict(report), as_json=as_json, text=_describe_restore(report))


def _describe_restore(report: RestoreReport) -> str:
    decisions, images = report.decisions, report.images
    lines = [
        f"{printable_path(report.gallery)}: {decisions['restored']:,} decisions restored, "
        f"{decisions['present']:,} were there, {decisions['older']:,} are older than those there; "
        f"{images['restored']:,} images restored, {images['present']:,} were there, {report.indexed:,} new in the index"
    ]
    others = (
        (images["removed"], "images had been removed before the backup, and stay out"),
        (images["in_the_way"], "images have other files in their places, which stay"),
        (report.log_lines, "lines of the activity log were restored"),
        (report.removed, "images were removed again; `retrieval index add` brings one back by its path"),
        (len(report.not_attached), "decisions on labels are kept, but their images are not there; --json lists all:"),
    )
    lines += [f"{count:,} {text}" for count, text in others if count]
    lines += [f"  {lost.decision}: the label of {printable_path(lost.path)}" for lost in report.not_attached[:_SHOWN]]
    return "\n".join(lines)
