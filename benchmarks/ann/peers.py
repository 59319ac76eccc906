"""Contestants of `benchmarks.ann`: our index, hnswlib, usearch and faiss, each built, written and read its own way."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np

from benchmarks.ann.truth import NEIGHBOURS
from index.arrays import NO_ID, Ids, Mask, Vectors
from index.faiss_library import faiss_threads
from index.vectors.ann_building import build_ann_index
from index.vectors.ann_config import AnnConfig
from index.vectors.search import VectorSearch
from index.vectors.shards import SHARD_ROWS, VectorRows

OURS = "ours"
EFFORTS = (10, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384)  # candidates that a graph's search keeps
FILTERED_EFFORTS = (16, 64, 256, 1024)
EF_CONSTRUCTION = 200

Parameters = Mapping[str, Any]
Find = Callable[[Vectors], Any]  # (n, D) queries to what the library gives; `as_ids` reads it


class Opened(Protocol):
    """An index that was read; `filtered_points` are empty where the library has no filter."""

    points: Sequence[Parameters]
    filtered_points: Sequence[Parameters]

    def prepare(self, point: Parameters, *, threads: int, allowed: Mask | None = None) -> Find:
        """How to find the 10 nearest with some parameters, among the rows that a filter keeps."""
        ...


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to build an index with a library of `LIBRARIES`; those of one family share a front."""

    name: str
    family: str
    library: str
    settings: Parameters

    def load(self, base: Path) -> Any:
        """The rows of an `.npy` file as `build` takes them."""
        return map_shards(base) if self.library == OURS else np.load(base)

    def build(self, rows: Any, folder: Path, *, threads: int) -> None:
        """Build and write into a folder."""
        LIBRARIES[self.library].build(rows, folder, self.settings, threads)

    def open(self, base: Path, folder: Path) -> Opened:
        """Read what was written."""
        return LIBRARIES[self.library](base, folder, self.settings)


def list_contestants(index_type: str) -> list[Contestant]:
    """Ours, and the peers."""
    usearch = (("f32", 16, "ip"), ("f32", 32, "ip"), ("bf16", 16, "ip"), ("i8", 16, "cos"))
    return [
        Contestant(OURS, OURS, OURS, {"index_type": index_type}),
        *(Contestant(f"hnswlib M={m}", "hnswlib", "hnswlib", {"m": m}) for m in (16, 32)),
        *(
            Contestant(f"usearch {dtype} {m}", "usearch", "usearch", {"dtype": dtype, "m": m, "metric": metric})
            for dtype, m, metric in usearch
        ),
        Contestant("faiss HNSW32,Flat", "faiss HNSW", "faiss", {"factory": "HNSW32,Flat"}),
    ]


def as_ids(found: Any, *, count: int) -> Ids:
    """(count, 10) int64 ids of what a search gave, -1 where it gave fewer."""
    ids = np.full((count, NEIGHBOURS), NO_ID, dtype=np.int64)
    given = np.asarray(found).astype(np.int64).reshape(count, -1)
    ids[:, : given.shape[1]] = given
    return ids


class Ours:
    """The project's own index, chosen and tuned by itself."""

    filtered_points: Sequence[Parameters] = ({},)

    def __init__(self, base: Path, folder: Path, settings: Parameters) -> None:
        self.described = json.loads((folder / "described.json").read_text())
        self._folder, self._shards = folder, map_shards(base)
        self.points = [point["parameters"] for point in self.described.get("curve") or [{"parameters": {}}]]

    @staticmethod
    def build(shards: Sequence[VectorRows], folder: Path, settings: Parameters, threads: int) -> None:
        described = build_ann_index(shards, config=AnnConfig(**settings), folder=folder)
        (folder / "described.json").write_text(json.dumps(described))

    def prepare(self, point: Parameters, *, threads: int, allowed: Mask | None = None) -> Find:
        described = {**self.described, **({"parameters": dict(point)} if point else {})}
        search = VectorSearch.open(self._shards, folder=self._folder, described=described)
        kept = None if allowed is None else search.subset(np.flatnonzero(allowed))  # row numbers are the ids
        return lambda rows: search.search(rows, k=NEIGHBOURS, threads=threads, among=kept)[1]


class Faiss:
    """A graph of faiss by its factory's name."""

    points: Sequence[Parameters] = tuple({"efSearch": effort} for effort in EFFORTS)
    filtered_points: Sequence[Parameters] = tuple({"efSearch": effort} for effort in FILTERED_EFFORTS)

    def __init__(self, base: Path, folder: Path, settings: Parameters) -> None:
        self._index = faiss.read_index(str(folder / "index.faiss"))

    @staticmethod
    def build(rows: Vectors, folder: Path, settings: Parameters, threads: int) -> None:
        index: Any = faiss.index_factory(rows.shape[1], settings["factory"], faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        with faiss_threads(threads):
            index.add(rows)
        faiss.write_index(index, str(folder / "index.faiss"))

    def prepare(self, point: Parameters, *, threads: int, allowed: Mask | None = None) -> Find:
        chosen = dict(point)
        if allowed is not None:
            chosen["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        parameters = faiss.SearchParametersHNSW(**chosen)

        def find(queries: Vectors) -> Any:
            with faiss_threads(threads):
                return self._index.search(queries, NEIGHBOURS, params=parameters)[1]

        return find


class Hnswlib:
    """The reference implementation of HNSW."""

    points: Sequence[Parameters] = tuple({"ef": effort} for effort in EFFORTS)
    filtered_points: Sequence[Parameters] = tuple({"ef": effort} for effort in FILTERED_EFFORTS)

    def __init__(self, base: Path, folder: Path, settings: Parameters) -> None:
        width = np.load(base, mmap_mode="r").shape[1]
        self._index = import_peer("hnswlib").Index("ip", width)
        self._index.load_index(str(folder / "index.bin"))

    @staticmethod
    def build(rows: Vectors, folder: Path, settings: Parameters, threads: int) -> None:
        index = import_peer("hnswlib").Index("ip", rows.shape[1])
        index.init_index(len(rows), M=settings["m"], ef_construction=EF_CONSTRUCTION)
        index.add_items(rows, num_threads=threads)
        index.save_index(str(folder / "index.bin"))

    def prepare(self, point: Parameters, *, threads: int, allowed: Mask | None = None) -> Find:
        index = self._index
        index.set_ef(point["ef"])
        if allowed is None:
            return lambda queries: index.knn_query(queries, NEIGHBOURS, num_threads=threads)[0]
        kept = set(np.flatnonzero(allowed).tolist())

        def find(queries: Vectors) -> Any:
            try:
                return index.knn_query(queries, NEIGHBOURS, num_threads=1, filter=kept.__contains__)[0]
            except RuntimeError:  # its answer where it finds fewer than 10
                return np.empty((len(queries), 0))

        return find


class Usearch:
    """The graph of unum-cloud; its Python interface has no filter."""

    points: Sequence[Parameters] = tuple({"expansion": effort} for effort in EFFORTS)
    filtered_points: Sequence[Parameters] = ()

    def __init__(self, base: Path, folder: Path, settings: Parameters) -> None:
        self._index = _make_usearch(np.load(base, mmap_mode="r").shape[1], settings)
        self._index.load(folder / "index.usearch")

    @staticmethod
    def build(rows: Vectors, folder: Path, settings: Parameters, threads: int) -> None:
        index = _make_usearch(rows.shape[1], settings)
        index.add(np.arange(len(rows)), rows, threads=threads)
        index.save(folder / "index.usearch")

    def prepare(self, point: Parameters, *, threads: int, allowed: Mask | None = None) -> Find:
        index = self._index
        index.expansion_search = point["expansion"]

        def find(queries: Vectors) -> Any:  # a single row takes another way through the library
            return index.search(queries[0] if len(queries) == 1 else queries, NEIGHBOURS, threads=threads).keys

        return find


def _make_usearch(width: int, settings: Parameters) -> Any:
    chosen = {"metric": settings["metric"], "dtype": settings["dtype"], "connectivity": settings["m"]}
    return import_peer("usearch.index").Index(ndim=width, **chosen, expansion_add=128)


LIBRARIES: dict[str, Any] = {OURS: Ours, "faiss": Faiss, "hnswlib": Hnswlib, "usearch": Usearch}


def import_peer(module: str) -> Any:
    """A library that only the benchmark needs.

    Raises:
        SystemExit: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed; pip install '.[benchmarks]', or leave it out with --without")


def map_shards(base: Path) -> list[VectorRows]:
    """The rows of an `.npy` file as a gallery has them: mapped, in shards, numbered from 0."""
    rows = np.load(base, mmap_mode="r")
    starts = range(0, len(rows), SHARD_ROWS)
    return [VectorRows(np.arange(i, min(i + SHARD_ROWS, len(rows))), rows[i : i + SHARD_ROWS]) for i in starts]
