"""The store of vectors that is a collection of a Milvus server; a version's folder has the ids of its rows.

Versions share a collection: a row, once written, stays as it is, so a version is the rows up to its last id without
those that are no members any more. Answers are ranked here, exactly, from the vectors of the server's candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.errors import GalleryDamagedError
from index.filters.condition import Condition
from index.filters.to_milvus import write_milvus
from index.vectors.files import read_deleted
from index.vectors.kinds.registry import KINDS
from index.vectors.milvus.collection import MOST_FOUND, MOST_LISTED, Collection, batches, best
from index.vectors.milvus.plans import PLANS, scale
from index.vectors.milvus.server import Server
from index.vectors.products import measure_cosines
from index.vectors.shards import read_ids
from index.vectors.store import NO_IDS, Among, StoreFacts
from index.versions.manifest import Manifest

IDS_NAME, STALE_NAME = "ids/00000.npy", "stale.npy"
_SPARE_CANDIDATES = 16
_FEW = 256  # ids
_SCORE_NOISE = 1e-5  # as `search.VectorSearch` allows for
_MOST_SCORE = 1.1  # above every cosine


@dataclass(frozen=True, slots=True)
class ChosenIds:
    """Some members, and the expressions that together keep just them."""

    ids: Ids
    expressions: Sequence[str]

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """(m,) bool: which of (m,) int64 ids are among them."""
        return np.isin(ids, self.ids)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a collection that a version knows of.

    Attributes:
        stored: (N,) int64 rising ids.
        gone: (n,) int64 rising ids of those that are no members.
        stale: (m,) int64 rising ids of those whose fields are not what the catalogue says.
    """

    stored: Ids
    gone: Ids
    stale: Ids

    @classmethod
    def read(cls, folder: Path, manifest: Manifest) -> Rows:
        """Those of the part of a version."""
        stale = read_ids(folder / STALE_NAME) if STALE_NAME in manifest.files else np.empty(0, np.int64)
        return cls(read_ids(folder / IDS_NAME), read_deleted(folder, manifest), stale)

    @property
    def last(self) -> int:
        """The last id."""
        return int(self.stored[-1])

    @property
    def expression(self) -> str:
        """Keeps the members."""
        return f"id <= {self.last}" + (f" and id not in {self.gone.tolist()}" if len(self.gone) else "")


def open_collection(manifest: Manifest) -> Collection:
    """The collection of a part of a manifest, checked only as to its server.

    Raises:
        GalleryError: the server does not answer.
    """
    assert manifest.store is not None
    return Collection(Server(manifest.store["uri"]), manifest.index["collection"], manifest.embedding_dim)


class MilvusStore:
    """The `VectorStore` of a part of a version whose vectors are in Milvus.

    Attributes:
        ids: (N,) int64 of the members, rising.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Connect, and check the collection against the version.

        Raises:
            GalleryError: the server does not answer, or the collection is missing, half written or of another model.
        """
        self._rows, self._index = Rows.read(folder, manifest), manifest.index
        self.ids: Ids = np.setdiff1d(self._rows.stored, self._rows.gone, assume_unique=True)
        self._collection = open_collection(manifest)
        self._collection.check(
            model_sha256=manifest.model_sha256, last=self._rows.last, count=len(self._rows.stored)
        )
        self._is_exact = KINDS[self._index["type"]].is_exact

    def search(
        self,
        queries: Vectors,
        *,
        k: int,
        among: Among | None = None,
        exclude_ids: Ids | None = None,
        effort: Mapping[str, int] | None = None,
        threads: int = 1,
    ) -> tuple[Floats, Ids]:
        """As `VectorStore.search`; the server's threads search."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        expressions, total = self._expressions(among), len(self.ids if among is None else among.ids)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        ids = np.full((len(queries), k), NO_ID, dtype=np.int64)
        excluded = np.full(len(queries), NO_ID) if exclude_ids is None else exclude_ids
        wanted = min(total, k + (exclude_ids is not None))
        depth, left = min(total, wanted + _SPARE_CANDIDATES), np.arange(len(queries))
        while len(left) and depth:
            if depth > MOST_FOUND:
                found = self._scan(queries[left], among=among, keep=wanted)
            else:
                found = self._ask(queries[left], depth=depth, expressions=expressions, effort=effort)
            unsure = np.zeros(len(left), dtype=bool)
            for place, (row, (near, near_ids)) in enumerate(zip(left.tolist(), found, strict=True)):
                unsure[place] = depth <= MOST_FOUND and self._is_unsure(
                    near, wanted=wanted, depth=depth, total=total
                )
                other = near_ids != excluded[row]
                near, near_ids = best(near[other], near_ids[other], k=k)
                scores[row, : len(near)], ids[row, : len(near)] = near, near_ids
            left, depth = left[unsure], min(total, max(4 * depth, depth + 1)) if depth < total else MOST_FOUND + 1
        return scores, ids

    def _is_unsure(self, scores: Floats, *, wanted: int, depth: int, total: int) -> bool:
        """Whether too few were found, or more may be as near as the last that is wanted."""
        if len(scores) < min(depth, total):
            return len(scores) < wanted
        ranked = -np.sort(-scores)
        return self._is_exact and depth < total and bool(ranked[-1] >= ranked[wanted - 1] - _SCORE_NOISE)

    def _expressions(self, among: Among | None) -> Sequence[str]:
        if among is None:
            return [self._rows.expression]
        assert isinstance(among, ChosenIds), "chosen by another store"
        return among.expressions

    def _ask(
        self, queries: Vectors, *, depth: int, expressions: Sequence[str], effort: Mapping[str, int] | None
    ) -> list[tuple[Floats, Ids]]:
        """For each query scores and ids of candidates."""
        plan = PLANS[self._index["type"]]
        parameters = scale(plan, effort or self._index["parameters"], depth=depth)
        found: list[tuple[Floats, Ids]] = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)
        for expression in expressions:
            part = self._collection.search(queries, limit=depth, expression=expression, parameters=parameters)
            found = [
                _join(known, (measure_cosines(vectors, query), ids))
                for known, query, (ids, vectors) in zip(found, queries, part, strict=True)
            ]
        return found

    def _scan(self, queries: Vectors, *, among: Among | None, keep: int) -> list[tuple[Floats, Ids]]:
        """For each query the best of all vectors, which are read for that."""
        found: list[tuple[Floats, Ids]] = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)
        for ids, vectors in self._read(self.ids if among is None else among.ids):
            found = [
                best(*_join(known, (measure_cosines(vectors, query), ids)), k=keep)
                for known, query in zip(found, queries, strict=True)
            ]
        return found

    def search_above(
        self, queries: Vectors, *, min_score: float, among: Among | None = None, exclude_ids: Ids | None = None
    ) -> list[tuple[Floats, Ids]]:
        """As `VectorStore.search_above`: asked of a server that compares all vectors, else all vectors are read."""
        excluded = np.full(len(queries), NO_ID) if exclude_ids is None else exclude_ids
        found: list[list[tuple[Floats, Ids]]] = [[] for _ in queries]
        for number, part in self._find_near(queries, min_score=min_score, among=among):
            found[number].append(part)
        results: list[tuple[Floats, Ids]] = []
        for number, parts in enumerate(found):
            scores = np.concatenate([np.empty(0, np.float32), *(scores for scores, _ in parts)])
            ids = np.concatenate([np.empty(0, np.int64), *(ids for _, ids in parts)])
            kept = (scores >= min_score) & (ids != excluded[number])
            results.append(best(scores[kept], ids[kept], k=len(ids)))
        return results

    def _find_near(
        self, queries: Vectors, *, min_score: float, among: Among | None
    ) -> Iterator[tuple[int, tuple[Floats, Ids]]]:
        """(query, (scores, ids)) of all that may be near enough."""
        left = list(range(len(queries)))
        if self._is_exact:
            wanted = {"radius": min_score - _SCORE_NOISE, "range_filter": _MOST_SCORE}
            answers = [
                self._collection.search(queries, limit=MOST_FOUND, expression=expression, parameters=wanted)
                for expression in self._expressions(among)
            ]
            left = [number for number in left if any(len(part[number][0]) == MOST_FOUND for part in answers)]
            for number in set(range(len(queries))) - set(left):
                for part in answers:
                    ids, vectors = part[number]
                    yield number, (measure_cosines(vectors, queries[number]), ids)
        if left:
            for ids, vectors in self._read(self.ids if among is None else among.ids):
                near = queries[left] @ vectors.T >= min_score - _SCORE_NOISE
                for number, row in zip(left, near, strict=True):
                    yield number, (measure_cosines(vectors[row], queries[number]), ids[row])

    def choose(self, ids: Ids, where: Condition | None = None, *, changed: Ids = NO_IDS) -> ChosenIds:
        """As `VectorStore.choose`."""
        chosen = np.intersect1d(ids, self.ids)
        stale = np.union1d(self._rows.stale, np.intersect1d(changed, self._rows.stored))
        return ChosenIds(chosen, self._write_chosen(chosen, where, stale))

    def _write_chosen(self, chosen: Ids, where: Condition | None, stale: Ids) -> Sequence[str]:
        """The ids where they are few, or those left out where these are; else the condition, where Milvus has words.

        Reading a list of 10,000 ids takes the server longer than asking 20,000 rows for a condition.
        """
        few = min(_FEW, MOST_LISTED)
        others = np.setdiff1d(self._rows.stored, chosen, assume_unique=True)
        if not len(chosen):
            return []
        most_others = few if where is not None else min(len(chosen), MOST_LISTED)
        if len(chosen) > few and len(others) <= most_others:
            return [Rows(self._rows.stored, others, others[:0]).expression]
        said = None if where is None else write_milvus(where)
        if len(chosen) <= few or said is None or len(stale) > MOST_LISTED:
            return [f"id in {part.tolist()}" for part in batches(chosen, MOST_LISTED)]
        if len(stale):
            kept = np.intersect1d(stale, chosen)
            said = f"({said} and id not in {stale.tolist()})" + (f" or id in {kept.tolist()}" if len(kept) else "")
        return [f"{self._rows.expression} and ({said})"]

    def gather(self, ids: Ids) -> Vectors:
        """As `VectorStore.gather`."""
        return gather(self._collection, ids)

    def scan(self) -> Iterator[tuple[Ids, Vectors]]:
        """As `VectorStore.scan`."""
        return self._read(self.ids)

    def _read(self, ids: Ids) -> Iterator[tuple[Ids, Vectors]]:
        return ((part, self.gather(part)) for part in batches(ids, self._collection.rows_at_once))

    def describe(self) -> StoreFacts:
        """As `VectorStore.describe`: nothing lies beside an index that the server keeps."""
        return StoreFacts(len(self.ids), self._collection.width, 0, len(self._rows.gone))


class HeldRows:
    """All rows of a version, members or not, to be read by position as a file of vectors is."""

    def __init__(self, ids: Ids, open_vectors: Callable[[], Collection]) -> None:
        self.ids, self._open = ids, open_vectors
        self._collection: Collection | None = None

    def read(self) -> HeldRows:
        """What takes positions."""
        return self

    def __getitem__(self, positions: Ids) -> Vectors:
        """The (n, D) float32 vectors of (n,) positions."""
        if self._collection is None:
            self._collection = self._open()
        return gather(self._collection, self.ids[positions])


def hold_rows(folder: Path, manifest: Manifest) -> HeldRows:
    """The rows of a part of a version; the server is asked when the first is read."""
    return HeldRows(read_ids(folder / IDS_NAME), partial(open_collection, manifest))


def hold_intact_rows(folder: Path, manifest: Manifest) -> list[HeldRows]:
    """As `hold_rows`; nothing where the collection has not all of them.

    Raises:
        GalleryError: the server does not answer.
    """
    held = hold_rows(folder, manifest)
    try:
        open_collection(manifest).check(
            model_sha256=manifest.model_sha256, last=int(held.ids[-1]), count=len(held.ids)
        )
    except GalleryDamagedError:
        return []
    return [held]


def gather(collection: Collection, ids: Ids) -> Vectors:
    """The (n, D) float32 vectors of (n,) int64 ids.

    Raises:
        GalleryDamagedError: the collection has none of one of them.
    """
    unique, places = np.unique(ids, return_inverse=True)
    found = collection.fetch(unique)
    if len(found) < len(unique):
        missing = next(key for key in unique.tolist() if key not in found)
        raise GalleryDamagedError(
            f"{collection.server.uri} {collection.name}", f"damaged: image {missing} has no vector"
        )
    vectors = np.empty((len(unique), collection.width), dtype=np.float32)
    for place, key in enumerate(unique.tolist()):
        vectors[place] = found[key]
    return vectors[places.reshape(-1)]


def _join(first: tuple[Floats, Ids], second: tuple[Floats, Ids]) -> tuple[Floats, Ids]:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
