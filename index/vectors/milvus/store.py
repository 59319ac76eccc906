"""The store of vectors that is a collection of a Milvus server; a version's folder has the ids of its rows.

Versions share a collection: a row, once written, stays as it is, so a version is the rows up to its last id without
those that are no members any more. Answers are ranked here, exactly, from the vectors of the server's candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.errors import GalleryDamagedError
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.vectors.exact import measure_cosines
from index.vectors.files import read_deleted
from index.vectors.kinds import KINDS
from index.vectors.milvus.collection import MOST_FOUND, MOST_LISTED, Collection, Server, batches, best
from index.vectors.milvus.tuning import PLANS, choose_kind, scale
from index.vectors.shards import HeldVectors, read_ids
from index.vectors.store import Published, StoreFacts, WriterTask
from index.versions.manifest import Manifest, Version, part_folder

IDS_NAME = "ids/00000.npy"
_SPARE_CANDIDATES = 16
_SPARE_SHARE = 1.5  # how many candidates more than a filter would let through if it were independent of the query
_SCORE_NOISE = 1e-5  # as `search.VectorSearch` allows for
_MOST_SCORE = 1.1  # above every cosine


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


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a collection that a version knows of.

    Attributes:
        stored: (N,) int64 rising ids.
        gone: (n,) int64 rising ids of those that are no members.
    """

    stored: Ids
    gone: Ids

    @classmethod
    def read(cls, folder: Path, manifest: Manifest) -> Rows:
        """Those of the part of a version."""
        return cls(read_ids(folder / IDS_NAME), read_deleted(folder, manifest))

    @property
    def last(self) -> int:
        """The last id."""
        return int(self.stored[-1])

    @property
    def expression(self) -> str:
        """Keeps the members."""
        return f"id <= {self.last}" + (f" and id not in {self.gone.tolist()}" if len(self.gone) else "")


def open_collection(manifest: Manifest) -> Collection:
    """The collection of a part of a manifest, checked only as to its server."""
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
        among: ChosenIds | None = None,
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
        candidates = int(_SPARE_SHARE * (wanted + _SPARE_CANDIDATES) * len(self.ids) / max(1, total)) + 1
        if among is not None and candidates < min(MOST_FOUND, among.listed):
            found, unsure = self._filter_candidates(queries, among, wanted=wanted, depth=candidates, effort=effort)
            for row, (near, near_ids) in enumerate(found):
                other = near_ids != excluded[row]
                near, near_ids = best(near[other], near_ids[other], k=k)
                scores[row, : len(near)], ids[row, : len(near)] = near, near_ids
            left = np.flatnonzero(unsure)
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

    def _expressions(self, among: ChosenIds | None) -> Sequence[str]:
        if among is None:
            return [self._rows.expression]
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

    def _scan(self, queries: Vectors, *, among: ChosenIds | None, keep: int) -> list[tuple[Floats, Ids]]:
        """For each query the best of all vectors, which are read for that."""
        found: list[tuple[Floats, Ids]] = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)
        for ids, vectors in self._read(self.ids if among is None else among.ids):
            found = [
                best(*_join(known, (measure_cosines(vectors, query), ids)), k=keep)
                for known, query in zip(found, queries, strict=True)
            ]
        return found

    def search_above(
        self, queries: Vectors, *, min_score: float, among: ChosenIds | None = None, exclude_ids: Ids | None = None
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
        self, queries: Vectors, *, min_score: float, among: ChosenIds | None
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

    def _filter_candidates(
        self, queries: Vectors, among: ChosenIds, *, wanted: int, depth: int, effort: Mapping[str, int] | None
    ) -> tuple[list[tuple[Floats, Ids]], npt.NDArray[np.bool_]]:
        """For each query the best of those candidates of all members that are among some, and whether more are needed.

        To read the id of a list takes the server about as long as to find a candidate.
        """
        parameters = scale(PLANS[self._index["type"]], effort or self._index["parameters"], depth=depth)
        listed = self._collection.search_ids(
            queries, limit=depth, expression=self._rows.expression, parameters=parameters
        )
        most, kept = wanted + _SPARE_CANDIDATES, []
        for near, ids in listed:
            chosen = among.has(ids)
            kept.append(best(near[chosen], ids[chosen], k=most))
        # What was not kept is no nearer than the last that was, nor what was not listed than the last that was.
        unsure = np.array([
            len(near) < wanted
            or (self._is_exact and near[wanted - 1] <= (near[-1] if len(near) == most else every.min()) + _SCORE_NOISE)
            for (near, _), (every, _) in zip(kept, listed, strict=True)
        ])  # fmt: skip
        found = []
        for (_, ids), query in zip(kept, queries, strict=True):
            found.append((measure_cosines(self.gather(ids), query), ids))
        return found, unsure

    def choose(self, ids: Ids) -> ChosenIds:
        """As `VectorStore.choose`."""
        chosen = np.intersect1d(ids, self.ids)
        others = np.setdiff1d(self._rows.stored, chosen, assume_unique=True)
        if len(others) < min(len(chosen), MOST_LISTED):
            return ChosenIds(chosen, [Rows(self._rows.stored, others).expression], len(others))
        expressions = [f"id in {part.tolist()}" for part in batches(chosen, MOST_LISTED)]
        return ChosenIds(chosen, expressions, len(chosen))

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


def open_vectors(folder: Path, manifest: Manifest) -> MilvusStore:
    """As `StoreKind.open_vectors`."""
    return MilvusStore(folder, manifest)


def hold(folder: Path, manifest: Manifest) -> Sequence[HeldVectors]:
    """As `StoreKind.hold`."""
    return [hold_rows(folder, manifest)]


def hold_intact(folder: Path, manifest: Manifest, names: Container[str]) -> Sequence[HeldVectors]:
    """As `StoreKind.hold_intact`: nothing where the collection has not all rows."""
    if IDS_NAME not in names:
        return []
    held = hold_rows(folder, manifest)
    try:
        open_collection(manifest).check(
            model_sha256=manifest.model_sha256, last=int(held.ids[-1]), count=len(held.ids)
        )
    except GalleryDamagedError:
        return []
    return [held]


def publish(task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
    """As `StoreKind.publish`."""
    from index.vectors.milvus.writer import MilvusWriter

    return MilvusWriter(task).publish(new, deleted, base)


def check(store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig) -> None:
    """As `StoreKind.check`: the server answers, and has what the base has."""
    choose_kind(count, config)
    Server(store.uri)
    if base is not None:
        manifest = Manifest.read(base)
        for output in manifest.outputs:
            MilvusStore(part_folder(base.folder, output), manifest.part(output))


def tidy(gallery: Path, manifest: Manifest) -> None:
    """As `StoreKind.tidy`."""
    from index.vectors.milvus.writer import tidy

    tidy(gallery, manifest)


def gather(collection: Collection, ids: Ids) -> Vectors:
    """The (n, D) float32 vectors of (n,) int64 ids."""
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
