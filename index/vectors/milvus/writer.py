"""Writes the vectors of a version into a collection of Milvus: what is new into the base's, or all into a new one.

A row is never changed once a version has it, so versions share a collection, and one that was killed in the middle
leaves rows that no version has: the next writer takes those for its own that are what it would write. How hard Milvus
must look to meet a recall is measured with vectors that its index lacks, against an exact scan.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids, Vectors
from index.errors import GalleryError
from index.vectors.ann_building import choose_held_out
from index.vectors.exact import measure_cosines
from index.vectors.kinds import KINDS
from index.vectors.milvus.collection import MOST_LISTED, STRONG, Collection, Hits, Server, batches
from index.vectors.milvus.store import IDS_NAME, PLANS, MilvusRows, choose_kind
from index.vectors.search import MEASURED_K
from index.vectors.shards import HeldVectors, gather_rows, write_array
from index.vectors.stores import Published, WriterTask
from index.vectors.tuning import SURE, Trial, choose_setting, describe_flat
from index.versions.gallery_parts import identify
from index.versions.manifest import DELETED_NAME, Manifest, Version, find_manifest, part_folder
from index.versions.versions import list_versions, next_version

logger = logging.getLogger(__name__)

_NOTHING = np.empty(0, np.int64)
_DEPTH = MEASURED_K + 16


def name_start(gallery: Path) -> str:
    """How the names of a gallery's collections begin: a copy of its folder elsewhere is another gallery here."""
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
    foreign = foreign[foreign <= written[-1]]  # of a writer that was given up
    gone = np.union1d(gone, foreign)
    _finish(task, collection, np.union1d(written, foreign), gone=gone)
    return Published({**manifest.index, "server": server.version}, len(gone))


def _may_go_on(task: WriterTask, manifest: Manifest, rows: MilvusRows, fresh: Ids, gone: Ids) -> bool:
    """Whether the base's collection can take what is new: it is this gallery's, and ids rise."""
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
            queries,
            lambda some: collection.search(some, limit=_DEPTH, expression="id >= 0", parameters={}),
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
    """Measure every effort that is worth it until one surely meets the target; what a manifest says of it.

    Args:
        rows: of the ids in the collection, whose vectors give the truth.
        held_out: ids that it lacks, which ask where the task has no queries.
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
        curve.append({
            "parameters": {plan.effort: effort}, "recall_at_10": recall, "recall_error": error,
            "latency_ms_median": trial.time_ms(search), "queries_per_second": trial.queries_per_second(search),
        })  # fmt: skip
        progress(done, len(plan.efforts))
        if recall - SURE * error >= max(target, 0.999):
            break
    best, is_met = choose_setting(curve, target=target)
    return {
        "curve": curve, "recall_target": target, "queries": len(queries), **best, "target_met": is_met,
        "own_queries": task.how.queries is None,
    }  # fmt: skip


def parts(ids: Ids, *, width: int) -> Iterator[Ids]:
    """The ids, so many at a time as are read and sent together."""
    return batches(ids, max(1, min(4096, (8 << 20) // (4 * width))))


def _fill(task: WriterTask, collection: Collection, ids: Ids, tables: Sequence[HeldVectors], *, above: int) -> Ids:
    """Let a collection have rows; those above an id that it had and that are others.

    What it has already, from a writer that was killed, is compared, and written again where it is something else.
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
    """Let an alias of each output be the current version's, and drop the gallery's collections that no version has."""
    texts = [
        path.read_bytes() for folder in list_versions(gallery) if (path := folder / "manifest.json").is_file()
    ]
    manifests = [manifest for text in texts if (manifest := find_manifest(text)) is not None]
    if not manifests or len(manifests) < len(texts):  # nobody knows what it has
        return
    assert current.store is not None
    server, start = Server(current.store["uri"]), name_start(gallery)
    for output in current.outputs:  # first: what has an alias is not dropped
        _point(server, f"{start}_{output}", str(current.part(output).index["collection"]))
    used = {manifest.part(output).index.get("collection") for manifest in manifests for output in manifest.outputs}
    for name in server.ask(lambda client: client.list_collections(), doing="listing collections"):
        if name.startswith(f"{start}_") and name not in used:
            Collection(server, name, 0).drop()
            logger.info("%s: dropped collection %s", server.uri, name)


def _point(server: Server, alias: str, collection: str) -> None:
    """Let an alias stand for a collection, in one step, also where the one that it stood for is gone."""

    def point(client: Any) -> None:
        try:
            client.alter_alias(collection, alias)
        except server.exception as error:
            if "not found" not in str(error):
                raise
            client.create_alias(collection, alias)

    server.ask(point, doing=f"pointing alias {alias}")
