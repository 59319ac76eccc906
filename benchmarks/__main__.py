"""Everything that compares speed with peers, by one command: benchmark after benchmark, the goals, a roofline.

list    each benchmark's question and command
all     run them, each in a process of its own below the folder of OUT, gather their records into OUT, and write beside
        it the goals as Markdown and the roofline as PNG

A stopped command goes on: what finished with the same options, code and machine is not run again. One that fails is
told, and the others go on; the exit status is 1 then. --quick takes small sizes: it tries whether all runs, and its
figures say little; what has no small size is left out.

    python -m benchmarks list
    python -m benchmarks all --json bench/all.json
    python -m benchmarks all --json bench/quick.json --quick --only indexing --only roofline
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.everything.catalogue import BENCHMARKS, Benchmark
from benchmarks.everything.goals import format_goals, judge
from benchmarks.everything.running import FAILED, FINISHED, NOT_RUN, copy_picture, run_benchmark


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="each benchmark's question and command")
    everything = commands.add_parser("all", help="run them all")
    add = everything.add_argument
    add("--json", type=Path, required=True, metavar="OUT", help="record of all, such as bench/all.json")
    add("--only", action="append", choices=list(BENCHMARKS), metavar="NAME", help="may be repeated; default all")
    add("--quick", action="store_true", help="small sizes, to try whether all runs")
    add("--seed", type=int, default=0, help="of those that take one (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.command == "all" and options.json.suffix != ".json":
        parser.error("--json must name a .json file: others are written beside it")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    if options.command == "list":
        print(format_list(BENCHMARKS))
        return 0
    with ending_in_words("benchmarks"):
        return run_all(BENCHMARKS, options)


def format_list(benchmarks: Mapping[str, Benchmark]) -> str:
    """Markdown: the name, the question and the command of each."""
    rows = []
    for name, each in benchmarks.items():
        command = each.command(Path("bench") / name, seed=0, is_quick=False)
        rows.append([name, each.question, f"`python {' '.join(command[1:])}`"])
    return format_table(["name", "question", "command"], rows)


def run_all(benchmarks: Mapping[str, Benchmark], options: argparse.Namespace) -> int:
    """Those asked for, one after the other; exit status 1 where any failed."""
    base: Path = options.json.resolve().parent
    if options.quick:
        base = base / "quick"  # whose records are of other sizes
    print_machine([options.seed])
    documents: dict[str, dict[str, Any]] = {}
    for name, each in benchmarks.items():
        if (options.only and name not in options.only) or (options.quick and each.quick is None):
            documents[name] = {"status": NOT_RUN}
        else:
            finished = [one for one, document in documents.items() if document["status"] == FINISHED]
            documents[name] = run_benchmark(
                name, each, base, seed=options.seed, is_quick=options.quick, finished=finished
            )
        documents[name]["question"] = each.question
    goals = judge(documents)
    text = format_report(documents, goals)
    print(f"\n{text}")
    settings = {name: value for name, value in vars(options).items() if name != "command"}
    picture = None
    if documents.get("roofline", {}).get("status") == FINISHED:
        picture = copy_picture(base, options.json.with_suffix(".png"))
    results = {"benchmarks": documents, "goals": goals, "roofline": picture}
    write_record(options.json, settings=settings, results=results, text=text)
    return int(any(document["status"] == FAILED for document in documents.values()))


def format_report(documents: Mapping[str, Mapping[str, Any]], goals: list[dict[str, Any]]) -> str:
    """Markdown: the goals, and what became of each benchmark."""
    rows = []
    for name, document in documents.items():
        seconds = document.get("seconds")
        rows.append([name, document["status"], "" if seconds is None else f"{seconds:,.0f}"])
    return f"{format_goals(goals)}\n\n{format_table(['benchmark', 'status', 'seconds'], rows)}"


if __name__ == "__main__":
    sys.exit(main())
