"""What every part of `benchmarks.ann` stands on: the vectors, what is true of them, the built indexes, what is kept."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ann.ann_peers import OURS, Contestant, list_contestants
from benchmarks.ann.ann_truth import Truth, find_truth
from benchmarks.common.alone import run_alone
from benchmarks.common.kept import digest, hash_code, keep
from benchmarks.common.record import describe_machine, write_atomically
from index.arrays import Vectors


@dataclass(frozen=True, slots=True)
class AnnBench:
    """One set of vectors, and the folder that keeps what is made of it.

    Attributes:
        folder: of these vectors.
        measured: folder of the measurements with the same options, code, machine and versions.
        versions: SHA-256 of what an index of ours, and what one of a peer, depends on beside its settings.
        contestants: who is measured.
        base: (N, D) float32 unit rows, mapped.
        queries: (Q, D) float32 unit rows.
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
        contestants = [
            each
            for each in list_contestants(len(base), index_type=options.index_type)
            if each.library not in options.without
        ]
        names = [each.name for each in contestants]
        machine, code = describe_machine(), hash_code("index")
        facts = {
            "machine": machine,
            "code": [hash_code("benchmarks/ann"), code],
            "contestants": [options.index_type, *names],
        }
        measured = folder / "measured" / digest(facts)
        measured.mkdir(parents=True, exist_ok=True)
        versions = {"ours": digest([machine["versions"], code]), "peers": digest(machine["versions"])}
        return cls(folder, measured, versions, tuple(contestants), base, queries)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` gives, or gave before a stop."""
        return keep(self.measured / f"{name}.json", make)

    def build(self, contestant: Contestant) -> dict[str, Any]:
        """Build and measure an index in processes of its own, or find it built by the same code and versions."""
        folder = self.find_built(contestant)
        files = {"base": self.folder / "base.npy", "queries": self.folder / "queries.npy", "folder": folder}
        settings = {"contestant": asdict(contestant), **files}

        def make() -> dict[str, Any]:
            shutil.rmtree(folder, ignore_errors=True)  # of a build that was stopped
            built, opened = (
                run_alone(
                    "benchmarks.ann.ann_builds", step, settings=settings, wait_policy="PASSIVE",
                    failing=f"{step} of {contestant.name} exited with {{}}",
                )
                for step in ("build", "open")
            )  # fmt: skip
            print(f"  built {contestant.name}: {built['seconds']:.1f} s", file=sys.stderr, flush=True)
            return {**built, "opened": opened}

        return keep(folder.with_name(f"{folder.name}.json"), make)

    def find_built(self, contestant: Contestant) -> Path:
        """The folder of a built index."""
        version = self.versions["ours" if contestant.library == OURS else "peers"]
        return (
            self.folder / "built" / f"{contestant.name.replace(' ', '-')}-{digest([asdict(contestant), version])}"
        )

    def find_truth(self) -> Truth:
        """What is true of all queries without a filter, found once."""
        path = self.folder / "truth.npz"
        if not path.exists():
            truth = find_truth(np.array(self.base), self.queries)
            write_atomically(path, lambda file: np.savez(file, ids=truth.ids, least=truth.least))
        with np.load(path) as stored:
            return Truth(stored["ids"], stored["least"])


def _write_vectors(options: argparse.Namespace, *, width: int) -> Path:
    """The folder with `base.npy` and `queries.npy`: of the photos, or copies of the files given."""
    if options.base is not None:
        given = {"base": np.load(options.base), "queries": np.load(options.queries)}
        rows_digest = hashlib.sha256(
            b"".join(np.ascontiguousarray(rows).tobytes() for rows in given.values())
        ).hexdigest()
        folder = options.out.resolve() / f"given-{rows_digest[:12]}"
    else:
        from benchmarks.ann.ann_vectors import load_vectors

        given = {}
        folder = options.out.resolve() / f"photos-{options.count}-{width}-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "queries.npy").exists():
        if not given:
            made = load_vectors(
                options.vectors or options.out, count=options.count, width=width, seed=options.seed
            )
            given = {"base": made.base, "queries": made.queries}
        for name, rows in given.items():
            write_atomically(folder / f"{name}.npy", partial(np.save, arr=rows))
    return folder
