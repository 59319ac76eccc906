"""The commands of `retrieval index` for a damaged gallery: repair, rollback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.commands.build_text import indexing_bars
from index.commands.console import PATH, emit, output_options

if TYPE_CHECKING:
    from index.repair.repair import RepairReport
    from index.repair.rollback import RollbackReport


@click.command(name="repair")
@click.argument("gallery", type=PATH)
@click.option("--model", type=PATH, metavar="FILE", help="The model of the gallery, where it is damaged there.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="SOURCE",
    help="Where the images come from, where nothing in the gallery tells. Can be repeated.",
)
@click.option(
    "--drop-missing",
    is_flag=True,
    help="Let go of images whose vectors are lost and whose source is not there now.",
)
@click.option(
    "--uri", metavar="http://HOST:PORT", help="Where the Milvus server of the gallery answers now, where it moved."
)
@output_options
def repair(
    *,
    gallery: Path,
    model: Path | None,
    sources: tuple[str, ...],
    drop_missing: bool,
    uri: str | None,
    as_json: bool,
) -> None:
    """Mend GALLERY where files of it are damaged or lost: ids, decisions and uploads are kept.

    What is sound of any version is taken over, and checked; only images whose vectors are lost are embedded again, from
    their sources. An image that is gone from its source stays as long as its vector is sound. A sound gallery is left
    as it is. Where the newest changes may go, `index rollback` is quicker. Of vectors in Milvus those are kept that its
    server still has, in collections of the gallery's model.

    \b
    Examples:
      retrieval index repair gallery
      retrieval index repair gallery --model model.onnx
      retrieval index repair gallery --drop-missing --json
      retrieval index repair in-milvus --uri http://elsewhere:19530
    """
    from index.repair.repair import repair_gallery

    with indexing_bars() as (progress, begin_step):
        report = repair_gallery(
            gallery, model_path=model, sources=sources, drop_missing=drop_missing, uri=uri, progress=progress,
            begin_step=begin_step,
        )  # fmt: skip
    emit(report.to_json(), as_json=as_json, text=_describe_repair(report, gallery=gallery))


def _describe_repair(report: RepairReport, *, gallery: Path) -> str:
    from index.text import printable_path

    shown = printable_path(str(gallery))
    if not report.changed:
        state = "nothing is damaged" if report.version else "nothing to mend"
    elif report.version is None:
        state = "what was damaged is gone"
    else:
        state = f"mended, version {report.version} is sound"
    lines = [f"{shown}: {state}, {report.indexed:,} images"]
    counts = {
        "kept": report.kept,
        "embedded again under their ids": report.embedded,
        "new, with new ids": report.new_images,
        "gone: neither a vector nor a file is left": report.gone,
    }
    if report.changed:
        lines += [f"  {count:,} {what}" for what, count in counts.items() if count]
    lines += [f"    {printable_path(path)}" for path in report.gone_images]
    if report.gone > len(report.gone_images):
        lines.append(f"    and {report.gone - len(report.gone_images):,} more")
    lines += [f"  was damaged: {problem}" for problem in report.damaged]
    return "\n".join(lines + [f"  {note}" for note in report.notes])


@click.command(name="rollback")
@click.argument("gallery", type=PATH)
@click.option("--to", metavar="VERSION", help="The version to go back to; without it, the sound one before.")
@output_options
def rollback(*, gallery: Path, to: str | None, as_json: bool) -> None:
    """Go back to the sound version of GALLERY before the current one, checked byte by byte first.

    The images, uploads and decisions are not touched; `index update` takes in again what was left. Ids that the newer
    version gave are never given again. Programs that have a version open keep it, and a server shows the other one.

    \b
    Examples:
      retrieval index rollback gallery
      retrieval index rollback gallery --to 000012
    """
    from index.repair.rollback import rollback_gallery

    with indexing_bars() as (_, begin_step):
        report = rollback_gallery(gallery, to=to, progress=begin_step("Checking"))
    emit(report.to_json(), as_json=as_json, text=_describe_rollback(report, gallery=gallery))


def _describe_rollback(report: RollbackReport, *, gallery: Path) -> str:
    from index.text import printable_path

    before = "a damaged CURRENT" if report.left is None else f"version {report.left}"
    lines = [
        f"{printable_path(str(gallery))}: back from {before} to version {report.version}, {report.indexed:,} images"
    ]
    return "\n".join(lines + [f"  not sound: {problem}" for problem in report.passed_over])
