"""One benchmark as a process of its own: what it records, or how it failed; a finished one is not run again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.kept import digest, hash_code
from benchmarks.common.record import describe_machine, find_photos, write_json
from benchmarks.everything.catalogue import PACKAGES, PHOTOS, SMALL, Benchmark
from benchmarks.indexing.index_images import sample_photos

FINISHED, FAILED, NOT_RUN = "finished", "failed", "not run"
LAST_LINES = 12  # of what a failed one said


def run_benchmark(
    name: str, benchmark: Benchmark, base: Path, *, seed: int, is_quick: bool, finished: Sequence[str] = ()
) -> dict[str, Any]:
    """Run it below `base / name`, unless it finished there with the same command, code and machine; what came of it.

    Args:
        finished: benchmarks that have finished before, whose records it may read.

    Returns:
        `status`, `command`, `seconds`, and its `records` by file, or the `error` that it ended with.
    """
    folder = base / name
    if is_quick and "{photos}" in (benchmark.quick or ()):
        sample_photos(find_photos(), base / PHOTOS, count=SMALL)
    command = benchmark.command(folder, seed=seed, is_quick=is_quick, finished=finished)
    code = hash_code(*PACKAGES, *benchmark.code)
    key = digest([command, code, describe_machine()])
    marker = folder / "finished.json"
    kept = json.loads(marker.read_text()) if marker.exists() else {}
    again = kept.get("key") == key and all(any(folder.glob(pattern)) for pattern in benchmark.records)
    shown = f"$ python {' '.join(command[1:])}"
    print(f"{name}: {'kept from before' if again else shown}", file=sys.stderr, flush=True)
    if not again:
        marker.unlink(missing_ok=True)
        seconds, error = _run(command, folder, benchmark)
        if error:
            print(f"{name}: failed\n{error}", file=sys.stderr, flush=True)
            return {"status": FAILED, "command": command, "seconds": seconds, "error": error}
        kept = {"key": key, "seconds": seconds}
        write_json(marker, kept)
    return {
        "status": FINISHED, "command": command, "seconds": kept["seconds"],
        "records": gather_records(folder, benchmark.records),
    }  # fmt: skip


def gather_records(folder: Path, patterns: Sequence[str]) -> dict[str, Any]:
    """The JSON records by their names without the ending; the machine is told once for all."""
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    documents = {path.stem: json.loads(path.read_text()) for path in paths}
    return {name: {part: each[part] for part in ("settings", "results")} for name, each in documents.items()}


def _run(command: Sequence[str], folder: Path, benchmark: Benchmark) -> tuple[float, str | None]:
    """Seconds, and the last of what a failed one said; all of it is in the folder's `log.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in benchmark.records:  # what a failed one left must not be taken for its own
        for path in folder.glob(pattern):
            path.unlink()
    log, started = folder / "log.txt", time.perf_counter()
    with log.open("w") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    seconds = time.perf_counter() - started
    if status:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return seconds, f"exit status {status}; {log} ends with:\n{said}"
    missing = [pattern for pattern in benchmark.records if not any(folder.glob(pattern))]
    return seconds, f"it wrote no {missing[0]}" if missing else None


def copy_picture(base: Path, path: Path) -> Path | None:
    """The roofline beside the record of all, if it was drawn."""
    drawn = base / "roofline" / "roofline.png"
    return Path(shutil.copyfile(drawn, path)) if drawn.exists() else None
