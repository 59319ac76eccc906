"""`retrieval index upgrade`, beside the other commands of `retrieval index`."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any
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
from index.commands.images_or_gallery import describe_build, indexing_bars
from index.commands.index_group import describe_repair
from index.errors import InputError
from index.text import printable_path, valid_text
from index.writing.build_config import BuildConfig

_NICE = 10  # so that a server on this machine goes first


@click.command(
    cls=GroupedCommand,
    common=("back", "wait_s", "as_json", "help_all"),
    short_help="Change the model of a gallery while it is served.",
)
@click.argument("gallery", type=PATH)
@click.argument("model", type=PATH, required=False)
@click.option("--back", is_flag=True, help="Go back to the newest version with the former model.")
@config_options(BuildConfig)
@wait_option
@backend_option
@output_options
@help_all_option
def upgrade(gallery: Path, model: Path | None, back: bool, wait_s: float, as_json: bool, **options: Any) -> None:
    """Change the model of GALLERY while it is served.

    All images are embedded with MODEL (an .onnx file, or builtin) at low priority; a stopped command continues when
    it is run again. Meanwhile the present version answers, and other commands may change the gallery. Then the next
    version takes its place at once; a running server follows.

    Ids, labels, decisions, tags and saved searches stay. The version with the former model stays for --back until the
    next upgrade.

    \b
    Examples:
      retrieval index upgrade gallery model.onnx
      retrieval index upgrade gallery builtin --json
      retrieval index upgrade gallery --back
    """
    if back == (model is not None):
        raise click.UsageError("give either MODEL or --back")
    if model is None:
        _go_back(gallery, as_json=as_json)
        return
    from index.model.builtin import find_named_model

    config, model = build_config(BuildConfig, options), find_named_model(model)
    from index.writing.upgrading import upgrade_gallery

    os.nice(_NICE)
    with indexing_bars(config=config, wait_s=wait_s) as run:
        report = upgrade_gallery(gallery, model, **run)
    if report is None:
        text = f"{printable_path(gallery)}: has this model already"
        emit({"gallery": valid_text(str(gallery.resolve())), "changed": False}, as_json=as_json, text=text)
        return
    notes = [*_list_notes(gallery), f"to go back: retrieval index upgrade {printable_path(gallery)} --back"]
    text = "\n".join([describe_build(report, out=gallery), *(f"  {note}" for note in notes)])
    emit({**asdict(report), "notes": notes}, as_json=as_json, text=text)


def _go_back(gallery: Path, *, as_json: bool) -> None:
    from index.repair.repair import rollback_gallery
    from index.versions.versions import find_version, former_version

    former = former_version(gallery, current=find_version(gallery).name)
    if former is None:
        raise InputError("no earlier version has another model; `retrieval index info` says what it has", at=gallery)
    with indexing_bars() as run:
        report = rollback_gallery(gallery, to=former, progress=run["begin_step"]("Checking"))
    emit(asdict(report), as_json=as_json, text=describe_repair(report, gallery=gallery))


def _list_notes(gallery: Path) -> list[str]:
    """What was chosen for the former model, or what only that one can."""
    from index.catalog.rows import CLUSTERS_SETTING
    from index.gallery.gallery import Gallery
    from index.model.contract import find_contract
    from index.versions.manifest import MODEL_NAME
    from index.versions.versions import former_version, versions_folder
    from retrieval_app.review.review_store import ReviewStore

    notes, opened = list[str](), Gallery.open(gallery)
    former, after = former_version(gallery, current=opened.version), opened.embedder.contract
    before = None if former is None else find_contract(versions_folder(gallery) / former / MODEL_NAME)
    if before is not None and before.text is not None and (after is None or after.text is None):
        notes.append("the former model has a text tower; words are searched without one")
    if before is not None and before.copy_dim and not (after is not None and after.copy_dim):
        notes.append(
            "the former model has an output for copies; searches by copy and copies as near-duplicates need one"
        )
    with opened.catalog() as catalog:
        threshold, near = catalog.setting("min_similarity"), catalog.setting("dedup") == "near"
        if near and threshold not in (None, "null"):
            notes.append(
                f"--min-similarity {threshold} of near-duplicates was chosen for the former model: compare "
                "`retrieval duplicates`, and give another one to `retrieval index build`"
            )
        if catalog.setting(CLUSTERS_SETTING) is not None:
            notes.append("the clusters are those of the former model: `retrieval index cluster` makes new ones")
    with closing(ReviewStore.of_gallery(gallery)) as store:
        searches = store.saved_searches().values()
    if names := ", ".join(printable_path(one.name) for one in searches if "min" in parse_qs(one.query or "")):
        notes.append(f"saved searches with a lowest score of the former model; choose another: {names}")
    return notes
