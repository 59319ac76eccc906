"""The Milvus store: vectors in a collection of a Milvus server; a version's folder has the ids of its rows.

Versions share a collection. A row never changes once a version has it, so a version is the rows up to its last id
without deleted ones. A killed writer leaves rows that no version has; the next writer replaces those with its ids.
Results are ranked here, exactly, by the vectors of the server's candidates. The effort that meets a recall is measured
with vectors that the index lacks, against an exact scan.
"""

import hashlib
import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import NO_ID, Floats, Ids, Mask, Vectors
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.vectors.ann_building import SURE, Trial, choose_setting, count_held_out, describe_flat, list_kinds
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.vectors.ann_index import choose_held_out
from index.vectors.exact import measure_cosines
from index.vectors.files import read_deleted
from index.vectors.kinds import CONSTRUCTION_EFFORT, GRAPH_LINKS, KINDS
from index.vectors.milvus.collection import MOST_FOUND, MOST_LISTED, Collection, Hits, Server, batches
from index.vectors.search import MEASURED_K
from index.vectors.shards import VectorSource, gather_rows, read_ids, write_array
from index.vectors.stores import Published, WriterTask
from index.versions.gallery_parts import identify
from index.versions.manifest import DELETED_NAME, Manifest, Version, find_manifest, part_folder
from index.versions.versions import list_versions, next_version

logger = logging.getLogger(__name__)

IDS_NAME = "ids/00000.npy"
_BUILT = {"flat": ("FLAT", {}), "hnsw": ("HNSW", {"M": GRAPH_LINKS, "efConstruction": CONSTRUCTION_EFFORT})}
_EFFORT, _EFFORTS = "ef", (32, 64, 128, 256, 512, 1024)  # Milvus's search parameter of a graph, and values to measure
_EXPRESSED = 2000  # ids in the expression of a filter: parsing one takes as long as finding a candidate
_SPARE_CANDIDATES = 16
_SPARE_SHARE = 1.5  # times the candidates that a filter independent of the query would need
_SCORE_NOISE = 1e-5  # as `search.VectorSearch` allows for
_NOTHING = np.empty(0, np.int64)
_DEPTH = MEASURED_K + _SPARE_CANDIDATES

Ranked = tuple[Floats, Ids]


def choose_kind(count: int, config: AnnConfig) -> tuple[str, str]:
    """The kind of index for so many vectors, `flat` or `hnsw`, and the reason."""
    if config.index_type not in ("auto", *_BUILT):
        raise InputError(
            f"--index-type {config.index_type}: a gallery in Milvus takes one of auto, {', '.join(_BUILT)}"
        )
    kinds, reason = list_kinds(count, config)
    return "flat" if kinds[0].is_exact else "hnsw", reason or "the index that galleries in Milvus have"


@dataclass(frozen=True, slots=True)
class ChosenIds:
    """A subset of members: (n,) ascending ids, and an expression of it; None: it is applied to candidates of all."""

    ids: Ids
    expression: str | None

    def has(self, ids: Ids) -> Mask:
        places = np.searchsorted(self.ids, ids)
        found: Mask = places < len(self.ids)
        found[found] = self.ids[places[found]] == ids[found]
        return found


class MilvusRows:
    """The rows of a version in a collection, read on demand: (N,) ascending `ids`, and (n,) `gone` members."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self.ids = read_ids(folder / IDS_NAME)

    @cached_property
    def gone(self) -> Ids:
        return read_deleted(self._folder, self._manifest)

    @cached_property
    def collection(self) -> Collection:
        manifest = self._manifest
        assert manifest.store is not None
        return Collection(Server(manifest.store["uri"]), manifest.index["collection"], manifest.embedding_dim)

    @property
    def last(self) -> int:
        return int(self.ids[-1])

    def check(self) -> None:
        self.collection.check(model_sha256=self._manifest.model_sha256, last=self.last, count=len(self.ids))

    def express(self, gone: Ids) -> str:
        return f"id <= {self.last}" + (f" and id not in {gone.tolist()}" if len(gone) else "")

    def read(self) -> "MilvusRows":
        return self

    def __getitem__(self, positions: Ids) -> Vectors:
        return self.collection.gather(self.ids[positions])


class MilvusStore:
    """The `VectorStore` of a version's vectors in Milvus."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._rows, self._index = MilvusRows(folder, manifest), manifest.index
        self.ids: Ids = np.setdiff1d(self._rows.ids, self._rows.gone, assume_unique=True)
        self._collection = self._rows.collection
        self._rows.check()
        self._is_exact = KINDS[self._index["type"]].is_exact

    def search(
        self, queries: Vectors, *, k: int, among: ChosenIds | None = None, threads: int = 1
    ) -> tuple[Floats, Ids]:
        """Nearest vectors (`VectorStore.search`): more candidates are fetched until the results are certain."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        members = self.ids if among is None else among.ids
        wanted, left = min(len(members), k), np.arange(len(queries))
        found: list[Ranked] = [(np.empty(0, np.float32), _NOTHING)] * len(queries)
        depth, total = wanted + _SPARE_CANDIDATES, len(members)
        if among is not None and among.expression is None:
            total = len(self.ids)
            depth = int(_SPARE_SHARE * depth * total / max(1, len(members))) + 1
        depth = min(depth, total)
        while len(left) and wanted:
            if depth > MOST_FOUND:
                for row, ranked in zip(left.tolist(), self._scan_all(queries[left], members, keep=wanted), strict=True):
                    found[row] = ranked
                break
            unsure = np.zeros(len(left), dtype=bool)
            for place, hits in enumerate(self._ask(queries[left], among, depth)):
                row = int(left[place])
                found[row], lowest = self._rank(queries[row], hits, among, wanted)
                unsure[place] = len(found[row][1]) < wanted
                if self._is_exact and depth < total and not unsure[place]:  # others may tie with the last result
                    unsure[place] = found[row][0][wanted - 1] <= lowest + _SCORE_NOISE
            left = left[unsure]
            depth = min(total, 4 * depth) if depth < total else MOST_FOUND + 1
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        ids = np.full((len(queries), k), NO_ID, dtype=np.int64)
        for row, (near, near_ids) in enumerate(found):
            size = min(k, len(near))
            scores[row, :size], ids[row, :size] = near[:k], near_ids[:k]
        return scores, ids

    def _ask(self, queries: Vectors, among: ChosenIds | None, depth: int) -> list[Hits]:
        """Candidates of each query, of the subset where it has an expression, else of all members without vectors."""
        expression = None if among is None else among.expression
        parameters = self._index["parameters"]
        if _EFFORT in parameters:
            parameters = {_EFFORT: max(parameters[_EFFORT], depth)}
        return self._collection.search(
            queries,
            limit=depth,
            expression=expression or self._rows.express(self._rows.gone),
            parameters=parameters,
            with_vectors=among is None or expression is not None,
        )

    def _rank(self, query: Vectors, hits: Hits, among: ChosenIds | None, wanted: int) -> tuple[Ranked, float]:
        """The exact ranking of one query's candidates, and the score below which others may lie."""
        near, ids, vectors = hits
        lowest = float(near.min(initial=np.inf))
        if among is not None and among.expression is None:
            most, chosen = wanted + _SPARE_CANDIDATES, among.has(ids)
            near, ids = rank(near[chosen], ids[chosen], k=most)
            lowest, vectors = float(near[-1]) if len(ids) == most else lowest, self.gather(ids)
        return rank(measure_cosines(vectors, query), ids, k=len(ids)), lowest

    def _scan_all(self, queries: Vectors, ids: Ids, *, keep: int, min_score: float = -np.inf) -> list[Ranked]:
        """For each query the best of these members, whose vectors are downloaded."""
        found: list[Ranked] = [(np.empty(0, np.float32), _NOTHING)] * len(queries)
        for part, vectors in self._read(ids):
            for row, query in enumerate(queries):
                scores = np.append(found[row][0], measure_cosines(vectors, query))
                high = scores >= min_score
                found[row] = rank(scores[high], np.append(found[row][1], part)[high], k=keep)
        return found

    def search_above(self, queries: Vectors, *, min_score: float, among: ChosenIds | None = None) -> list[Ranked]:
        """Vectors above a score (`VectorStore.search_above`): all vectors are downloaded."""
        members = self.ids if among is None else among.ids
        return self._scan_all(queries, members, keep=len(members), min_score=min_score)

    def subset(self, ids: Ids) -> ChosenIds:
        chosen = np.intersect1d(ids, self.ids)
        others = np.setdiff1d(self._rows.ids, chosen, assume_unique=True)
        if len(others) < min(len(chosen), _EXPRESSED):
            return ChosenIds(chosen, self._rows.express(others))
        return ChosenIds(chosen, f"id in {chosen.tolist()}" if len(chosen) <= _EXPRESSED else None)

    def gather(self, ids: Ids) -> Vectors:
        return self._collection.gather(ids)

    def scan(self) -> Iterator[tuple[Ids, Vectors]]:
        return self._read(self.ids)

    def _read(self, ids: Ids) -> Iterator[tuple[Ids, Vectors]]:
        return ((part, self.gather(part)) for part in batches(ids, self._collection.rows_at_once))

    def count_unindexed(self) -> int:
        return 0


open_vectors = MilvusStore  # as `StoreKind` has it


def hold(folder: Path, manifest: Manifest) -> Sequence[VectorSource]:
    return [MilvusRows(folder, manifest)]


def hold_intact(folder: Path, manifest: Manifest, names: Container[str]) -> Sequence[VectorSource]:
    """Intact vectors (`StoreKind.hold_intact`): none where the collection lacks rows."""
    if IDS_NAME not in names:
        return []
    held = MilvusRows(folder, manifest)
    try:
        held.check()
    except GalleryDamagedError:
        return []
    return [held]


def check(store: StoreConfig, *, base: Version | None, count: int, width: int, config: AnnConfig) -> None:
    choose_kind(count, config)
    Server(store.uri)
    if base is not None:
        manifest = Manifest.read(base)
        for output in manifest.outputs:
            MilvusStore(part_folder(base.folder, output), manifest.part(output))


def rank(scores: Floats, ids: Ids, *, k: int) -> Ranked:
    """The k best of (n,) candidates, ties by smaller id."""
    order = np.lexsort((ids, -scores))[:k]
    return scores[order], ids[order]


def name_start(gallery: Path) -> str:
    """The prefix of a gallery's collections, which a copy of the folder elsewhere does not share."""
    text = f"{identify(gallery)} {gallery.resolve()}"
    return f"retrieval_{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def publish(task: WriterTask, new: Ids, deleted: Ids, base: Version | None) -> Published:
    server = Server(task.store.uri)
    (task.folder / "ids").mkdir(parents=True)
    if base is None:
        return _write_anew(task, server, new, task.made)
    manifest, home = Manifest.read(base).part(task.output), part_folder(base.folder, task.output)
    rows = MilvusRows(home, manifest)
    gone = np.setdiff1d(np.union1d(rows.gone, deleted), new)
    fresh = np.setdiff1d(new, rows.ids, assume_unique=True)
    index = manifest.index
    can_go_on = (  # the collection is this gallery's, can take the new rows, and ids rise
        not task.rewrite
        and manifest.store == task.store.describe()
        and index["collection"].startswith(name_start(task.gallery) + "_")
        and all(index[name] == value for name, value in asdict(task.config).items())
        and choose_kind(len(rows.ids) + len(fresh), task.config)[0] == index["type"]
        and (not len(fresh) or int(fresh[0]) > rows.last)
        and len(gone) <= MOST_LISTED
    )
    if not can_go_on:
        members = np.setdiff1d(np.union1d(rows.ids, fresh), gone, assume_unique=True)
        return _write_anew(task, server, members, [rows, *task.made])
    collection = Collection(server, index["collection"], task.width)
    left = collection.list_ids(above=rows.last)  # of a killed writer, or a version before a rollback
    collection.delete(np.intersect1d(left, fresh))
    _fill(task, collection, fresh, task.made)
    written = np.union1d(rows.ids, fresh)
    foreign = np.setdiff1d(left[left <= written[-1]], fresh)
    gone = np.union1d(gone, foreign)
    _finish(task, collection, np.union1d(written, foreign), gone=gone)
    return Published({**index, "server": server.version}, len(gone))


def _write_anew(task: WriterTask, server: Server, members: Ids, tables: Sequence[VectorSource]) -> Published:
    (kind, reason), count = choose_kind(len(members), task.config), len(members)
    name = f"{name_start(task.gallery)}_{task.output}_{next_version(task.gallery)}"
    collection, (built, parameters) = Collection(server, name, task.width), _BUILT[kind]
    collection.drop()  # of a killed writer
    collection.make(model_sha256=task.model_sha256, kind=built, parameters=parameters)
    is_exact = KINDS[kind].is_exact
    held_out = _NOTHING if is_exact else members[choose_held_out(count, count_held_out(count))]
    first = np.setdiff1d(members, held_out, assume_unique=True)
    _fill(task, collection, first, tables)
    collection.flush()
    described: dict[str, Any] = {
        "type": kind,
        "factory": f"{built} of Milvus",
        "reason": reason,
        "memory_bytes": 4 * task.width * count,
        "shards": 1,
        **asdict(task.config),
        "collection": collection.name,
        "server": server.version,
    }
    if is_exact:
        queries = gather_rows(members[:100], tables, embedding_dim=task.width)
        described |= describe_flat(
            queries, lambda some: collection.search(some, limit=_DEPTH, expression="id >= 0", parameters={})
        )
    else:
        collection.await_index(task.begin_step("Building index"))
        described |= _measure(task, collection, first, held_out, tables)
    _fill(task, collection, held_out, tables)
    _finish(task, collection, members, gone=_NOTHING)
    return Published(described, 0)


def _measure(
    task: WriterTask, collection: Collection, rows: Ids, held_out: Ids, tables: Sequence[VectorSource]
) -> dict[str, Any]:
    """Measure efforts, the least first, until one surely meets the target, by the vectors of `held_out`."""
    queries, target = gather_rows(held_out, tables, embedding_dim=task.width), task.config.recall_target
    truth = np.full((len(queries), MEASURED_K), -np.inf, dtype=np.float32)
    for part in batches(rows, collection.rows_at_once):
        vectors = gather_rows(part, tables, embedding_dim=task.width)
        scores = np.concatenate([truth, queries @ vectors.T], axis=1)
        truth = -np.partition(-scores, MEASURED_K - 1, axis=1)[:, :MEASURED_K]
    trial, progress = Trial(queries, truth), task.begin_step("Measuring index")
    curve: list[dict[str, Any]] = []
    for done, effort in enumerate(_EFFORTS, start=1):

        def search(some: Vectors, effort: int = effort) -> list[Hits]:
            return collection.search(
                some, limit=_DEPTH, expression=f"id <= {rows[-1]}", parameters={_EFFORT: max(effort, _DEPTH)}
            )

        scores = np.full((len(queries), _DEPTH), -np.inf, dtype=np.float32)
        for row, (_, _, vectors) in enumerate(search(queries)):
            scores[row, : len(vectors)] = measure_cosines(vectors, queries[row])
        recall, error = trial.recall(-np.sort(-scores, axis=1)[:, :MEASURED_K])
        curve.append(
            {
                "parameters": {_EFFORT: effort},
                "recall_at_10": recall,
                "recall_error": error,
                "latency_ms_median": trial.time_ms(search),
                "queries_per_second": trial.queries_per_second(search),
            }
        )
        progress(done, len(_EFFORTS))
        if recall - SURE * error >= max(target, 0.999):
            break
    best, is_met = choose_setting(curve, target=target)
    return {"curve": curve, "recall_target": target, "queries": len(queries), **best, "target_met": is_met}


def _fill(task: WriterTask, collection: Collection, ids: Ids, tables: Sequence[VectorSource]) -> None:
    """Insert rows that the collection does not have."""
    progress, done = task.begin_step("Writing vectors"), 0
    for part in batches(ids, collection.rows_at_once):
        collection.put(part, gather_rows(part, tables, embedding_dim=task.width))
        done += len(part)
        progress(done, len(ids))


def _finish(task: WriterTask, collection: Collection, stored: Ids, *, gone: Ids) -> None:
    collection.flush()
    seen, expected = collection.count(int(stored[-1])), len(stored)
    if seen != expected:
        raise GalleryError(
            f"{collection.server.uri} {collection.name}",
            f"{seen:,} vectors were written, expected {expected:,}; run the same command again",
        )
    write_array(task.folder / IDS_NAME, stored)
    if len(gone):
        write_array(task.folder / DELETED_NAME, gone)


def tidy(gallery: Path, current: Manifest) -> None:
    """Clean-up (`StoreKind.tidy`): drop the collections that no version uses."""
    texts = [path.read_bytes() for folder in list_versions(gallery) if (path := folder / "manifest.json").is_file()]
    manifests = [manifest for text in texts if (manifest := find_manifest(text)) is not None]
    if not manifests or len(manifests) < len(texts):  # an unreadable version may use any
        return
    assert current.store is not None
    server, start = Server(current.store["uri"]), name_start(gallery)
    used = {manifest.part(output).index.get("collection") for manifest in manifests for output in manifest.outputs}
    for name in server.ask(lambda client: client.list_collections(), doing="listing collections"):
        if name.startswith(f"{start}_") and name not in used:
            Collection(server, name, 0).drop()
            logger.info("%s: dropped collection %s", server.uri, name)
