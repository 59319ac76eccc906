"""`retrieval index watch`: keeps a gallery up to date while its folders change."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import (
    PATH,
    GroupedCommand,
    backend_option,
    build_config,
    cache_option,
    config_options,
    help_all_option,
    output_options,
)
from index.commands.images_or_gallery import indexing_bars
from index.public import as_cache
from index.text import count_images, printable_path
from index.writing.build_config import BuildConfig, WatchConfig

if TYPE_CHECKING:
    from index.writing.publishing import BuildReport

_NICE = 10  # so that searches and other programs go first


@click.command(name="watch", cls=GroupedCommand, common=("scan_every", "notices", "as_json", "help_all"))
@click.argument("gallery", type=PATH)
@config_options(WatchConfig)
@config_options(BuildConfig)
@backend_option
@cache_option
@click.option("--until-eof", is_flag=True, hidden=True, help="End with the standard input: of the parent process.")
@output_options
@help_all_option
def watch(*, gallery: Path, no_cache: bool, until_eof: bool, as_json: bool, **options: Any) -> None:
    """Keep a gallery up to date while its folders change, until Ctrl-C.

    It updates the gallery as `index update` does: now, two seconds after the last of some changes, and every
    --scan-every seconds. Notices of changes do not come from network drives, so scans find what they miss. A file that
    cannot be read yet is tried again, ever more rarely. It runs at a low priority, waits for other writers, and may be
    stopped at any moment.

    With --json, every new version is a line of JSON on stdout.

    \b
    Examples:
      retrieval index watch gallery
      retrieval index watch gallery --scan-every 60 --no-notices
      retrieval index watch gallery --json
    """
    from index.versions.versions import find_version
    from index.writing.build import update_gallery
    from index.writing.watching import watch_gallery

    watching = build_config(WatchConfig, options)
    config = build_config(BuildConfig, {**options, "cache": as_cache(not no_cache)})
    find_version(gallery)
    shown = printable_path(gallery)

    def update(retry: Sequence[int] | None) -> BuildReport:
        with indexing_bars(config=config) as run:
            return update_gallery(gallery, retry=retry, **run)

    def say(message: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {shown}: {message}", err=True)

    if until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    os.nice(_NICE)
    try:
        say("watching" if until_eof else "watching; Ctrl-C ends it")
        for report in watch_gallery(gallery, update=update, config=watching, say=say):
            say(_describe_version(report))
            if as_json:
                click.echo(json.dumps(asdict(report)))
    except KeyboardInterrupt:
        say(f"no longer watched. {find_version(gallery).name} is its version; the next update goes on from there")


def _end_with_input() -> None:
    """End the process, as a kill would, which loses nothing."""
    sys.stdin.buffer.read()
    os._exit(0)


def _describe_version(report: BuildReport) -> str:
    counts = {"new": report.new_images, "moved": report.moved, "gone": report.vanished, "skipped": report.skipped}
    listed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "other labels or metadata"
    return f"version {report.version}: {count_images(report.indexed)} ({listed}; {report.seconds:.1f} s)"
