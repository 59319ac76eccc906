"""How long a person waits: `retrieval --help` and one `retrieval search`, each from a cold process.

python -m benchmarks.serving.cold_start GALLERY IMAGE --out bench/cold-start.json
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.record import print_machine, write_record


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gallery", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON record to write")
    parser.add_argument("--repeats", type=int, default=11)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    retrieval = str(Path(sys.executable).with_name("retrieval"))
    commands = {
        "retrieval --help": [retrieval, "--help"],
        "retrieval search": [retrieval, "search", str(options.gallery), str(options.image)],
    }
    results = {}
    print_machine([])
    for name, command in commands.items():
        seconds = []
        for _ in range(options.repeats):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - started)
        results[name] = {"median": statistics.median(seconds), "worst": max(seconds), "repeats": options.repeats}
        print(f"{name:<18} median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")
    write_record(options.out, settings=vars(options), results=results)


if __name__ == "__main__":
    main()
