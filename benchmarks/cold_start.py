"""Cold start: `retrieval search` beside importing torch and faiss.

They take turns, after a first one that leaves everybody's bytecode. Seconds of a core stand beside seconds by the
clock, because other work on the machine changes them less.

    python -m benchmarks.cold_start GALLERY IMAGE --out bench/cold-start
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.record import write_record

IMPORTS = "import torch, faiss"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gallery", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the JSON record")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    search = ["-c", "from retrieval_app.commands.cli import run; run()", "search", options.gallery, options.image]
    timed = {IMPORTS: [sys.executable, "-c", IMPORTS], "search": [sys.executable, *search]}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    clock: dict[str, list[float]] = {name: [] for name in timed}
    core: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(options.repeats + 1):
        for name, command in timed.items():
            before, started = os.times(), time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            after, seconds = os.times(), time.perf_counter() - started
            if number:
                clock[name].append(seconds)
                core[name].append(sum(after[2:4]) - sum(before[2:4]))
    results = {
        name: {"seconds": statistics.median(clock[name]), "core_seconds": statistics.median(core[name])}
        for name in timed
    }
    for name, one in results.items():
        ratio = one["core_seconds"] / results[IMPORTS]["core_seconds"]
        print(f"{name:<20} {one['seconds']:.2f} s, {one['core_seconds']:.2f} s of a core, {ratio:.3f} of the imports")
    write_record(options.out / "record.json", settings=vars(options), results=results)


if __name__ == "__main__":
    main()
