"""The commands of `retrieval index` for a damaged gallery: repair, rollback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.commands.build_text import indexing_bars
from index.commands.console import PATH, cache_option, emit, output_options
from index.public import as_cache

if TYPE_CHECKING:
    from index.repair.repair import RepairReport
    from index.repair.rollback import RollbackReport


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
    from index.writing.build_config import BuildConfig

    with indexing_bars() as (progress, begin_step):
        report = repair_gallery(
            gallery, model_path=model, sources=sources, uri=uri, config=BuildConfig(cache=as_cache(cache)),
            progress=progress, begin_step=begin_step,
        )  # fmt: skip
    emit(report.to_json(), as_json=as_json, text=_describe_repair(report, gallery=gallery))


def _describe_repair(report: RepairReport, *, gallery: Path) -> str:
    from index.text import printable_path

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
    return "\n".join(lines + [f"  not intact: {problem}" for problem in report.passed_over])
