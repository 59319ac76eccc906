"""`retrieval doubts`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.commands.console import emit, output_options

if TYPE_CHECKING:
    from retrieval_app.label_tools.judged import JudgedLabels

_FORMATS = ("label-studio", "fiftyone", "cleanlab", "csv", "parquet")


@click.command(short_help="Take judged labels to other programs, and bring decisions back.")
@click.argument("place", type=click.Path(path_type=Path))
@click.option(
    "--export", "exports", multiple=True, metavar="FORMAT:PATH",
    help=f"What to write, and where; any number of times. Formats: {', '.join(_FORMATS)}.",
)  # fmt: skip
@click.option(
    "--import", "imported", type=click.Path(path_type=Path), metavar="FILE",
    help="Decisions to take: a JSON export of Label Studio, labels.json of FiftyOne, or a CSV.",
)  # fmt: skip
@output_options
def doubts(place: Path, exports: tuple[str, ...], imported: Path | None, as_json: bool) -> None:
    """Write what is thought of the labels of PLACE for other programs, or take what people decided there.

    PLACE is a gallery, or the folder that `retrieval audit` wrote. Decisions become those of the gallery, or
    decisions.csv of the audit, which the next audit reads. Images are known by SHA-256, or else by path.

    \b
    Examples:
      retrieval doubts gallery --export label-studio:tasks.json
      retrieval doubts gallery --export cleanlab:cleanlab --export csv:labels.csv
      retrieval doubts run/audit --export fiftyone:fiftyone
      retrieval doubts gallery --import project-1.json
    """
    if bool(exports) == (imported is not None):
        raise click.UsageError("give either --export FORMAT:PATH or --import FILE")
    targets = [_split(text) for text in exports]
    if imported is not None:
        from retrieval_app.label_tools.take_decisions import take_decisions

        taken = take_decisions(place, imported)
        text = f"{taken['decided']:,} decisions taken; {taken['unknown']:,} about other images or labels left out"
        emit(taken, as_json=as_json, text=text)
        return
    from index.labels.doubts import LOWER_BOUND
    from retrieval_app.label_tools.formats import WRITERS

    judged = _judge(place)
    files = [str(path) for kind, target in targets for path in WRITERS[kind](judged, target)]
    document = {"labels": len(judged.items), "is_lower_bound": judged.is_lower_bound, "files": files}
    text = f"{len(judged.items):,} labels written: {', '.join(files)}"
    emit(document, as_json=as_json, text=f"{text}\n{LOWER_BOUND}" if judged.is_lower_bound else text)


def _split(text: str) -> tuple[str, Path]:
    kind, _, target = text.partition(":")
    if kind not in _FORMATS or not target:
        raise click.BadParameter(f"expected FORMAT:PATH, FORMAT one of {', '.join(_FORMATS)}, got {text!r}")
    return kind, Path(target)


def _judge(place: Path) -> JudgedLabels:
    from index.gallery.gallery import Gallery
    from retrieval_app.label_tools.judged import judge_gallery, read_judged

    return read_judged(place) if (place / "audit.csv").exists() else judge_gallery(Gallery.open(place))
