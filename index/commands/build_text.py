"""Texts of the commands that write a gallery: progress, and a summary at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from index.commands.console import progress_bars
from index.text import align, printable_path
from index.writing.build_config import RunOptions

if TYPE_CHECKING:
    from index.writing.publishing import BuildReport


@contextmanager
def indexing_bars(**options: Unpack[RunOptions]) -> Iterator[RunOptions]:
    """The options of a writing command, with bars for the progress of embedding and of other steps."""
    with progress_bars() as begin:
        options["progress"] = begin("Indexing", unit="images")
        options["begin_step"] = lambda name: begin(name, unit="items")
        yield options


def describe_build(report: BuildReport, *, out: Path) -> str:
    """Summary of a writing command."""
    from index.images.image_files import REASONS

    shown = printable_path(out)
    state = "built" if report.changed else "already up to date:"
    lines = [f"{shown}: {state} version {report.version}, {report.indexed:,} images"]
    if report.new_images:
        lines[0] += f", {report.new_images:,} new at {report.images_per_second:,.0f} images/s"
    if report.from_cache:
        lines.append(f"  {report.from_cache:,} of these came from the cache")
    if report.labels is not None and report.new_images:
        lines.append(f"  {_describe_labels(report.labels)}")
    changes = {"moved": report.moved, "vanished": report.vanished, "removed": report.removed}
    lines += [f"  {count:,} {what}" for what, count in changes.items() if count]
    if report.skipped or report.duplicate:
        lines.append(
            f"{report.found:,} found = {report.indexed:,} indexed + {report.duplicate:,} duplicates "
            f"+ {report.skipped:,} skipped"
        )
    if report.skipped:
        rows = [(f"{count:,}", reason, REASONS[reason]) for reason, count in report.skipped_by_reason.items()]
        lines += ["  " + line for line in align(rows, right={0})]
        lines.append(f"list them: retrieval index list {shown} --status skipped")
    return "\n".join(lines)


def _describe_labels(labels: Mapping[str, Any]) -> str:
    """Count and origin of the labels, which most people give as folders."""
    if not labels["count"]:
        return (
            "no labels: an image's is the first folder below its source, or what a table, sidecar or --labels file "
            "says; of photos/* name photos instead"
        )
    largest = ", ".join(f"{printable_path(name)} {count:,}" for name, count in labels["largest"].items())
    others = ", …" if labels["count"] > len(labels["largest"]) else ""
    what = "label" if labels["count"] == 1 else "labels"
    return f"{labels['count']:,} {what}, of {labels['images']:,} images, by folder or table: {largest}{others}"
