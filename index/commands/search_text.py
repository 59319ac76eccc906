"""How `retrieval search` prints what it found: a table, groups of them, or JSON that is written as answers come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import click

from index.outputs import PICTURE
from index.text_table import align

if TYPE_CHECKING:
    from pathlib import Path

    from index.gallery.gallery import Gallery
    from index.gallery.hits import Hit
    from index.gallery.queries import Query

    Answer: TypeAlias = tuple[Query, list[Hit]]

_LOOKED_FOR = 100  # results of one query whose files are looked for


@dataclass(frozen=True, slots=True)
class HitLines:
    """How a result is shown.

    Attributes:
        several: whether the gallery has several sources, so that paths are shown in full.
        copy_from: the score from which on a result is a copy of the query; None where kinds are asked for.
    """

    several: bool
    copy_from: float | None

    @classmethod
    def of(cls, gallery: Gallery, *, by: str) -> HitLines:
        """For the answers of a gallery that is asked by an output."""
        picture = gallery.manifest.picture if by == PICTURE else None
        return cls(len(gallery.sources) > 1, None if picture is None else picture["threshold"])

    def heading(self) -> tuple[str, ...]:
        """What the columns of `row` are called."""
        return ("rank", "score", *(() if self.copy_from is None else ("",)), "label", "path")

    def row(self, hit: Hit) -> tuple[str, ...]:
        """Rank, score, whether it is a copy, label, and the path, in full where the gallery has several sources."""
        from index.text import printable_path

        label = "-" if hit.label is None else printable_path(hit.label)
        if hit.given_label != hit.label:
            label += " (was: " + ("none" if hit.given_label is None else printable_path(hit.given_label)) + ")"
        path = printable_path(hit.location if self.several else hit.path)
        told = () if self.copy_from is None else ("copy" if hit.score >= self.copy_from else "",)
        return (str(hit.rank), f"{hit.score:.4f}", *told, label, path)

    def to_json(self, hit: Hit) -> dict[str, Any]:
        """The result as `--json` prints it."""
        told = {} if self.copy_from is None else {"is_copy": hit.score >= self.copy_from}
        return {**hit.to_json(), **told}


def print_json(blocks: Iterable[list[Answer]], stream: TextIO, *, lines: HitLines) -> None:
    """Write the results of every query as they come, as one JSON document."""
    from index.text import valid_text

    separator = '{"queries": [\n'
    for block in blocks:
        for query, hits in block:
            entry: dict[str, Any] = {"query": valid_text(query.name), "results": list(map(lines.to_json, hits))}
            if query.problem is not None:
                entry["problem"] = str(query.problem)
            click.echo(separator + json.dumps(entry), nl=False, file=stream)
            separator = ",\n"
    click.echo("\n]}" if separator.startswith(",") else separator + "]}", file=stream)


def print_groups(blocks: Iterable[list[Answer]], stream: TextIO, *, lines: HitLines) -> None:
    """Write the results of every query that could be used, under its name."""
    from index.text import printable_path

    gap = ""
    for block in blocks:
        for query, hits in block:
            if query.problem is None:
                rows = [lines.row(hit) for hit in hits]
                table = align(rows, right={0, 1}) if rows else ["no result"]
                click.echo("\n  ".join([gap + printable_path(query.name), *table]), file=stream)
                gap = "\n"


def warn_of_gone(gallery: Gallery, hits: Sequence[Hit], *, folder: Path) -> None:
    """Say which results are not where they were when they were indexed."""
    from index.errors import InputError
    from index.text import printable_path

    gone = []
    for hit in hits[:_LOOKED_FOR]:
        try:
            gallery.place(hit.id)
        except InputError:
            gone.append(printable_path(hit.path))
    if gone:
        named = ", ".join(gone[:3]) + (", …" if len(gone) > 3 else "")
        shown = printable_path(str(folder))
        click.echo(
            f"not there any more: {named}; bring the gallery up to date: retrieval index update {shown}", err=True
        )
