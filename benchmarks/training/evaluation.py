"""What it costs to score a whole test set: time and memory beside pytorch-metric-learning, and equal scores."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common.processes import run_alone
from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table

MODULE = "benchmarks.training.evaluation"
VIEWS = 5  # crops of a photo
SOP_ROWS, SOP_CLASSES = 60_502, 11_316  # Stanford Online Products, its test half
LARGE_CLASSES = (4, 5, 5)  # parts by the first, second and third dimension
SOP_KS = (1, 10, 100, 1000)
PEER_METRICS = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
SETS = ("small", "large")
WAIT_POLICIES = ("PASSIVE", "unset")
TOLERANCE = 1e-4  # float32 sums leave near ties in any order

Vectors = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the sets, let the contestants take turns, compare and record."""
    options = _read_options(arguments)
    if options.contestant:
        print(json.dumps(_score(**json.load(sys.stdin))))
        return
    with ending_in_words("evaluation"):
        options.out.mkdir(parents=True, exist_ok=True)
        vectors = load_crops(options.vectors, rows=options.rows, width=options.width, seed=options.seed)
        print_machine([options.seed])
        small, large = make_small_classes(len(vectors), seed=options.seed), make_large_classes(vectors)
        results = {
            f"{name} classes": _compare(options, name, vectors, labels)
            for name, labels in (("small", small), ("large", large))
            if name in (options.classes or SETS)
        }
        table = "\n\n".join(_write_table(name, result) for name, result in results.items())
        print(table)
        (options.out / "table.md").write_text(table + "\n")
        settings = {name: value for name, value in vars(options).items() if name != "contestant"}
        write_record(options.out / "record.json", settings=settings, results=results)


def _read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, help="folder of the record and the table")
    add("--vectors", type=Path, help="folder that benchmarks.ann.vectors keeps its vectors in")
    add("--rows", type=int, default=SOP_ROWS, help="vectors that are scored (default: %(default)s)")
    add("--width", type=int, default=512, help="numbers of a vector (default: %(default)s)")
    add("--rounds", type=int, default=3, help="turns of each contestant (default: %(default)s)")
    add("--seed", type=int, default=0)
    add("--classes", action="append", choices=SETS, help="may be repeated; default both")
    add("--contestant", action="store_true", help=argparse.SUPPRESS)  # what `_score` takes is on stdin
    options = parser.parse_args(arguments)
    if not options.contestant:
        if options.out is None or options.vectors is None:
            parser.error("--out and --vectors are needed")
        if options.rounds < 1 or options.rows < 100:
            parser.error("--rounds must be at least 1 and --rows at least 100")
    return options


def load_crops(folder: Path, *, rows: int, width: int, seed: int) -> Vectors:
    """(rows, width) unit float32: all crops of some photos, a photo's own one after the other."""
    tables = sorted(folder.glob(f"coefficients-{VIEWS}-*.npy"))
    if not tables:
        from benchmarks.ann.vectors import WIDEST, load_vectors

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
        ordered = [group[np.argsort(photos[group, dimension], kind="stable")] for group in groups]
        groups = [part for group in ordered for part in np.array_split(group, parts)]
    labels = np.empty(len(photos), dtype=np.int64)
    for label, group in enumerate(groups):
        labels[group] = label
    return np.repeat(labels, [len(part) for part in np.array_split(np.arange(len(vectors)), len(photos))])


def _compare(options: argparse.Namespace, name: str, vectors: Vectors, labels: Labels) -> dict[str, Any]:
    """Every contestant on one set, in turns; the set is shuffled, so that rows say nothing of labels.

    The peer's wait policy is the best of a warm-up.
    """
    folder = options.out / name
    folder.mkdir(exist_ok=True)
    order = np.random.default_rng(options.seed + 2).permutation(len(vectors))
    np.save(folder / "vectors.npy", vectors[order])
    np.save(folder / "labels.npy", labels[order])
    tried = {policy: _run(folder, "peer", wait_policy=policy)["seconds"] for policy in WAIT_POLICIES}
    best = min(tried, key=lambda policy: tried[policy])
    contestants: dict[str, dict[str, Any]] = {
        "ours": {"kind": "ours"},
        "pytorch-metric-learning": {"kind": "peer", "wait_policy": best},
    }
    if name == "small":
        contestants[f"ours, K = {', '.join(map(str, SOP_KS))}"] = {"kind": "ours", "ks": SOP_KS}
        alone = {"kind": "peer", "ks": (), "wait_policy": best}
        contestants["pytorch-metric-learning, precision_at_1 alone"] = alone
    found: dict[str, list[dict[str, Any]]] = {contestant: [] for contestant in contestants}
    for _ in range(options.rounds):
        for contestant, chosen in contestants.items():
            found[contestant].append(_run(folder, **chosen))
    shutil.rmtree(folder)
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
    ours, differences = found["ours"][0]["scores"], {}
    for name in [each for each in found if each != "ours"]:
        theirs = found[name][0]["scores"]
        differences[name] = {metric: abs(theirs[metric] - ours[metric]) for metric in theirs if metric in ours}
        if max(differences[name].values()) > TOLERANCE:
            sys.exit(f"{name}: scores differ from ours by {differences[name]}; the comparison is void")
    return {
        "seconds": seconds,
        "times ours": {name: value / seconds["ours"] for name, value in seconds.items()},
        "peak_mib": {name: max(run["peak_mib"] for run in runs) for name, runs in found.items()},
        "scores": ours,
        "differences": differences,
    }


def _run(folder: Path, kind: str, ks: tuple[int, ...] = (1,), wait_policy: str = "unset") -> dict[str, Any]:
    """One contestant in a process of its own."""
    settings = {"kind": kind, "ks": ks, "folder": folder}
    failing = f"{kind} exited with {{}}"
    document = run_alone(MODULE, "--contestant", settings=settings, failing=failing, wait_policy=wait_policy)
    told = {"kind": kind, "ks": ks, "wait_policy": wait_policy}
    print(f"  {folder.name}: {told}: {document['seconds']:.2f} s", file=sys.stderr, flush=True)
    return document


def _score(kind: str, ks: Sequence[int], folder: str) -> dict[str, Any]:
    """Seconds, peak memory above the vectors, and scores; imports and reading come before the clock.

    Args:
        kind: `ours` or `peer`.
        ks: of Recall@K, or of the peer's neighbours.
        folder: of `vectors.npy` and `labels.npy`.
    """
    vectors, labels = (np.load(Path(folder) / f"{name}.npy") for name in ("vectors", "labels"))
    score = {"ours": _prepare_ours, "peer": _prepare_peer}[kind](vectors, labels, tuple(ks))
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
    from index.evaluation.metrics import Labelled, score_retrieval

    images = Labelled(vectors, labels, np.arange(len(vectors)))

    def score() -> dict[str, float]:
        found = score_retrieval(images, images, ks=ks)
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
    include, k = (PEER_METRICS, "max_bin_count") if ks else (PEER_METRICS[:1], 1)
    calculator = AccuracyCalculator(include=include, k=k, device=torch.device("cpu"))
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
            contestant,
            f"{seconds:.1f}",
            f"{result['times ours'][contestant]:.2f}",
            f"{result['peak_mib'][contestant]:,.0f}",
            f"{max(result['differences'].get(contestant, {'': 0.0}).values()):.1e}",
        )
        for contestant, seconds in result["seconds"].items()
    ]
    head = ["", "seconds", "times ours", "MiB above the vectors", "largest difference of a score"]
    sizes = f"{result['classes']:,} classes of {size['least']} to {size['most']}"
    return f"{name}: {result['rows']:,} vectors, {sizes}; {scores}\n\n{format_table(head, rows)}"


if __name__ == "__main__":
    main()
