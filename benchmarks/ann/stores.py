"""What a store of vectors costs: the same drawn vectors written, opened and searched in files and in Milvus.

python -m benchmarks.ann.stores --uri http://localhost:19530 --rows 20000 --width 64
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from index.arrays import Ids
from index.faiss_library import let_threads_sleep
from index.filters.parser import parse_filter
from index.filters.to_milvus import make_fields
from index.images.preprocess import PreprocessConfig
from index.outputs import KIND
from index.vectors.ann_config import AnnConfig
from index.vectors.shards import VectorRows
from index.vectors.store import Among, Publication, VectorStore, WriterTask
from index.vectors.store_config import StoreConfig
from index.vectors.stores import STORES, open_store
from index.versions.gallery_parts import make_mark
from index.versions.manifest import Manifest, describe_file

_K = 10
_SINGLE, _BATCH = 200, 1000
_SHOPS = 20


class _Shops:
    """Rows whose only metadata is one of some shops."""

    def read(self, ids: Ids) -> dict[int, str | None]:
        column = parse_filter("shop = 0").column  # type: ignore[union-attr]
        return {key: make_fields([(column, key % _SHOPS)]) for key in ids.tolist()}

    def find_changed(self) -> Ids:
        return np.empty(0, np.int64)


def draw(count: int, *, width: int, seed: int) -> np.ndarray:
    """(count, width) float32 unit vectors around 500 centres."""
    centres = np.random.default_rng(0).normal(size=(500, width))
    random = np.random.default_rng(seed)
    rows = centres[random.integers(0, 500, size=count)] + 0.7 * random.normal(size=(count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def clock(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the answer."""
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


def time_ms(opened: VectorStore, queries: np.ndarray, among: Among | None) -> float:
    """The median milliseconds of a query alone."""
    times = [clock(partial(opened.search, query[None], k=_K, among=among))[0] for query in queries[:_SINGLE]]
    return 1000 * float(np.median(times))


def measure(folder: Path, store: StoreConfig, index_type: str, *, rows: int, width: int) -> dict[str, Any]:
    """One store with one kind of index."""
    make_mark(folder)
    version = folder / "versions" / "000001"
    version.mkdir(parents=True)
    ids, vectors = np.arange(1, rows + 1), draw(rows, width=width, seed=1)
    queries = draw(_BATCH, width=width, seed=2)
    task = WriterTask(
        folder, version, store, AnnConfig(index_type=index_type), width, [VectorRows(ids, vectors)], Publication(),
        "", _Shops(),
    )  # fmt: skip
    write_s, published = clock(lambda: STORES[store.store].write(task).publish(ids, ids[:0], None))
    manifest = Manifest(
        model_sha256="", preprocessing=PreprocessConfig(), embedding_dim=width,
        counts={"indexed": rows, "deleted": 0}, next_id=rows + 1, index=published.index,
        files={path.relative_to(version).as_posix(): describe_file(path) for path in version.rglob("*.*")},
        store=store.describe(),
    )  # fmt: skip
    open_s, opened = clock(lambda: open_store(version, manifest, KIND))
    opened.search(queries[:2], k=_K)
    where = parse_filter("shop < 10")
    half = opened.choose(ids[ids % _SHOPS < 10], where)
    truth = -np.sort(-(queries @ vectors.T), axis=1)[:, :_K]
    batch_s, (scores, _) = clock(lambda: opened.search(queries, k=_K))
    return {
        "store": store.store,
        "index": published.index["type"],
        "write_s": write_s,
        "open_s": open_s,
        "recall_at_10": float((scores >= truth - 1e-5).mean()),
        "ms_alone": time_ms(opened, queries, None),
        "ms_half_filtered": time_ms(opened, queries, half),
        "queries_per_s": _BATCH / batch_s,
        "range_ms": 1000 * clock(lambda: opened.search_above(queries[:1], min_score=0.5))[0],
        "read_all_s": clock(lambda: [len(part) for part, _ in opened.scan()])[0],
    }  # fmt: skip


@click.command()
@click.option("--uri", required=True, help="A Milvus server; its token is taken from RETRIEVAL_MILVUS_TOKEN.")
@click.option("--rows", default=20_000, show_default=True)
@click.option("--width", default=64, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the figures as JSON.")
def main(uri: str, rows: int, width: int, out: Path | None) -> None:
    """Write, open and search the same vectors in files and in Milvus."""
    let_threads_sleep()
    figures = []
    for index_type in ("flat", "hnsw"):
        for store in (StoreConfig(), StoreConfig("milvus", uri)):
            with tempfile.TemporaryDirectory() as folder:
                figures.append(measure(Path(folder), store, index_type, rows=rows, width=width))
            click.echo(json.dumps(figures[-1]))
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    if out is not None:
        out.write_text(json.dumps({"rows": rows, "width": width, **machine, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
