"""`retrieval compare`."""

from __future__ import annotations

from pathlib import Path

import click

from index.commands.console import NumberList, backend_option, emit, output_options
from index.threads import usable_cores
from index.user_cache import user_cache
from retrieval_app.commands.step_bars import step_bars
from retrieval_app.comparing.candidates import FEWEST, MOST
from retrieval_app.comparing.public import SHOWN
from retrieval_app.comparing.public import compare as compare_candidates

_PATH = click.Path(path_type=Path)


@click.command(short_help="Say which of several embeddings finds most on your images.")
@click.argument("images", type=click.Path(readable=False))
@click.argument(
    "candidates", nargs=-1, required=True, type=click.Path(readable=False), metavar="[NAME=]CANDIDATE..."
)
@click.option(
    "--out", type=_PATH, required=True, metavar="FOLDER", help="Folder to write: compare.html, queries.csv."
)
@click.option(
    "--labels", type=_PATH, metavar="FILE",
    help="CSV or Parquet file with the columns path,label, which goes before all other labels.",
)  # fmt: skip
@click.option(
    "--k", "ks", type=NumberList(), default="1,5,10", show_default=True,
    help="The K of Recall@K, to which 1 always belongs; the text shows the first and the last.",
)  # fmt: skip
@click.option(
    "--shown", type=click.IntRange(min=1), default=SHOWN, show_default=True, metavar="N",
    help="Queries on the page of every two candidates of which one is right and the other wrong, drawn at random.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of this drawing.")
@click.option(
    "--cache", type=_PATH, default=user_cache, show_default="your cache folder",
    help="Folder of vectors and features: what is there is not embedded again.",
)  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Embed everything, and keep nothing.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=usable_cores, show_default="cores", help="Decoding threads."
)
@backend_option
@output_options
def compare(
    images: str, candidates: tuple[str, ...], out: Path, labels: Path | None, ks: tuple[int, ...], shown: int,
    seed: int, cache: Path, no_cache: bool, workers: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare CANDIDATEs, two to eight, on IMAGES: what each finds, on the same queries, and where they differ.

    IMAGES are what `index build` takes as a SOURCE, with labels: a folder with a folder for each, a table, an archive.
    A CANDIDATE is a model (.onnx), a gallery, the folder of a training run, or `box`, the model that comes with the
    package; NAME= says how it is called. Every labelled image asks once for the others of its label.

    Nothing is embedded twice: vectors are kept in the cache folder by model and by content, a gallery's are taken as
    they are, and runs of one backbone share its features. `index build` takes the same vectors.

    FOLDER/compare.html shows the table, and for any two candidates the queries where one is right and the other wrong.

    \b
    Examples:
      retrieval compare photos box model.onnx --out comparison
      retrieval compare photos small=box large=large.onnx tuned=run --out comparison
      retrieval compare photos.csv gallery model.onnx --out comparison --k 1,10 --json
    """
    if not FEWEST <= len(candidates) <= MOST:
        raise click.UsageError(f"IMAGES and {FEWEST} to {MOST} CANDIDATEs are compared, got {len(candidates)}")
    from retrieval_app.comparing.compare_text import describe_comparison, format_comparison

    with step_bars() as progress:
        comparison = compare_candidates(
            images, candidates, out, labels=labels, k=ks, shown=shown, seed=seed, cache=False if no_cache else cache,
            workers=workers, progress=progress,
        )  # fmt: skip
    emit(describe_comparison(comparison), as_json=as_json, text=format_comparison(comparison))
