"""How long a person waits: `retrieval --help` and one `retrieval search`, each from a cold process.

Beside them stands what a search by torch and faiss waits for before it can begin: importing both. All take turns, after
a first one that is not counted and leaves everybody's bytecode. By the processor's time stands beside by the clock,
since others at work change it less.
Without GALLERY and IMAGE a gallery of some clothing photos is made beside the record, with the model in the box.

    python -m benchmarks.serving.cold_start GALLERY IMAGE --out bench/cold-start.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.alone import keep_bytecode
from benchmarks.common.record import find_photos, print_machine, run_retrieval, write_record
from benchmarks.indexing.index_images import list_images, sample_photos

SEARCH, IMPORTS = "retrieval search", "import torch, faiss"
PHOTOS = 300


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gallery", type=Path, nargs="?")
    parser.add_argument("image", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True, help="JSON record to write")
    parser.add_argument(
        "--photos", type=int, default=PHOTOS, help="of the gallery that is made (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    if (options.gallery is None) != (options.image is None):
        parser.error("GALLERY and IMAGE go together")
    return options


def main() -> None:
    options = parse_options()
    gallery, image = options.gallery, options.image
    if gallery is None:
        gallery, image = make_gallery(options.out.parent / "cold-start", count=options.photos)
    retrieval = str(Path(sys.executable).with_name("retrieval"))
    commands = {
        "retrieval --help": [retrieval, "--help"],
        SEARCH: [retrieval, "search", str(gallery), str(image)],
        IMPORTS: [sys.executable, "-c", IMPORTS],
    }
    print_machine([])
    taken = take_turns(commands, repeats=options.repeats)
    results = {}
    for name, (clock, spent) in taken.items():
        results[name] = {
            "median": statistics.median(clock), "worst": max(clock), "cpu_median": statistics.median(spent),
            "repeats": options.repeats,
        }  # fmt: skip
        print(
            "{:<19} median {median:.2f} s, worst {worst:.2f} s; {cpu_median:.2f} s of a core".format(
                name, **results[name]
            )
        )
    search, imports = results[SEARCH], results[IMPORTS]
    by_clock, by_core = (search[kind] / imports[kind] for kind in ("median", "cpu_median"))
    print(f"a search takes {by_clock:.3f} of the imports by the clock, {by_core:.3f} by the processor's time")
    write_record(options.out, settings=vars(options), results=results)


def take_turns(
    commands: Mapping[str, Sequence[str]], *, repeats: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds by the clock, and of a core, of every command, one after the other again and again."""
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in commands}
    environment = keep_bytecode()
    for number in range(repeats + 1):
        for name, command in commands.items():
            before, started = os.times(), time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            clock, after = time.perf_counter() - started, os.times()
            if number:
                taken[name][0].append(clock)
                spent = after.children_user - before.children_user + after.children_system - before.children_system
                taken[name][1].append(spent)
    return taken


def make_gallery(folder: Path, *, count: int) -> tuple[Path, Path]:
    """A gallery of so many photos, made once, and one of them."""
    photos, gallery = (
        sample_photos(find_photos(), folder / f"photos-{count}", count=count),
        folder / f"gallery-{count}",
    )
    if not (gallery / "CURRENT").exists():
        run_retrieval("index", "build", photos, "--out", gallery, "--no-cache")
    return gallery, list_images(photos)[0]


if __name__ == "__main__":
    main()
