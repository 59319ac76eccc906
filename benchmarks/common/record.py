"""Records of measurements: machine and versions, JSON files that a stopped command continues from, shared photos."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np

from index.errors import InputError, RetrievalError
from training.options.backbone_libraries import BUILTIN, is_onnx_file

PACKAGES = (
    *("torch", "torchvision", "onnxruntime", "onnxruntime-gpu", "numpy", "pillow"),
    *("faiss-cpu", "faiss-gpu", "hnswlib", "usearch"),
)

WEIGHTS_FILES = {
    "mobilenet_v2": "mobilenet_v2_imagenet.safetensors",
    "timm:tf_efficientnet_lite2": "efficientnet_lite2_imagenet.safetensors",
}

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Measured:
    """One call of `retrieval … --json`: its document, seconds by the clock and of all cores, peak resident memory."""

    document: dict[str, Any]
    seconds: float
    processor_s: float
    peak_mib: float


def run_retrieval(*arguments: str | int | Path) -> Measured:
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
    return Measured(json.loads(output), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and versions."""
    cpus = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.*)", cpus.read_text() if cpus.exists() else "", re.MULTILINE)
    return {
        "processor": model[1].strip() if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": find_versions(PACKAGES),
    }


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def write_record(
    path: Path, *, settings: Mapping[str, Any], results: Mapping[str, Any], text: str | None = None
) -> None:
    """Write the JSON record, and say where; a text is written beside it as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": describe_machine(), "settings": dict(settings), "results": dict(results)}
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")
    if text is not None:
        path.with_suffix(".md").write_text(f"{text}\n")
    print(f"\nRecord: {path}", file=sys.stderr)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file that appears whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        write(file)
    temporary.replace(path)


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an `.npy` file that appears whole or not at all."""
    write_atomically(path, partial(np.save, arr=array))


def write_json(path: Path, document: object) -> None:
    """Write JSON that appears whole or not at all."""
    write_atomically(path, lambda file: file.write(json.dumps(document, indent=1).encode()))


def write_with_record(path: Path, record: object, write: Callable[[BinaryIO], object], *, suffix: str) -> None:
    """What `write` puts in a file of the suffix, and the JSON that says it is whole, the latter last."""
    write_atomically(path.with_suffix(suffix), write)
    write_json(path, record)


def keep(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The document that `make` returns, or returned before a stop, from a JSON file."""
    if not path.exists():
        write_json(path, make())
    stored: dict[str, Any] = json.loads(path.read_text())
    return stored


def hash_code(*folders: str) -> str:
    """SHA-256 of the Python files below some folders of the project."""
    found = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (_ROOT / folder).rglob("*.py")):
        found.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def digest(facts: object, *, digits: int = 12) -> str:
    """A short SHA-256 of facts written as JSON."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:digits]


def shared_folder() -> Path:
    """The folder of photos and weights that RETRIEVAL_SHARED names; docs/benchmarks.md says what is in it.

    Raises:
        SystemExit: there is none.
    """
    folder = Path(os.environ.get("RETRIEVAL_SHARED", "../shared"))
    if not folder.is_dir():
        sys.exit(f"{folder}: no such folder; set RETRIEVAL_SHARED, or pass the paths as options")
    return folder.resolve()


def find_weights(own: Path | str | None = None, *, backbone: str = "mobilenet_v2") -> Path | str:
    """One's own weights, the backbone's of RETRIEVAL_SHARED, or `pretrained` for one that has its weights inside.

    Raises:
        InputError: RETRIEVAL_SHARED has none of this backbone.
    """
    if own is not None:
        return own
    if backbone == BUILTIN or is_onnx_file(backbone):
        return "pretrained"
    if backbone not in WEIGHTS_FILES:
        raise InputError(f"--weights is missing: without it --backbone is one of {', '.join(WEIGHTS_FILES)}")
    return shared_folder() / "weights" / WEIGHTS_FILES[backbone]


def find_photos(own: Path | None = None) -> Path:
    """One's own folder of photos, or the clothing photos of RETRIEVAL_SHARED."""
    return (own or shared_folder() / "data" / "clothing").resolve()


def unpack_tiny_imagenet(folder: Path) -> list[Path]:
    """The folders `train` and `test` of Tiny-ImageNet, unpacked once below a folder."""
    return [unpack_shared(f"tiny-imagenet/{part}.tar", folder) for part in ("train", "test")]


def unpack_shared(archive: str, folder: Path) -> Path:
    """The folder, named as the archive of RETRIEVAL_SHARED's `data` is, into which it was unpacked once."""
    path = shared_folder() / "data" / archive
    out, marker = folder / path.stem, folder / f"{path.stem}.unpacked"
    if not marker.exists():
        with tarfile.open(path) as tar:
            tar.extractall(out, filter="data")
        marker.touch()
    return out


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


def unpack_labels(name: str, folder: Path) -> tuple[Path, list[dict[str, str]]]:
    """Folder of an archive NAME.tar of RETRIEVAL_SHARED, unpacked once, and the rows of its labels.csv."""
    unpacked = unpack_shared(f"{name}.tar", folder) / name
    with (unpacked / "labels.csv").open(newline="", encoding="utf-8") as file:
        return unpacked, list(csv.DictReader(file))


def print_machine(seeds: Sequence[int]) -> None:
    """The machine in one line, above a table."""
    machine = describe_machine()
    versions = format_versions(machine["versions"])
    print(f"{machine['processor']}, {machine['cores']} cores; {versions}; seeds {', '.join(map(str, seeds))}")


def format_versions(versions: Mapping[str, str]) -> str:
    """Names with versions, by commas."""
    return ", ".join(f"{name} {number}" for name, number in versions.items())
