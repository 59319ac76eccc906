"""Benchmarks of several parts: their options, and one run that writes a record and a table for each part."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.processes import run_alone
from benchmarks.common.record import keep, print_machine, write_record

_ENVIRONMENT = (
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"),
    "LD_PRELOAD",
)


class Part(NamedTuple):
    """One question: what measures it, and what makes a Markdown table of that."""

    measure: Callable[..., dict[str, Any]]
    table: Callable[[Mapping[str, Any]], str]


def make_parser(
    description: str | None, parts: Mapping[str, Part], *, default: Sequence[str]
) -> argparse.ArgumentParser:
    """A parser with the options that all have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything made")
    part = f"may be repeated; default {', '.join(default)}"
    parser.add_argument("--part", action="append", choices=list(parts), help=part)
    turns = "times that each contestant is measured (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=3, help=turns)
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.set_defaults(default_parts=tuple(default))
    return parser


def parse_counts(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *counts: str) -> argparse.Namespace:
    """The options; every one that counts something must be at least 1."""
    options = parser.parse_args(arguments)
    for name in ("rounds", *counts):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    options.part = options.part or list(options.default_parts)
    return options


def run_parts(
    parts: Mapping[str, Part], options: argparse.Namespace, *given: object, suffix: str = "", **settings: object
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Measure each part asked for, with `given` before the options; the results by part, and their tables.

    Each part's record and table are written as soon as it is measured.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    environment = {name: os.environ.get(name) for name in _ENVIRONMENT}
    measured, tables = {}, []
    for name in options.part:
        print(f"{name}{suffix}", file=sys.stderr, flush=True)
        results = measured[name] = parts[name].measure(*given, options)
        given_settings = vars(options) | {"environment": environment} | settings
        write_record(options.out / f"record-{name}{suffix}.json", settings=given_settings, results=results)
        tables.append(parts[name].table(results))
        (options.out / f"table-{name}{suffix}.md").write_text(f"{tables[-1]}\n")
    return measured, tables


def print_parts(parts: Mapping[str, Part], options: argparse.Namespace, *given: object) -> None:
    """Measure each part asked for as `run_parts` does, and print the machine and all tables."""
    _, tables = run_parts(parts, options, *given)
    print_machine([options.seed])
    print("", *tables, sep="\n\n")


def measure_in_turns(
    module: str, part: str, settings: Mapping[str, Mapping[str, Any]], *, folder: Path, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Documents of `python -m MODULE alone` by contestant, each with its settings; what was measured is kept."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
    for turn in range(rounds):
        for place, (name, runs) in enumerate(found.items()):
            print(f"  {part}, round {turn + 1}: {name}", file=sys.stderr, flush=True)
            given = {"part": part, "contestant": name, **settings[name]}
            alone = partial(run_alone, module, "alone", settings=given, failing="it ended with {}")
            runs.append(keep(folder / f"{part}-{turn}-{place}.json", alone))
    return found
