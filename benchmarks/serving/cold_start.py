"""How long a person waits: `retrieval --help` and one `retrieval search`, each from a cold process.

Beside them stands what a search by torch and faiss waits for before it can begin: importing both. All take turns.
Without GALLERY and IMAGE a gallery of some clothing photos is made beside the record, with the model in the box.

    python -m benchmarks.serving.cold_start GALLERY IMAGE --out bench/cold-start.json
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

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
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    print_machine([])
    for _ in range(options.repeats):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - started)
    results = {}
    for name, each in seconds.items():
        results[name] = {"median": statistics.median(each), "worst": max(each), "repeats": options.repeats}
        print(f"{name:<19} median {statistics.median(each):.2f} s, worst {max(each):.2f} s")
    print(f"a search takes {results[SEARCH]['median'] / results[IMPORTS]['median']:.2f} of the imports")
    write_record(options.out, settings=vars(options), results=results)


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
