"""Options of the commands that work on the grid's datasets under noise."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.noise.grid import read_noise
from index.errors import InputError
from index.threads import usable_cores


def make_grid_parser(
    description: str | None,
    *,
    out: str = "folder of features and records, as of benchmarks.noise",
    dataset: str,
    noises: Sequence[str],
    noise: str = "clean|KIND:P",
    threads: str = ", of one thread each",
) -> argparse.ArgumentParser:
    """A parser with what all have; `out` and `dataset` are said of these options, `noise` is how one is written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help=out)
    parser.add_argument("--dataset", action="append", metavar="NAME", help=dataset)
    parser.add_argument("--noise", action="append", metavar=noise, help=f"default: {', '.join(noises)}")
    parser.add_argument(
        "--workers", type=int, default=usable_cores(), help=f"processes{threads} (default: one a core)"
    )
    return parser


def parse_grid_options(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, **defaults: Sequence[object]
) -> argparse.Namespace:
    """The options, with defaults of those that may be repeated; an unknown noise ends the program."""
    options = parser.parse_args(arguments)
    for name, default in defaults.items():
        setattr(options, name, getattr(options, name) or list(default))
    for noise in options.noise:
        try:
            read_noise(noise, hierarchy=getattr(options, "hierarchy", None))
        except InputError as error:
            parser.error(f"--noise {noise}: {error}")
    return options
