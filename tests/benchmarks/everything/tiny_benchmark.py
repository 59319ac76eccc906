"""The smallest benchmark: it writes a record, counts how often it was run, and fails where it is told to."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    with options.out.with_name("runs.txt").open("a") as runs:
        runs.write("run\n")
    if options.fail:
        sys.exit("tiny_benchmark: it was told to fail")
    seconds = {"retrieval search": 0.2, "import torch, faiss": 2.0}
    results = {name: {"median": each, "repeats": options.repeats} for name, each in seconds.items()}
    options.out.write_text(json.dumps({"settings": {"repeats": options.repeats}, "results": results}))


if __name__ == "__main__":
    main()
