"""What every benchmark shares: running the command line as a user would, and a record of machine and versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import click

from index.errors import RetrievalError

PACKAGES = (
    "torch", "torchvision", "faiss-cpu", "faiss-gpu", "hnswlib", "usearch", "onnxruntime", "onnxruntime-gpu", "numpy",
    "pillow",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """One call of `retrieval … --json`: its document, wall-clock seconds and peak resident memory."""

    document: dict[str, Any]
    seconds: float
    peak_mib: float


def run_retrieval(*arguments: str | Path) -> Measured:
    """Run a command in a process of its own; its progress goes to this process's stderr.

    Raises:
        SystemExit: the command failed; its message is on stderr.
    """
    command = [sys.executable, "-m", "retrieval_app", *map(str, arguments), "--json"]
    print("$ retrieval", *map(str, arguments), file=sys.stderr, flush=True)
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"retrieval exited with {process.returncode}")
    return Measured(json.loads(output), seconds, usage.ru_maxrss / 1024)


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and versions."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def write_record(path: Path, *, settings: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    """Write the JSON record, and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": describe_machine(), "settings": dict(settings), "results": dict(results)}
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")
    print(f"\nRecord: {path}", file=sys.stderr)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file that appears whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        write(file)
    temporary.replace(path)


def shared_folder() -> Path:
    """The folder of photos and weights that RETRIEVAL_SHARED names; benchmarks/README.md says what is in it.

    Raises:
        SystemExit: there is none.
    """
    folder = Path(os.environ.get("RETRIEVAL_SHARED", "../shared"))
    if not folder.is_dir():
        sys.exit(f"{folder}: no such folder; set RETRIEVAL_SHARED, or pass the paths as options")
    return folder.resolve()


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a tar file once; the folder."""
    marker = folder.with_name(folder.name + ".unpacked")
    if not marker.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        marker.touch()
    return folder


@contextmanager
def ending_in_words(script: str) -> Iterator[None]:
    """An error that a user can mend, or Ctrl-C, ends the script in one line; its records let it go on."""
    try:
        yield
    except (RetrievalError, click.ClickException) as error:
        sys.exit(f"{script}: {error}")
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on from here.", file=sys.stderr)
        sys.exit(130)


def print_machine(seeds: Sequence[int]) -> None:
    """The machine in one line, above a table."""
    machine = describe_machine()
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    print(f"{machine['processor']}, {machine['cores']} cores; {versions}; seeds {', '.join(map(str, seeds))}")
