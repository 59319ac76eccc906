"""`retrieval demo`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from index.console import emit, output_options, progress_bars
from index.progress import Progress


@click.command(short_help="The whole story offline.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo-out"), show_default=True, help="Folder to fill."
)
@click.option("--seed", default=0, show_default=True, help="Seed of pictures, wrong labels and training.")
@click.option("--serve/--no-serve", default=True, show_default=True, help="Open the search page at the end.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7860,
    show_default=True,
    help="Port of the page, on 127.0.0.1.",
)
@output_options
def demo(out: Path, seed: int, serve: bool, port: int, as_json: bool) -> None:
    """Draw a catalogue of pictures, make 30 % of its labels wrong, and do the main job on it to the end.

    Needs no data and no network, and takes under five minutes on two cores. It trains by the default recipe, and with
    Smooth Proxy-Anchor and Proxy-Anchor for comparison, exports, indexes, evaluates on kinds of object that no training
    has seen, prints the methods beside the untrained baselines whatever they turn out to be, audits the labels, and
    serves the search page. A second call goes on where the first one ended.

    \b
    Examples:
      retrieval demo
      retrieval demo --out /tmp/demo --seed 1 --no-serve
    """
    from retrieval_app.demo import DemoConfig, run_demo
    from retrieval_app.demo_report import format_report

    if serve:
        from retrieval_app.server import listen

        listen("127.0.0.1", port).close()  # a taken port is better known now than after the work
    with _narrate() as (say, progress):
        report = run_demo(out, config=DemoConfig(seed=seed), say=say, progress=progress)
    emit(report, as_json=as_json, text=format_report(report, program=_program()))
    if serve:
        from retrieval_app.server import ServeOptions, serve_gallery

        options = ServeOptions(gallery=out / "gallery", port=port)
        serve_gallery(options, on_ready=lambda served: click.echo(f"Serving {served.url}", err=True))


def _program() -> str:
    """How this command line was called, so that what is printed can be pasted: maybe `.venv/bin/retrieval`."""
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.name == "retrieval" else "retrieval"


@contextmanager
def _narrate() -> Iterator[tuple[Callable[[str], None], Callable[[str, int, int], None]]]:
    """Sentences on stderr, and a bar for every step that counts, where stderr is a terminal."""
    with progress_bars() as begin:
        bars: dict[str, Progress] = {}

        def progress(step: str, done: int, total: int) -> None:
            if step not in bars:
                bars[step] = begin(step, unit="epochs" if step == "pretrain" else "pictures")
            bars[step](done, total)

        yield lambda text: click.echo(f"• {text}", err=True), progress
