"""What it costs to score a whole test set: time and memory beside pytorch-metric-learning, and equal scores."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table

VIEWS = 5  # crops of a photo
SOP_ROWS, SOP_CLASSES = 60_502, 11_316  # Stanford Online Products, its test half
LARGE_CLASSES = (4, 5, 5)  # parts by the first, second and third dimension
SOP_KS = (1, 10, 100, 1000)
PEER_METRICS = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
WAIT_POLICIES = ("PASSIVE", "unset")
TOLERANCE = 1e-4  # float32 sums leave near ties in any order

Vectors = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way of scoring: `kind` is `ours` or `peer`, with the K of Recall@K or of the peer's neighbours."""

    kind: str
    ks: tuple[int, ...] = (1,)
    wait_policy: str = "unset"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the sets, let the contestants take turns, compare and record."""
    options = _read_options(arguments)
    if options.contestant:
        print(json.dumps(_score(Contestant(**json.loads(options.contestant)), options.set)))
        return
    with ending_in_words("evaluation"):
        options.out.mkdir(parents=True, exist_ok=True)
        vectors = load_crops(options.vectors, rows=options.rows, width=options.width, seed=options.seed)
        print_machine([options.seed])
        results = {
            "small classes": _compare(
                options, "small", vectors, make_small_classes(len(vectors), seed=options.seed)
            ),
            "large classes": _compare(options, "large", vectors, make_large_classes(vectors)),
        }
        table = "\n\n".join(_write_table(name, result) for name, result in results.items())
        print(table)
        (options.out / "table.md").write_text(table + "\n")
        settings = {name: value for name, value in vars(options).items() if name not in ("contestant", "set")}
        write_record(options.out / "record.json", settings=settings, results=results)


def _read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.evaluation", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record and the table")
    parser.add_argument("--vectors", type=Path, help="folder that benchmarks.ann.ann_vectors keeps its vectors in")
    parser.add_argument(
        "--rows", type=int, default=SOP_ROWS, help="vectors that are scored (default: %(default)s)"
    )
    parser.add_argument("--width", type=int, default=512, help="numbers of a vector (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contestant (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--set", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contestant is None:
        if options.out is None or options.vectors is None:
            parser.error("--out and --vectors are needed")
        if options.rounds < 1 or options.rows < 100:
            parser.error("--rounds must be at least 1 and --rows at least 100")
    return options


def load_crops(folder: Path, *, rows: int, width: int, seed: int) -> Vectors:
    """(rows, width) unit float32: all crops of some photos, a photo's own one after the other."""
    tables = sorted(folder.glob(f"coefficients-{VIEWS}-*.npy"))
    if not tables:
        from benchmarks.ann.ann_vectors import WIDEST, load_vectors

        load_vectors(folder, count=200_000, width=WIDEST)
        tables = sorted(folder.glob(f"coefficients-{VIEWS}-*.npy"))
    table = np.load(tables[-1], mmap_mode="r")  # (photos, views, width)
    needed = -(-rows // VIEWS)
    if len(table) < needed or table.shape[2] < width:
        sys.exit(f"{tables[-1]}: {table.shape}; {needed} photos of width {width} are needed")
    photos = np.sort(np.random.default_rng(seed).permutation(len(table))[:needed])
    vectors = np.array(table[photos, :, :width], dtype=np.float32).reshape(-1, width)[:rows]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_small_classes(rows: int, *, seed: int) -> Labels:
    """(rows,) labels of 2 to 12 rows that follow each other, 5.3 on average, as in Stanford Online Products."""
    random = np.random.default_rng(seed + 1)
    mean = SOP_ROWS / SOP_CLASSES
    sizes = np.clip(2 + random.poisson(mean - 2, size=rows), 2, 12)
    return np.repeat(np.arange(rows), sizes)[:rows].astype(np.int64)


def make_large_classes(vectors: Vectors) -> Labels:
    """(rows,) labels of about 100 classes of the same size: photos alike in the first three dimensions."""
    photos = np.array([crops.mean(axis=0) for crops in np.array_split(vectors[:, :3], -(-len(vectors) // VIEWS))])
    groups = [np.arange(len(photos))]
    for dimension, parts in enumerate(LARGE_CLASSES):
        groups = [
            part
            for group in groups
            for part in np.array_split(group[np.argsort(photos[group, dimension], kind="stable")], parts)
        ]
    labels = np.empty(len(photos), dtype=np.int64)
    for label, group in enumerate(groups):
        labels[group] = label
    counts = [len(part) for part in np.array_split(np.arange(len(vectors)), len(photos))]
    return np.repeat(labels, counts)


def _compare(
    options: argparse.Namespace, name: str, vectors: Vectors, labels: Labels, *, wait_policy: str | None = None
) -> dict[str, Any]:
    """Every contestant on one set, in turns; the set is shuffled, so that rows say nothing of labels.

    Without a wait policy the peer tries all of them in a warm-up.
    """
    folder = options.out / name
    folder.mkdir(exist_ok=True)
    order = np.random.default_rng(options.seed + 2).permutation(len(vectors))
    np.save(folder / "vectors.npy", vectors[order])
    np.save(folder / "labels.npy", labels[order])
    tried = {}
    if wait_policy is None:
        tried = {
            policy: _run(Contestant("peer", wait_policy=policy), folder)["seconds"] for policy in WAIT_POLICIES
        }
    best = wait_policy or min(tried, key=lambda policy: tried[policy])
    contestants = {
        "ours": Contestant("ours"),
        "pytorch-metric-learning": Contestant("peer", wait_policy=best),
    }
    if name == "small":
        contestants[f"ours, K = {', '.join(map(str, SOP_KS))}"] = Contestant("ours", ks=SOP_KS)
        contestants["pytorch-metric-learning, precision_at_1 alone"] = Contestant("peer", ks=(), wait_policy=best)
    found: dict[str, list[dict[str, Any]]] = {contestant: [] for contestant in contestants}
    for _ in range(options.rounds):
        for contestant, chosen in contestants.items():
            found[contestant].append(_run(chosen, folder))
    for file in ("vectors.npy", "labels.npy"):
        (folder / file).unlink()
    folder.rmdir()
    sizes = np.unique(labels, return_counts=True)[1]
    return {
        "rows": len(labels),
        "classes": len(sizes),
        "rows of a class": {"least": int(sizes.min()), "mean": float(sizes.mean()), "most": int(sizes.max())},
        "warm-up of the peer, seconds": tried,
        "wait policy": best,
        "contestants": found,
        **summarize(found),
    }


def summarize(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Medians, their ratios to ours, the largest memory, and how far the peer's scores are from ours.

    Raises:
        SystemExit: the scores differ by more than near ties explain.
    """
    seconds = {name: statistics.median(run["seconds"] for run in runs) for name, runs in found.items()}
    differences = {
        name: {
            metric: abs(value - found["ours"][0]["scores"][metric])
            for metric, value in runs[0]["scores"].items()
            if metric in found["ours"][0]["scores"]
        }
        for name, runs in found.items()
        if name != "ours"
    }
    for name, difference in differences.items():
        if max(difference.values()) > TOLERANCE:
            sys.exit(f"{name}: scores differ from ours by {difference}; the comparison is void")
    return {
        "seconds": seconds,
        "times ours": {name: value / seconds["ours"] for name, value in seconds.items()},
        "peak_mib": {name: max(run["peak_mib"] for run in runs) for name, runs in found.items()},
        "scores": found["ours"][0]["scores"],
        "differences": differences,
    }


def _run(contestant: Contestant, folder: Path) -> dict[str, Any]:
    """One contestant in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if contestant.wait_policy != "unset":
        environment["OMP_WAIT_POLICY"] = contestant.wait_policy
    fields = {"kind": contestant.kind, "ks": contestant.ks, "wait_policy": contestant.wait_policy}
    command = [
        sys.executable,
        "-m",
        "benchmarks.training.evaluation",
        "--contestant",
        json.dumps(fields),
        "--set",
        str(folder),
    ]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    document: dict[str, Any] = json.loads(output)
    print(f"  {folder.name}: {fields}: {document['seconds']:.2f} s", file=sys.stderr, flush=True)
    return document


def _score(contestant: Contestant, folder: Path) -> dict[str, Any]:
    """Seconds, peak memory above the vectors, and scores; imports and reading come before the clock."""
    vectors, labels = np.load(folder / "vectors.npy"), np.load(folder / "labels.npy")
    prepare = {"ours": _prepare_ours, "peer": _prepare_peer}[contestant.kind]
    score = prepare(vectors, labels, tuple(contestant.ks))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _read_memory("VmRSS")
    start = time.perf_counter()
    scores = score()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_mib": (_read_memory("VmHWM") - before) / 1024, "scores": scores}


def _read_memory(field: str) -> int:
    """KiB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _prepare_ours(vectors: Vectors, labels: Labels, ks: tuple[int, ...]) -> Callable[[], dict[str, float]]:
    from index.evaluation.metrics import score_retrieval

    ids = np.arange(len(vectors))

    def score() -> dict[str, float]:
        found = score_retrieval(
            vectors, labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=ids, ks=ks
        )
        return {
            **{f"Recall@{k}": value for k, value in found.recall.items()},
            "MAP@R": float(found.average_precision.mean()),
            "R-precision": float(found.r_precision.mean()),
        }

    return score


def _prepare_peer(vectors: Vectors, labels: Labels, ks: tuple[int, ...]) -> Callable[[], dict[str, float]]:
    """With K, all metrics among as many neighbours as the largest class has; without, the first neighbour alone."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = dict(zip(PEER_METRICS, ("Recall@1", "R-precision", "MAP@R"), strict=True))
    calculator = AccuracyCalculator(
        include=PEER_METRICS if ks else PEER_METRICS[:1],
        k="max_bin_count" if ks else 1,
        device=torch.device("cpu"),
    )
    rows, classes = torch.from_numpy(vectors), torch.from_numpy(labels)

    def score() -> dict[str, float]:
        found = calculator.get_accuracy(rows, classes, rows, classes, ref_includes_query=True)
        return {names[metric]: float(value) for metric, value in found.items()}

    return score


def _write_table(name: str, result: Mapping[str, Any]) -> str:
    size = result["rows of a class"]
    scores = ", ".join(f"{metric} {value:.4f}" for metric, value in result["scores"].items())
    rows = [
        (
            contestant, f"{seconds:.1f}", f"{result['times ours'][contestant]:.2f}",
            f"{result['peak_mib'][contestant]:,.0f}",
            f"{max(result['differences'].get(contestant, {'': 0.0}).values()):.1e}",
        )
        for contestant, seconds in result["seconds"].items()
    ]  # fmt: skip
    head = ["", "seconds", "times ours", "MiB above the vectors", "largest difference of a score"]
    title = (
        f"{name}: {result['rows']:,} vectors, {result['classes']:,} classes of {size['least']} to {size['most']}"
    )
    return f"{title}; {scores}\n\n{format_table(head, rows)}"


if __name__ == "__main__":
    main()
