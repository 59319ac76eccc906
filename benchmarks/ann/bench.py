"""Vectors, their true neighbours, built indexes and kept measurements of `benchmarks.ann`."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ann.peers import OURS, Contestant, Opened, list_contestants
from benchmarks.ann.truth import Truth, find_truth
from benchmarks.common.processes import run_alone
from benchmarks.common.record import describe_machine, digest, hash_code, keep, save_array, write_atomically
from index.arrays import Vectors


@dataclass(frozen=True, slots=True)
class AnnBench:
    """One set of vectors, and the folder that keeps what is made of it.

    Attributes:
        measured: folder of the measurements with the same options, code, machine and versions.
        versions: SHA-256 of what an index of ours, and what one of a peer, depends on beside its settings.
        base, queries: (N, D), mapped, and (Q, D) float32 unit rows.
    """

    folder: Path
    measured: Path
    versions: Mapping[str, str]
    contestants: tuple[Contestant, ...]
    base: Vectors
    queries: Vectors

    @classmethod
    def open(cls, options: argparse.Namespace, *, width: int) -> AnnBench:
        """Make the vectors, once."""
        folder = _write_vectors(options, width=width)
        base, queries = np.load(folder / "base.npy", mmap_mode="r"), np.load(folder / "queries.npy")
        everybody = list_contestants(options.index_type)
        contestants = [each for each in everybody if each.library not in options.without]
        asked = [options.index_type, *(each.name for each in contestants)]
        machine, code = describe_machine(), hash_code("index")
        facts = {"machine": machine, "code": [hash_code("benchmarks/ann"), code], "contestants": asked}
        measured = folder / "measured" / digest(facts)
        measured.mkdir(parents=True, exist_ok=True)
        versions = {"ours": digest([machine["versions"], code]), "peers": digest(machine["versions"])}
        return cls(folder, measured, versions, tuple(contestants), base, queries)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The document that `make` returns, or returned before a stop."""
        return keep(self.measured / f"{name}.json", make)

    def build(self, contestant: Contestant) -> dict[str, Any]:
        """Build an index in a process of its own, or find it built by the same code and versions."""
        folder = self.find_built(contestant)
        settings = {"contestant": asdict(contestant), "base": self.folder / "base.npy", "folder": folder}
        failing = f"the build of {contestant.name} exited with {{}}"

        def make() -> dict[str, Any]:
            shutil.rmtree(folder, ignore_errors=True)  # of a build that was stopped
            built = run_alone("benchmarks.ann.builds", settings=settings, failing=failing, wait_policy="PASSIVE")
            print(f"  built {contestant.name}: {built['seconds']:.1f} s", file=sys.stderr, flush=True)
            return built

        return keep(folder.with_name(f"{folder.name}.json"), make)

    def open_built(self, contestants: Iterable[Contestant]) -> dict[str, Opened]:
        """Built indexes, read again, by name."""
        return {each.name: each.open(self.folder / "base.npy", self.find_built(each)) for each in contestants}

    def find_built(self, contestant: Contestant) -> Path:
        """The folder of a built index."""
        version = self.versions["ours" if contestant.library == OURS else "peers"]
        key = digest([asdict(contestant), version])
        return self.folder / "built" / f"{contestant.name.replace(' ', '-')}-{key}"

    def find_truth(self) -> Truth:
        """The true neighbours of all queries without a filter, found once."""
        path = self.folder / "truth.npz"
        if not path.exists():
            truth = find_truth(np.array(self.base), self.queries)
            write_atomically(path, lambda file: np.savez(file, ids=truth.ids, least=truth.least))
        with np.load(path) as stored:
            return Truth(stored["ids"], stored["least"])


def _write_vectors(options: argparse.Namespace, *, width: int) -> Path:
    """The folder with `base.npy` and `queries.npy`: of the photos, or copies of the files given."""
    given: tuple[Vectors, ...] = ()
    folder = options.out.resolve() / f"photos-{options.count}-{width}-{options.seed}"
    if options.base is not None:
        given = np.load(options.base), np.load(options.queries)
        content = b"".join(np.ascontiguousarray(rows).tobytes() for rows in given)
        folder = options.out.resolve() / f"given-{hashlib.sha256(content).hexdigest()[:12]}"
    if not (folder / "queries.npy").exists():
        if not given:
            from benchmarks.ann.vectors import load_vectors

            where = options.vectors or options.out
            given = load_vectors(where, count=options.count, width=width, seed=options.seed)
        for name, rows in zip(("base", "queries"), given, strict=True):
            save_array(folder / f"{name}.npy", rows)
    return folder
