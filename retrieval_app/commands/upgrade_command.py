"""`retrieval index upgrade`, beside the other commands of `retrieval index`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import click

from index.commands.console import (
    PATH,
    GroupedCommand,
    backend_option,
    build_config,
    config_options,
    emit,
    help_all_option,
    output_options,
    wait_option,
)
from index.commands.images_or_gallery import indexing_bars
from index.commands.index_group import describe_repair
from index.text import printable_path
from index.writing.build_config import BuildConfig
from retrieval_app.commands.report_commands import step_bars

if TYPE_CHECKING:
    from index.writing.upgrading import UpgradeReport

_NICE = 10  # so that a server on this machine goes first


@click.command(
    cls=GroupedCommand,
    common=("preview", "back", "wait_s", "as_json", "help_all"),
    short_help="Change the model of a gallery while it is served.",
)
@click.argument("gallery", type=PATH)
@click.argument("model", type=PATH, required=False)
@click.option(
    "--preview",
    type=click.IntRange(min=2),
    metavar="N",
    help="Compare MODEL with the gallery's model on N images, and change nothing.",
)
@click.option("--back", is_flag=True, help="Go back to the newest version with the former model.")
@config_options(BuildConfig)
@wait_option
@backend_option
@output_options
@help_all_option
def upgrade(
    *, gallery: Path, model: Path | None, preview: int | None, back: bool, wait_s: float, as_json: bool, **options: Any
) -> None:
    """Change the model of GALLERY while it is served.

    All images are embedded with MODEL (an .onnx file, or builtin) at low priority; a stopped command continues when
    it is run again. Meanwhile the present version answers, and other commands may change the gallery. Then the next
    version takes its place at once; a running server follows.

    Ids, labels, decisions, tags and saved searches stay. The version with the former model stays for --back until the
    next upgrade.

    \b
    Examples:
      retrieval index upgrade gallery model.onnx --preview 500
      retrieval index upgrade gallery model.onnx
      retrieval index upgrade gallery --back
    """
    if back == (model is not None) or (back and preview is not None):
        raise click.UsageError("give either MODEL, perhaps with --preview N, or --back")
    if model is None:
        _go_back(gallery, as_json=as_json)
        return
    from index.model.builtin import find_named_model

    config, model = build_config(BuildConfig, options), find_named_model(model)
    if preview is not None:
        from retrieval_app.comparing.upgrade_preview import format_preview, preview_upgrade

        with step_bars() as progress:
            found = preview_upgrade(gallery, model, count=preview, workers=config.workers, progress=progress)
        emit(found, as_json=as_json, text=format_preview(found))
        return
    from index.writing.upgrading import upgrade_gallery

    os.nice(_NICE)
    with indexing_bars(config=config, wait_s=wait_s) as run:
        report = upgrade_gallery(gallery, model, **run)
    notes = [*report.notes, *_list_searches(gallery)] if report.former_version is not None else []
    emit({**asdict(report), "notes": notes}, as_json=as_json, text=_describe(report, notes, gallery=gallery))


def _go_back(gallery: Path, *, as_json: bool) -> None:
    from index.errors import InputError
    from index.repair.repair import rollback_gallery
    from index.versions.versions import find_version, former_version

    former = former_version(gallery, current=find_version(gallery).name)
    if former is None:
        raise InputError("no earlier version has another model; `retrieval index info` says what it has", at=gallery)
    with indexing_bars() as run:
        report = rollback_gallery(gallery, to=former, progress=run["begin_step"]("Checking"))
    emit(asdict(report), as_json=as_json, text=describe_repair(report, gallery=gallery))


def _list_searches(gallery: Path) -> list[str]:
    """Notes on saved searches with a lowest score, which was chosen for the former model."""
    from retrieval_app.review.review_store import ReviewStore

    store = ReviewStore.of_gallery(gallery)
    try:
        searches = store.saved_searches().values()
    finally:
        store.close()
    names = [printable_path(one.name) for one in searches if "min" in parse_qs(one.query or "")]
    listed = ", ".join(names)
    return [f"saved searches with a lowest score of the former model; choose another: {listed}"] if names else []


def _describe(report: UpgradeReport, notes: list[str], *, gallery: Path) -> str:
    shown = printable_path(gallery)
    if report.former_version is None:
        return f"{shown}: version {report.version} has this model already"
    lines = [
        f"{shown}: version {report.version}, {report.indexed:,} images, {report.embedding_dim} numbers each, "
        f"in {report.seconds:,.0f} s"
    ]
    lines += [f"  {report.skipped:,} images cannot be read any more (`retrieval index list`)"] if report.skipped else []
    lines += [f"  {note}" for note in notes]
    return "\n".join([*lines, f"to go back to version {report.former_version}: retrieval index upgrade {shown} --back"])
