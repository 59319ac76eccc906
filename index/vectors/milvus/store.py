"""The store of vectors that is a collection of a Milvus server; a version's folder has the ids of its rows.

Versions share a collection: a row, once written, stays as it is, so a version is the rows up to its last id without
those that are no members any more. Answers are ranked here, exactly, from the vectors of the server's candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.errors import GalleryDamagedError, InputError
from index.vectors.ann_building import find_reason_for_flat
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.vectors.exact import measure_cosines
from index.vectors.files import read_deleted
from index.vectors.kinds import KINDS, count_lists
from index.vectors.milvus.collection import MOST_FOUND, MOST_LISTED, Collection, Server, batches
from index.vectors.shards import HeldVectors, read_ids
from index.vectors.stores import Published, WriterTask
from index.versions.manifest import Manifest, Version, part_folder

IDS_NAME = "ids/00000.npy"
_SPARE_CANDIDATES = 16
_SPARE_SHARE = 1.5  # how many candidates more than a filter would let through if it were independent of the query
_SCORE_NOISE = 1e-5  # as `search.VectorSearch` allows for
_MOST_SCORE = 1.1  # above every cosine

Ranked = tuple[Floats, Ids]


@dataclass(frozen=True, slots=True)
class MilvusPlan:
    """A kind of index as Milvus has it.

    Attributes:
        type: Milvus's name of it.
        build: what it is built with, of so many vectors.
        effort: Milvus's name of how hard it looks; empty where it looks at all.
        efforts: worth measuring, rising.
        bytes_of_number: that it keeps in memory for each number of a vector.
        keeps_effort: whether the effort is a number of candidates, at least as many as are wanted.
    """

    type: str
    build: Callable[[int], Mapping[str, int]]
    effort: str
    efforts: tuple[int, ...]
    bytes_of_number: int
    keeps_effort: bool

    def scale(self, parameters: Mapping[str, int], *, depth: int) -> Mapping[str, int]:
        """The parameters of a search for so many candidates."""
        if not self.effort:
            return {}
        effort = parameters[self.effort]
        return {self.effort: max(effort, depth) if self.keeps_effort else effort}


PLANS: Mapping[str, MilvusPlan] = {
    "flat": MilvusPlan("FLAT", lambda count: {}, "", (), 4, False),
    "hnsw": MilvusPlan(
        "HNSW", lambda count: {"M": 24, "efConstruction": 200}, "ef", (32, 64, 128, 256, 512, 1024), 4, True
    ),
    "ivf": MilvusPlan(
        "IVF_SQ8", lambda count: {"nlist": count_lists(count)}, "nprobe", (4, 8, 16, 32, 64, 128, 256), 1, False
    ),
}
"""By the names of `index.vectors.kinds`."""


def choose_kind(count: int, config: AnnConfig) -> tuple[str, str]:
    """The kind of index that so many vectors get, and why."""
    if config.kind is not None and config.kind.name not in PLANS:
        raise InputError(
            f"index_type {config.index_type}: a gallery in Milvus has one of {', '.join(PLANS)}; give another "
            "--index-type"
        )
    reason = find_reason_for_flat(count, config)
    if reason is not None:
        return "flat", reason
    if config.kind is not None:
        return config.kind.name, "asked for"
    if count <= KINDS["hnsw"].most_rows:
        return "hnsw", "the fastest of those that Milvus builds"
    return "ivf", "a graph would take too much memory, or hours to build"


@dataclass(frozen=True, slots=True)
class ChosenIds:
    """Some members, and the expressions that together keep just them, which list so many ids."""

    ids: Ids
    expressions: Sequence[str]
    listed: int

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """(m,) bool: which of (m,) int64 ids are among them."""
        places = np.searchsorted(self.ids, ids)
        found: npt.NDArray[np.bool_] = places < len(self.ids)
        found[found] = self.ids[places[found]] == ids[found]
        return found


class MilvusRows:
    """The rows of a collection that a version knows of; the server is asked when their vectors are read.

    Attributes:
        ids: (N,) int64 rising ids of all stored rows.
        gone: (n,) int64 rising ids of those that are no members.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self.ids = read_ids(folder / IDS_NAME)

    @cached_property
    def gone(self) -> Ids:
        return read_deleted(self._folder, self._manifest)

    @cached_property
    def collection(self) -> Collection:
        """Their collection, checked only as to its server."""
        manifest = self._manifest
        assert manifest.store is not None
        return Collection(Server(manifest.store["uri"]), manifest.index["collection"], manifest.embedding_dim)

    @property
    def last(self) -> int:
        """The last id."""
        return int(self.ids[-1])

    def check(self) -> None:
        """Raise GalleryError where the collection is missing, half written or of another model."""
        self.collection.check(model_sha256=self._manifest.model_sha256, last=self.last, count=len(self.ids))

    def express(self, gone: Ids) -> str:
        """The expression that keeps all rows but some."""
        return f"id <= {self.last}" + (f" and id not in {gone.tolist()}" if len(gone) else "")

    def read(self) -> MilvusRows:
        return self

    def __getitem__(self, positions: Ids) -> Vectors:
        return self.collection.gather(self.ids[positions])


class MilvusStore:
    """The `VectorStore` of a part of a version whose vectors are in Milvus; the server's threads search.

    Attributes:
        ids: (N,) int64 of the members, rising.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Connect, and check the collection against the version."""
        self._rows, self._index = MilvusRows(folder, manifest), manifest.index
        self.ids: Ids = np.setdiff1d(self._rows.ids, self._rows.gone, assume_unique=True)
        self._collection = self._rows.collection
        self._rows.check()
        self._plan = PLANS[self._index["type"]]
        self._is_exact = KINDS[self._index["type"]].is_exact

    def search(
        self,
        queries: Vectors,
        *,
        k: int,
        among: ChosenIds | None = None,
        exclude_ids: Ids | None = None,
        effort: Mapping[str, int] | None = None,
        threads: int = 1,
    ) -> tuple[Floats, Ids]:
        """As `VectorStore.search`: more candidates are asked for until those that count are surely among them.

        What many ids keep is first looked for among the candidates of all members: to read the id of a list takes the
        server about as long as to find a candidate.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        total = len(self.ids if among is None else among.ids)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        ids = np.full((len(queries), k), NO_ID, dtype=np.int64)
        wanted = min(total, k + (exclude_ids is not None))
        depth, left = min(total, wanted + _SPARE_CANDIDATES), np.arange(len(queries))
        of_all = int(_SPARE_SHARE * (wanted + _SPARE_CANDIDATES) * len(self.ids) / max(1, total)) + 1
        is_first = among is not None and of_all < min(MOST_FOUND, among.listed)
        parameters = effort or self._index["parameters"]
        while len(left) and depth:
            if is_first and among is not None:
                found, unsure = self._filter(queries[left], among, wanted, of_all, parameters)
            elif depth > MOST_FOUND:
                found, unsure = self._scan_all(queries[left], among, wanted), np.zeros(len(left), dtype=bool)
            else:
                found = self._ask(queries[left], among, depth, parameters)
                unsure = np.array([self._is_unsure(near, wanted, depth, total) for near, _ in found])
            for row, (near, near_ids) in zip(left.tolist(), found, strict=True):
                other = slice(None) if exclude_ids is None else near_ids != exclude_ids[row]
                near, near_ids = rank(near[other], near_ids[other], k=k)
                scores[row, : len(near)], ids[row, : len(near)] = near, near_ids
            left = left[unsure]
            if not is_first:
                depth = min(total, max(4 * depth, depth + 1)) if depth < total else MOST_FOUND + 1
            is_first = False
        return scores, ids

    def _is_unsure(self, scores: Floats, wanted: int, depth: int, total: int) -> bool:
        """Whether too few were found, or more may be as near as the last that is wanted."""
        if len(scores) < min(depth, total):
            return len(scores) < wanted
        ranked = -np.sort(-scores)
        return self._is_exact and depth < total and bool(ranked[-1] >= ranked[wanted - 1] - _SCORE_NOISE)

    def _express(self, among: ChosenIds | None) -> Sequence[str]:
        return [self._rows.express(self._rows.gone)] if among is None else among.expressions

    def _ask(
        self, queries: Vectors, among: ChosenIds | None, depth: int, parameters: Mapping[str, int]
    ) -> list[Ranked]:
        """For each query scores and ids of candidates."""
        found = _nobody(queries)
        for expression in self._express(among):
            answers = self._collection.search(
                queries, limit=depth, expression=expression, parameters=self._plan.scale(parameters, depth=depth)
            )
            for row, (_, ids, vectors) in enumerate(answers):
                found[row] = _join(found[row], (measure_cosines(vectors, queries[row]), ids))
        return found

    def _scan_all(self, queries: Vectors, among: ChosenIds | None, keep: int) -> list[Ranked]:
        """For each query the best of all vectors, which are read for that."""
        found = _nobody(queries)
        for ids, vectors in self._read(self.ids if among is None else among.ids):
            for row, query in enumerate(queries):
                found[row] = rank(*_join(found[row], (measure_cosines(vectors, query), ids)), k=keep)
        return found

    def _filter(
        self, queries: Vectors, among: ChosenIds, wanted: int, depth: int, parameters: Mapping[str, int]
    ) -> tuple[list[Ranked], npt.NDArray[np.bool_]]:
        """For each query the best of those candidates of all members that are chosen, and whether more are needed."""
        answers = self._collection.search(
            queries,
            limit=depth,
            expression=self._rows.express(self._rows.gone),
            parameters=self._plan.scale(parameters, depth=depth),
            with_vectors=False,
        )
        most = wanted + _SPARE_CANDIDATES
        found: list[Ranked] = []
        unsure = np.zeros(len(queries), dtype=bool)
        for row, (near, ids, _) in enumerate(answers):
            chosen = among.has(ids)
            kept, kept_ids = rank(near[chosen], ids[chosen], k=most)
            unsure[row] = len(kept) < wanted
            if self._is_exact and not unsure[row]:
                # What was not kept is no nearer than the last that was, nor what was not listed than the last that was.
                bound = kept[-1] if len(kept) == most else near.min()
                unsure[row] = kept[wanted - 1] <= bound + _SCORE_NOISE
            found.append((measure_cosines(self.gather(kept_ids), queries[row]), kept_ids))
        return found, unsure

    def search_above(
        self, queries: Vectors, *, min_score: float, among: ChosenIds | None = None, exclude_ids: Ids | None = None
    ) -> list[Ranked]:
        """As `VectorStore.search_above`: asked of a server that compares all vectors, else all vectors are read."""
        found, left = _nobody(queries), list(range(len(queries)))
        if self._is_exact:
            wanted = {"radius": min_score - _SCORE_NOISE, "range_filter": _MOST_SCORE}
            answers = [
                self._collection.search(queries, limit=MOST_FOUND, expression=expression, parameters=wanted)
                for expression in self._express(among)
            ]
            left = [row for row in left if any(len(answer[row][1]) == MOST_FOUND for answer in answers)]
            for row in set(range(len(queries))) - set(left):
                for answer in answers:
                    _, ids, vectors = answer[row]
                    found[row] = _join(found[row], (measure_cosines(vectors, queries[row]), ids))
        if left:
            for ids, vectors in self._read(self.ids if among is None else among.ids):
                near = queries[left] @ vectors.T >= min_score - _SCORE_NOISE
                for row, some in zip(left, near, strict=True):
                    found[row] = _join(found[row], (measure_cosines(vectors[some], queries[row]), ids[some]))
        for row, (scores, ids) in enumerate(found):
            kept = scores >= min_score
            if exclude_ids is not None:
                kept &= ids != exclude_ids[row]
            found[row] = rank(scores[kept], ids[kept], k=len(ids))
        return found

    def choose(self, ids: Ids) -> ChosenIds:
        chosen = np.intersect1d(ids, self.ids)
        others = np.setdiff1d(self._rows.ids, chosen, assume_unique=True)
        if len(others) < min(len(chosen), MOST_LISTED):
            return ChosenIds(chosen, [self._rows.express(others)], len(others))
        expressions = [f"id in {part.tolist()}" for part in batches(chosen, MOST_LISTED)]
        return ChosenIds(chosen, expressions, len(chosen))

    def gather(self, ids: Ids) -> Vectors:
        return self._collection.gather(ids)

    def scan(self) -> Iterator[tuple[Ids, Vectors]]:
        return self._read(self.ids)

    def _read(self, ids: Ids) -> Iterator[tuple[Ids, Vectors]]:
        return ((part, self.gather(part)) for part in batches(ids, self._collection.rows_at_once))

    def count_beside(self) -> int:
        """As `VectorStore.count_beside`: none, for the server keeps the index."""
        return 0


open_vectors = MilvusStore  # as `StoreKind` has it


def hold(folder: Path, manifest: Manifest) -> Sequence[HeldVectors]:
    return [MilvusRows(folder, manifest)]


def hold_intact(folder: Path, manifest: Manifest, names: Container[str]) -> Sequence[HeldVectors]:
    """As `StoreKind.hold_intact`: nothing where the collection has not all rows."""
    if IDS_NAME not in names:
        return []
    held = MilvusRows(folder, manifest)
    try:
        held.check()
    except GalleryDamagedError:
        return []
    return [held]


def publish(task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
    from index.vectors.milvus.writer import publish

    return publish(task, new, deleted, base)


def check(store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig) -> None:
    """As `StoreKind.check`: the server answers, and has what the base has."""
    choose_kind(count, config)
    Server(store.uri)
    if base is not None:
        manifest = Manifest.read(base)
        for output in manifest.outputs:
            MilvusStore(part_folder(base.folder, output), manifest.part(output))


def tidy(gallery: Path, manifest: Manifest) -> None:
    from index.vectors.milvus.writer import tidy

    tidy(gallery, manifest)


def rank(scores: Floats, ids: Ids, *, k: int) -> Ranked:
    """The k best of (n,) candidates, of equals the smaller id first."""
    order = np.lexsort((ids, -scores))[:k]
    return scores[order], ids[order]


def _nobody(queries: Vectors) -> list[Ranked]:
    return [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)


def _join(first: Ranked, second: Ranked) -> Ranked:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
