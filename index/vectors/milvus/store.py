"""The Milvus store: vectors in a collection of a Milvus server; a version's folder has the ids of its rows.

Versions share a collection. A row never changes once a version has it, so a version is the rows up to its last id
without deleted ones. A killed writer leaves rows that no version has; the next writer reuses those that equal its own.
Results are ranked here, exactly, by the vectors of the server's candidates. The effort that meets a recall is measured
with vectors that the index lacks, against an exact scan.
"""

import hashlib
import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.vectors.ann_building import choose_held_out, list_kinds
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.vectors.exact import measure_cosines
from index.vectors.files import read_deleted
from index.vectors.kinds import KINDS, count_lists
from index.vectors.milvus.collection import MOST_FOUND, MOST_LISTED, STRONG, Collection, Hits, Server, batches
from index.vectors.search import MEASURED_K
from index.vectors.shards import HeldVectors, gather_rows, read_ids, write_array
from index.vectors.stores import Published, WriterTask
from index.vectors.tuning import SURE, Trial, choose_setting, describe_flat
from index.versions.gallery_parts import identify
from index.versions.manifest import DELETED_NAME, Manifest, Version, find_manifest, part_folder
from index.versions.versions import list_versions, next_version

logger = logging.getLogger(__name__)

IDS_NAME = "ids/00000.npy"
_SPARE_CANDIDATES = 16
_SPARE_SHARE = 1.5  # times the candidates that a filter independent of the query would need
_SCORE_NOISE = 1e-5  # as `search.VectorSearch` allows for
_MOST_SCORE = 1.1  # above every cosine
_NOTHING = np.empty(0, np.int64)
_DEPTH = MEASURED_K + _SPARE_CANDIDATES

Ranked = tuple[Floats, Ids]


@dataclass(frozen=True, slots=True)
class MilvusPlan:
    """A kind of index in Milvus.

    Attributes:
        type: Milvus's name.
        build: build parameters for so many vectors.
        effort: Milvus's name of the search parameter; empty for an exact index.
        efforts: to measure, rising.
        bytes_of_number: memory for each number of a vector.
        keeps_effort: whether the effort is a number of candidates, at least as many as are wanted.
    """

    type: str
    build: Callable[[int], Mapping[str, int]]
    effort: str
    efforts: tuple[int, ...]
    bytes_of_number: int
    keeps_effort: bool

    def scale(self, parameters: Mapping[str, int], *, depth: int) -> Mapping[str, int]:
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
    """The kind of index for so many vectors, and the reason."""
    if config.index_type not in ("auto", *PLANS):
        raise InputError(f"--index-type {config.index_type}: a gallery in Milvus takes one of {', '.join(PLANS)}")
    kinds, reason = list_kinds(count, config)
    return kinds[0].name, reason or kinds[0].reason


@dataclass(frozen=True, slots=True)
class ChosenIds:
    """A subset of members: ids, the expressions whose union it is, and the number of ids listed in them."""

    ids: Ids
    expressions: Sequence[str]
    listed: int

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        places = np.searchsorted(self.ids, ids)
        found: npt.NDArray[np.bool_] = places < len(self.ids)
        found[found] = self.ids[places[found]] == ids[found]
        return found


class MilvusRows:
    """The rows of a version in a collection, read on demand: (N,) rising `ids`, and (n,) `gone` that are no members."""

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
        self._plan = PLANS[self._index["type"]]
        self._is_exact = KINDS[self._index["type"]].is_exact

    def search(
        self,
        queries: Vectors,
        *,
        k: int,
        among: ChosenIds | None = None,
        exclude_ids: Ids | None = None,
        threads: int = 1,
    ) -> tuple[Floats, Ids]:
        """As `VectorStore.search`: more candidates are fetched until the results are certain.

        A filter with a long list of ids is first applied to candidates of all members: the server takes about as long
        to parse an id as to find a candidate.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        total = len(self.ids if among is None else among.ids)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        ids = np.full((len(queries), k), NO_ID, dtype=np.int64)
        wanted = min(total, k + (exclude_ids is not None))
        depth, left = min(total, wanted + _SPARE_CANDIDATES), np.arange(len(queries))
        of_all = int(_SPARE_SHARE * (wanted + _SPARE_CANDIDATES) * len(self.ids) / max(1, total)) + 1
        is_first = among is not None and of_all < min(MOST_FOUND, among.listed)
        parameters = self._index["parameters"]
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
        """Whether too few were found, or others may tie with the last result."""
        if len(scores) < min(depth, total):
            return len(scores) < wanted
        ranked = -np.sort(-scores)
        return self._is_exact and depth < total and bool(ranked[-1] >= ranked[wanted - 1] - _SCORE_NOISE)

    def _express(self, among: ChosenIds | None) -> Sequence[str]:
        return [self._rows.express(self._rows.gone)] if among is None else among.expressions

    def _ask(
        self, queries: Vectors, among: ChosenIds | None, depth: int, parameters: Mapping[str, int]
    ) -> list[Ranked]:
        found = _nobody(queries)
        for expression in self._express(among):
            answers = self._collection.search(
                queries, limit=depth, expression=expression, parameters=self._plan.scale(parameters, depth=depth)
            )
            for row, (_, ids, vectors) in enumerate(answers):
                found[row] = _join(found[row], (measure_cosines(vectors, queries[row]), ids))
        return found

    def _scan_all(self, queries: Vectors, among: ChosenIds | None, keep: int) -> list[Ranked]:
        """For each query the best of all vectors, which are downloaded."""
        found = _nobody(queries)
        for ids, vectors in self._read(self.ids if among is None else among.ids):
            for row, query in enumerate(queries):
                found[row] = rank(*_join(found[row], (measure_cosines(vectors, query), ids)), k=keep)
        return found

    def _filter(
        self, queries: Vectors, among: ChosenIds, wanted: int, depth: int, parameters: Mapping[str, int]
    ) -> tuple[list[Ranked], npt.NDArray[np.bool_]]:
        """For each query the best chosen ones among candidates of all members, and whether more are needed."""
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
                # Candidates that were cut off score no higher than `bound`.
                bound = kept[-1] if len(kept) == most else near.min()
                unsure[row] = kept[wanted - 1] <= bound + _SCORE_NOISE
            found.append((measure_cosines(self.gather(kept_ids), queries[row]), kept_ids))
        return found, unsure

    def search_above(
        self, queries: Vectors, *, min_score: float, among: ChosenIds | None = None, exclude_ids: Ids | None = None
    ) -> list[Ranked]:
        """As `VectorStore.search_above`: a range search of an exact index, else all vectors are downloaded."""
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
        return 0


open_vectors = MilvusStore  # as `StoreKind` has it


def hold(folder: Path, manifest: Manifest) -> Sequence[HeldVectors]:
    return [MilvusRows(folder, manifest)]


def hold_intact(folder: Path, manifest: Manifest, names: Container[str]) -> Sequence[HeldVectors]:
    """As `StoreKind.hold_intact`: nothing where the collection lacks rows."""
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


def _nobody(queries: Vectors) -> list[Ranked]:
    return [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)


def _join(first: Ranked, second: Ranked) -> Ranked:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


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
    if not _may_go_on(task, manifest, rows, fresh, gone):
        members = np.setdiff1d(np.union1d(rows.ids, fresh), gone, assume_unique=True)
        return _write_anew(task, server, members, [rows, *task.made])
    collection = Collection(server, manifest.index["collection"], task.width)
    foreign = _fill(task, collection, fresh, task.made, above=rows.last)
    written = np.union1d(rows.ids, fresh)
    foreign = foreign[foreign <= written[-1]]  # of an abandoned writer
    gone = np.union1d(gone, foreign)
    _finish(task, collection, np.union1d(written, foreign), gone=gone)
    return Published({**manifest.index, "server": server.version}, len(gone))


def _may_go_on(task: WriterTask, manifest: Manifest, rows: MilvusRows, fresh: Ids, gone: Ids) -> bool:
    """Whether the base's collection can take the new rows: it is this gallery's, and ids rise."""
    index = manifest.index
    return (
        not (task.how.compact or task.how.tune)
        and manifest.store == task.store.describe()
        and index["collection"].startswith(name_start(task.gallery) + "_")
        and all(index[name] == value for name, value in asdict(task.config).items())
        and choose_kind(len(rows.ids) + len(fresh), task.config)[0] == index["type"]
        and (not len(fresh) or int(fresh[0]) > rows.last)
        and len(gone) <= MOST_LISTED
    )


def _write_anew(task: WriterTask, server: Server, members: Ids, tables: Sequence[HeldVectors]) -> Published:
    kind, reason = choose_kind(len(members), task.config)
    plan, is_exact, version = PLANS[kind], KINDS[kind].is_exact, next_version(task.gallery)
    collection = Collection(server, f"{name_start(task.gallery)}_{task.output}_{version}", task.width)
    noted = {"model_sha256": task.model_sha256, "output": task.output, "index": kind, "version": version}
    if (found := collection.find()) is not None and found != noted:
        collection.drop()
    collection.make(noted, kind=plan.type, parameters=plan.build(len(members)))
    held_out = _NOTHING if is_exact else members[choose_held_out(len(members))]
    first = np.setdiff1d(members, held_out, assume_unique=True)
    foreign = _fill(task, collection, first, tables, above=-1)
    collection.delete(np.setdiff1d(foreign, held_out))
    collection.flush()
    described: dict[str, Any] = {
        "type": kind,
        "factory": f"{plan.type} of Milvus",
        "reason": reason,
        "memory_bytes": plan.bytes_of_number * task.width * len(members),
        "shards": 1,
        **asdict(task.config),
        "collection": collection.name,
        "server": server.version,
        "filtered": [],
    }
    if is_exact:
        queries = gather_rows(members[:100], tables, embedding_dim=task.width)
        described |= describe_flat(
            queries, lambda some: collection.search(some, limit=_DEPTH, expression="id >= 0", parameters={})
        )
    else:
        collection.await_index(task.begin_step("Building index"))
        described |= _measure(task, collection, kind, first, held_out, tables)
    _fill(task, collection, held_out, tables, above=-1)
    _finish(task, collection, members, gone=_NOTHING)
    return Published(described, 0)


def _measure(
    task: WriterTask, collection: Collection, kind: str, rows: Ids, held_out: Ids, tables: Sequence[HeldVectors]
) -> dict[str, Any]:
    """Measure rising efforts until one surely meets the target; entries of the manifest.

    Args:
        rows: ids in the collection, whose vectors give the truth.
        held_out: ids that it lacks, used as queries where the task has none.
    """
    plan, target = PLANS[kind], task.config.recall_target
    queries = task.how.queries
    if queries is None:
        queries = gather_rows(held_out, tables, embedding_dim=task.width)
    truth = np.full((len(queries), MEASURED_K), -np.inf, dtype=np.float32)
    for part in parts(rows, width=task.width):
        vectors = gather_rows(part, tables, embedding_dim=task.width)
        scores = np.concatenate([truth, queries @ vectors.T], axis=1)
        truth = -np.partition(-scores, MEASURED_K - 1, axis=1)[:, :MEASURED_K]
    trial, progress = Trial(queries, truth), task.begin_step("Measuring index")
    curve: list[dict[str, Any]] = []
    for done, effort in enumerate(plan.efforts, start=1):
        parameters = plan.scale({plan.effort: effort}, depth=_DEPTH)

        def search(some: Vectors, parameters: Any = parameters) -> list[Hits]:
            return collection.search(some, limit=_DEPTH, expression=f"id <= {rows[-1]}", parameters=parameters)

        scores = np.full((len(queries), _DEPTH), -np.inf, dtype=np.float32)
        for row, (_, _, vectors) in enumerate(search(queries)):
            scores[row, : len(vectors)] = measure_cosines(vectors, queries[row])
        recall, error = trial.measure(-np.sort(-scores, axis=1)[:, :MEASURED_K])
        curve.append(
            {
                "parameters": {plan.effort: effort},
                "recall_at_10": recall,
                "recall_error": error,
                "latency_ms_median": trial.time_ms(search),
                "queries_per_second": trial.queries_per_second(search),
            }
        )
        progress(done, len(plan.efforts))
        if recall - SURE * error >= max(target, 0.999):
            break
    best, is_met = choose_setting(curve, target=target)
    return {
        "curve": curve,
        "recall_target": target,
        "queries": len(queries),
        **best,
        "target_met": is_met,
        "own_queries": task.how.queries is None,
    }


def parts(ids: Ids, *, width: int) -> Iterator[Ids]:
    return batches(ids, max(1, min(4096, (8 << 20) // (4 * width))))


def _fill(task: WriterTask, collection: Collection, ids: Ids, tables: Sequence[HeldVectors], *, above: int) -> Ids:
    """Write rows to a collection; other ids above `above` that it has.

    Rows of a killed writer are compared, and written again where they differ.
    """
    there = collection.list_ids(above=above)
    progress, done = task.begin_step("Writing vectors"), 0
    for part in parts(ids, width=task.width):
        vectors = gather_rows(part, tables, embedding_dim=task.width)
        known = np.isin(part, there)
        if known.any():
            found = collection.fetch(part[known], level=STRONG)
            pairs = zip(part[known].tolist(), vectors[known], strict=True)
            known[known] = [key in found and np.array_equal(found[key], vector) for key, vector in pairs]
        if not known.all():
            is_again = bool(np.isin(part[~known], there).any())
            collection.put(part[~known], vectors[~known], is_again=is_again)
        done += len(part)
        progress(done, len(ids))
    return np.setdiff1d(there, ids)


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
    """As `StoreKind.tidy`: point an alias of each output at the current collection, drop unused collections."""
    texts = [path.read_bytes() for folder in list_versions(gallery) if (path := folder / "manifest.json").is_file()]
    manifests = [manifest for text in texts if (manifest := find_manifest(text)) is not None]
    if not manifests or len(manifests) < len(texts):  # an unreadable version may use any
        return
    assert current.store is not None
    server, start = Server(current.store["uri"]), name_start(gallery)
    for output in current.outputs:  # first: a collection with an alias cannot be dropped
        _point(server, f"{start}_{output}", str(current.part(output).index["collection"]))
    used = {manifest.part(output).index.get("collection") for manifest in manifests for output in manifest.outputs}
    for name in server.ask(lambda client: client.list_collections(), doing="listing collections"):
        if name.startswith(f"{start}_") and name not in used:
            Collection(server, name, 0).drop()
            logger.info("%s: dropped collection %s", server.uri, name)


def _point(server: Server, alias: str, collection: str) -> None:
    """Point an alias at a collection atomically, also where its old collection is gone."""

    def point(client: Any) -> None:
        try:
            client.alter_alias(collection, alias)
        except server.exception as error:
            if "not found" not in str(error):
                raise
            client.create_alias(collection, alias)

    server.ask(point, doing=f"pointing alias {alias}")
