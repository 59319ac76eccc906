"""Writes the vectors of a version into a collection of Milvus: what is new into the base's, or all into a new one.

A row is never changed once a version has it, so versions share a collection, and one that was killed in the middle
leaves rows that no version has: the next writer takes those for its own that are what it would write.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids, Vectors
from index.errors import GalleryError
from index.vectors.ann_building import choose_held_out
from index.vectors.kinds import KINDS
from index.vectors.milvus.collection import MOST_LISTED, STRONG, Collection, Server, batches
from index.vectors.milvus.store import IDS_NAME, Rows, hold_rows
from index.vectors.milvus.tuning import PLANS, choose_kind, describe_scan, measure
from index.vectors.shards import HeldVectors, gather_rows, write_array
from index.vectors.store import Published, WriterTask
from index.versions.gallery_parts import identify
from index.versions.manifest import DELETED_NAME, Manifest, Version, find_manifest, part_folder
from index.versions.versions import list_versions, next_version

logger = logging.getLogger(__name__)

_NOTHING = np.empty(0, np.int64)


def name_start(gallery: Path) -> str:
    """How the names of a gallery's collections begin: a copy of its folder elsewhere is another gallery here."""
    text = f"{identify(gallery)} {gallery.resolve()}"
    return f"retrieval_{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class MilvusWriter:
    """Writes the vectors of a version into a Milvus server."""

    task: WriterTask

    def publish(self, new: Ids, deleted: Ids, base: Version | None) -> Published:
        """As `StoreKind.publish`."""
        server = Server(self.task.store.uri)
        (self.task.folder / "ids").mkdir(parents=True)
        if base is None:
            return self._write_anew(server, new, self.task.made)
        manifest, home = Manifest.read(base).part(self.task.output), part_folder(base.folder, self.task.output)
        rows = Rows.read(home, manifest)
        gone = np.setdiff1d(np.union1d(rows.gone, deleted), new)
        fresh = np.setdiff1d(new, rows.stored, assume_unique=True)
        if self._may_go_on(manifest, rows, fresh, gone):
            return self._write_beside(server, manifest.index, rows, fresh=fresh, gone=gone)
        members = np.setdiff1d(np.union1d(rows.stored, fresh), gone, assume_unique=True)
        return self._write_anew(server, members, [hold_rows(home, manifest), *self.task.made])

    def _may_go_on(self, manifest: Manifest, rows: Rows, fresh: Ids, gone: Ids) -> bool:
        """Whether the base's collection can take what is new: it is this gallery's, and ids rise."""
        index, config = manifest.index, self.task.config
        return (
            not (self.task.how.compact or self.task.how.tune)
            and manifest.store == self.task.store.describe()
            and index["collection"].startswith(name_start(self.task.gallery) + "_")
            and all(index[name] == value for name, value in asdict(config).items())
            and choose_kind(len(rows.stored) + len(fresh), config)[0] == index["type"]
            and (not len(fresh) or int(fresh[0]) > rows.last)
            and len(gone) <= MOST_LISTED
        )

    def _write_beside(
        self, server: Server, index: dict[str, Any], rows: Rows, *, fresh: Ids, gone: Ids
    ) -> Published:
        task = self.task
        collection = Collection(server, index["collection"], task.width)
        foreign = self._fill(collection, fresh, task.made, above=rows.last)
        written = np.union1d(rows.stored, fresh)
        foreign = foreign[foreign <= written[-1]]  # of a writer that was given up
        stored, gone = np.union1d(written, foreign), np.union1d(gone, foreign)
        self._finish(collection, stored, gone=gone)
        return Published({**index, "server": server.version}, len(gone))

    def _write_anew(self, server: Server, members: Ids, tables: Sequence[HeldVectors]) -> Published:
        task = self.task
        kind, reason = choose_kind(len(members), task.config)
        version = next_version(task.gallery)
        collection = Collection(server, f"{name_start(task.gallery)}_{task.output}_{version}", task.width)
        noted = {"model_sha256": task.model_sha256, "output": task.output, "index": kind, "version": version}
        if (found := collection.find()) is not None and found != noted:
            collection.drop()
        plan = PLANS[kind]
        collection.make(noted, kind=plan.type, parameters=plan.build(len(members)))
        held_out = _NOTHING if KINDS[kind].is_exact else members[choose_held_out(len(members))]
        first = np.setdiff1d(members, held_out, assume_unique=True)
        foreign = self._fill(collection, first, tables, above=-1)
        collection.delete(np.setdiff1d(foreign, held_out))
        collection.flush()
        if not KINDS[kind].is_exact:
            collection.await_index(task.begin_step("Building index"))
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
        queries = task.how.queries
        if KINDS[kind].is_exact:
            described |= describe_scan(collection, gather_rows(members[:100], tables, embedding_dim=task.width))
        else:
            asking = gather_rows(held_out, tables, embedding_dim=task.width) if queries is None else queries
            described |= self._measure(collection, kind, first, tables, queries=asking)
            described["own_queries"] = queries is None
        self._fill(collection, held_out, tables, above=-1)
        self._finish(collection, members, gone=_NOTHING)
        return Published(described, 0)

    def _measure(
        self, collection: Collection, kind: str, rows: Ids, tables: Sequence[HeldVectors], *, queries: Vectors
    ) -> dict[str, Any]:
        """What a manifest says of an index, measured among some rows with queries that are none of them."""
        return measure(
            collection,
            PLANS[kind],
            ((part, gather_rows(part, tables, embedding_dim=self.task.width)) for part in self._parts(rows)),
            last=int(rows[-1]),
            queries=queries,
            target=self.task.config.recall_target,
            progress=self.task.begin_step("Measuring index"),
        )

    def _parts(self, ids: Ids) -> Sequence[Ids]:
        return list(batches(ids, max(1, min(4096, (8 << 20) // (4 * self.task.width)))))

    def _fill(self, collection: Collection, ids: Ids, tables: Sequence[HeldVectors], *, above: int) -> Ids:
        """Let a collection have rows; those above an id that it had and that are others.

        What it has already, from a writer that was killed, is compared, and written again where it is something else.
        """
        there = collection.list_ids(above=above)
        progress, done = self.task.begin_step("Writing vectors"), 0
        for part in self._parts(ids):
            vectors = gather_rows(part, tables, embedding_dim=self.task.width)
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

    def _finish(self, collection: Collection, stored: Ids, *, gone: Ids) -> None:
        collection.flush()
        seen, expected = collection.count(int(stored[-1])), len(stored)
        if seen != expected:
            raise GalleryError(
                f"{collection.server.uri} {collection.name}",
                f"{seen:,} vectors were written, expected {expected:,}; run the same command again",
            )
        write_array(self.task.folder / IDS_NAME, stored)
        if len(gone):
            write_array(self.task.folder / DELETED_NAME, gone)


def tidy(gallery: Path, current: Manifest) -> None:
    """Let an alias of each output be the current version's, and drop the gallery's collections that no version has."""
    texts = [
        path.read_bytes() for folder in list_versions(gallery) if (path := folder / "manifest.json").is_file()
    ]
    manifests = [find_manifest(text) for text in texts]
    if not manifests or None in manifests:  # nobody knows what it has
        return
    assert current.store is not None
    server, start = Server(current.store["uri"]), name_start(gallery)
    for output in current.outputs:  # first: what has an alias is not dropped
        _point(server, f"{start}_{output}", str(current.part(output).index["collection"]))
    known = [manifest for manifest in manifests if manifest is not None]
    used = {manifest.part(output).index.get("collection") for manifest in known for output in manifest.outputs}
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
