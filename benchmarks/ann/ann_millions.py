"""Ten million vectors written by the store, in a process of its own, and searched: told before, and measured.

Vectors are made around the real ones: each is one of them, moved along the difference of two others, so that they
spread as real ones do. Real ones that none was made of ask. `run_alone(__name__, STEP)` runs one of `STEPS`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ann.ann_bench import AnnBench
from benchmarks.ann.ann_truth import NEIGHBOURS, TIE
from benchmarks.common.alone import run_alone
from benchmarks.common.kept import keep
from benchmarks.common.processes import read_memory, sampling
from benchmarks.common.record import save_array
from benchmarks.common.tables import format_table
from index.arrays import Vectors
from index.faiss_library import faiss_threads
from index.images.preprocess import PreprocessConfig
from index.outputs import KIND
from index.threads import usable_cores
from index.vectors.ann_building import describe_building
from index.vectors.ann_choice import choose_ann
from index.vectors.ann_config import AnnConfig
from index.vectors.shards import VectorRows
from index.vectors.store import Publication, WriterTask
from index.vectors.store_config import StoreConfig
from index.vectors.stores import STORES, open_store
from index.versions.gallery_parts import make_mark
from index.versions.manifest import Manifest, describe_file

MODULE = "benchmarks.ann.ann_millions"
MOVED = 0.3  # of the difference of two others
QUERIES = 300
SAMPLE_SECONDS = 0.25
_ROWS_AT_ONCE = 1 << 18

Settings = Mapping[str, Any]


def measure_millions(bench: AnnBench, *, count: int, seed: int) -> dict[str, Any]:
    """What was told of the index, what building it took, and how it answers; each is kept as soon as it is known."""
    folder = bench.folder / f"{count}-around"
    folder.mkdir(exist_ok=True)
    rows = folder / "rows.npy"
    if not rows.exists():
        save_array(rows, _make_rows(bench.base, count=count, seed=seed))
    width = bench.base.shape[1]
    plan = choose_ann(count=count, width=width, config=AnnConfig())
    assert plan.building is not None
    told = describe_building(plan, count=count, cores=usable_cores())
    print(f"  {told}", file=sys.stderr, flush=True)
    settings = {"rows": rows, "queries": bench.folder / "queries.npy", "gallery": folder / "gallery"}
    truth, built, searched = (
        keep(
            folder / f"{step}.json",
            lambda step=step: run_alone(
                MODULE, step, settings=settings, failing=f"{step} exited with {{}}", wait_policy="PASSIVE"
            ),
        )
        for step in STEPS
    )
    return {
        "vectors": count, "width": width, "factory": plan.factory, "told": told,
        "told_memory_bytes": plan.building.memory_bytes, "told_disk_bytes": plan.building.disk_bytes,
        "told_core_seconds": plan.building.core_seconds, "exact": truth, "build": built, "search": searched,
    }  # fmt: skip


def _make_rows(base: Vectors, *, count: int, seed: int) -> Vectors:
    """(count, D) float32 unit rows around those of a base."""
    base, generator = np.array(base), np.random.default_rng(seed)
    rows = np.empty((count, base.shape[1]), dtype=np.float32)
    for start in range(0, count, _ROWS_AT_ONCE):
        size = min(_ROWS_AT_ONCE, count - start)
        some, one, other = generator.integers(len(base), size=(3, size))
        block = base[some] + np.float32(MOVED) * (base[one] - base[other])
        rows[start : start + size] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return rows


def find_exact(settings: Settings) -> dict[str, Any]:
    """The scores of the true neighbours of some queries, by a scan in float32."""
    import faiss

    rows, queries = np.load(settings["rows"], mmap_mode="r"), _read_queries(settings)
    started = time.perf_counter()
    with faiss_threads(usable_cores()):
        scores, _ = faiss.knn(queries, rows, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT)
    return {"seconds": time.perf_counter() - started, "least": scores[:, -1].tolist()}


def build(settings: Settings) -> dict[str, Any]:
    """Write the vectors as a version of a gallery, with an ANN index; seconds, and the process's peak of memory."""
    gallery, rows = Path(settings["gallery"]), np.load(settings["rows"], mmap_mode="r")
    version = gallery / "versions" / "000001"
    version.mkdir(parents=True)
    make_mark(gallery)
    ids, steps = np.arange(1, len(rows) + 1), dict[str, float]()

    def begin_step(name: str) -> Callable[[int, int], None]:
        begun = time.perf_counter()

        def tell(done: int, total: int) -> None:
            steps[name] = time.perf_counter() - begun
            if done == total or done % (1 << 20) < (1 << 14):
                print(f"  {name}: {done:,} of {total:,}, {steps[name]:.0f} s", file=sys.stderr, flush=True)

        return tell

    task = WriterTask(
        gallery, version, StoreConfig(), AnnConfig(), rows.shape[1], [VectorRows(ids, rows)], Publication(), "",
        _NoRows(), begin_step,
    )  # fmt: skip
    peaks = read_memory()

    def look() -> None:
        for kind, value in read_memory().items():
            peaks[kind] = max(peaks[kind], value)

    with sampling(look, every_s=SAMPLE_SECONDS):
        started, used = time.perf_counter(), time.process_time()
        published = STORES["files"].write(task).publish(ids, ids[:0], None)
        seconds, core_seconds = time.perf_counter() - started, time.process_time() - used
    (gallery / "index.json").write_text(json.dumps(published.index))
    return {
        "seconds": seconds, "core_seconds": core_seconds, "steps": steps, "peak": peaks,
        "disk_bytes": sum(path.stat().st_size for path in version.glob("*.*")), "described": published.index,
    }  # fmt: skip


class _NoRows:
    """No metadata of any row."""

    def read(self, ids: Any) -> dict[int, str | None]:
        return dict.fromkeys(ids.tolist())

    def find_changed(self) -> Any:
        return np.empty(0, np.int64)


def search(settings: Settings) -> dict[str, Any]:
    """Open the version, and ask it: recall against the exact scores, latencies one by one, memory that this adds."""
    gallery, queries = Path(settings["gallery"]), _read_queries(settings)
    version, described = gallery / "versions" / "000001", json.loads((gallery / "index.json").read_text())
    count = np.load(settings["rows"], mmap_mode="r").shape[0]
    manifest = Manifest(
        model_sha256="", preprocessing=PreprocessConfig(), embedding_dim=queries.shape[1],
        counts={"indexed": count, "deleted": 0}, next_id=count + 1, index=described,
        files={path.relative_to(version).as_posix(): describe_file(path) for path in version.rglob("*.*")},
        store=StoreConfig().describe(),
    )  # fmt: skip
    before, started = read_memory(), time.perf_counter()
    opened = open_store(version, manifest, KIND)
    opened.search(queries[:2], k=NEIGHBOURS)
    open_s, times, scores = time.perf_counter() - started, [], []
    for query in queries:
        started = time.perf_counter()
        scores.append(opened.search(query[None], k=NEIGHBOURS)[0])
        times.append(time.perf_counter() - started)
    started = time.perf_counter()
    opened.search(queries, k=NEIGHBOURS, threads=usable_cores())
    batch_s, after = time.perf_counter() - started, read_memory()
    least = json.loads((gallery.parent / "find_exact.json").read_text())["least"]
    right = np.concatenate(scores) >= np.array(least)[:, None] - TIE
    return {
        "queries": len(queries), "recall_at_10": float(right.mean()), "open_s": open_s,
        "median_ms": 1000 * float(np.median(times)), "p95_ms": 1000 * float(np.percentile(times, 95)),
        "queries_per_second_at_once": len(queries) / batch_s,
        "added": {kind: after[kind] - before[kind] for kind in before},
    }  # fmt: skip


def _read_queries(settings: Settings) -> Vectors:
    queries: Vectors = np.load(settings["queries"])[:QUERIES]
    return queries


def format_millions(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_millions`."""
    build, search = results["build"], results["search"]
    rows: Iterator[tuple[str, str, str]] = iter([
        ("memory, anonymous, at the peak", _gb(results["told_memory_bytes"]), _gb(build["peak"]["anonymous"])),
        ("the index on disk", _gb(results["told_disk_bytes"]), _gb(build["disk_bytes"])),
        (
            "core seconds (measured: with writing and measuring)", f"{results['told_core_seconds']:.0f}",
            f"{build['core_seconds']:.0f}",
        ),
        ("seconds", "", f"{build['seconds']:.0f}"),
        ("recall@10", f"{build['described']['recall_at_10']:.4f}", f"{search['recall_at_10']:.4f}"),
        ("ms a query alone, median / p95", "", f"{search['median_ms']:.2f} / {search['p95_ms']:.2f}"),
        ("queries/s at once", "", f"{search['queries_per_second_at_once']:.0f}"),
    ])  # fmt: skip
    title = f"## {results['vectors']:,} vectors, {results['width']}-d, {results['factory']}"
    return f"{title}\n\n{format_table(['', 'told', 'measured'], list(rows))}"


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


STEPS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "find_exact": find_exact,
    "build": build,
    "search": search,
}


if __name__ == "__main__":
    print(json.dumps(STEPS[sys.argv[1]](json.load(sys.stdin))))
