"""A collection of a Milvus server: the vectors of one output of a gallery, by id.

Writers use the consistency level Strong, which sees everything written before. Searches use Bounded, because a Strong
search waits 0.2 s for the server's clock; opening a collection checks it with Strong once, and the rows of a version
are written before it is published.
"""

import logging
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import numpy as np

from index.arrays import Floats, Ids, Vectors
from index.errors import GalleryDamagedError, GalleryError, missing_imports_as_dependency_errors
from index.progress import Progress

TOKEN = "RETRIEVAL_MILVUS_TOKEN"  # of the environment
OLDEST, NEXT = (2, 3), (3, 0)
_CONNECT_S, _CALL_S = 10.0, 120.0
_WAITS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0)  # a restarted server loads its data first
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_NOT_LOADED, _NO_COLLECTION = 101, 100
_NO_RIGHTS = re.compile(r"auth check failure|unauthenticated|permission deny|privilege|permissiondenied", re.IGNORECASE)
_FOR_GOOD = re.compile(r"not found|can't find|cannot parse|invalid|out of range|assert|should be", re.IGNORECASE)
_LONGEST = 200
_CAUSES = 4
Answer = TypeVar("Answer")
Hits = tuple[Floats, Ids, Vectors]
"""Scores (n,), ids (n,) and vectors (n, D) that one query finds."""

STRONG, BOUNDED = "Strong", "Bounded"
MOST_LISTED = 10_000  # ids in an expression
MOST_FOUND = 16_384  # of one search or query, by Milvus's own limit
_BYTES_AT_ONCE = 8 << 20
_INDEX_LOOK_S = 0.2


def import_pymilvus() -> Any:
    """The pymilvus module, whose logging of every raised error is switched off."""
    with missing_imports_as_dependency_errors("a gallery whose vectors are in Milvus"):
        import pymilvus
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return pymilvus


class Server:
    """A connection to a Milvus server of a supported version; safe among threads."""

    def __init__(self, uri: str) -> None:
        pymilvus = import_pymilvus()
        self.uri, self.exception = uri, pymilvus.MilvusException
        try:
            self._client: Any = pymilvus.MilvusClient(
                uri, token=os.environ.get(TOKEN, ""), timeout=_CONNECT_S, dedicated=True
            )
            self.version = str(self._client.get_server_version(timeout=_CONNECT_S))
        except Exception as error:
            raise self._explain(error, doing="connecting") from error
        weakref.finalize(self, self._client.close)
        found = _VERSION.match(self.version)
        if found is None or not OLDEST <= (int(found[1]), int(found[2])) < NEXT:
            raise GalleryError(uri, f"Milvus {self.version}, expected 2.3 or a later 2; use such a server")

    def ask(self, ask: Callable[[Any], Answer], *, doing: str, collection: str | None = None) -> Answer:
        """Call the client by an idempotent function, with retries and back-off for some 45 seconds."""
        for wait_s in (*_WAITS_S, None):
            try:
                return ask(self._client)
            except self.exception as error:
                is_for_good = (
                    error.code == _NO_COLLECTION or _NO_RIGHTS.search(str(error)) or _FOR_GOOD.search(str(error))
                )
                if wait_s is None or (is_for_good and error.code != _NOT_LOADED):
                    raise self._explain(error, doing=doing) from error
                if error.code == _NOT_LOADED and collection is not None:
                    with suppress(self.exception):  # it is not loaded yet
                        self._client.load_collection(collection, timeout=_CALL_S)
                time.sleep(wait_s)
        raise AssertionError

    def _explain(self, error: Any, *, doing: str) -> GalleryError:
        code, text = getattr(error, "code", None), getattr(error, "message", None) or str(error)
        if _NO_RIGHTS.search(text) or _NO_RIGHTS.search(_tell_causes(error)):
            return GalleryError(self.uri, f"no right for {doing}; set {TOKEN} to a token that has it")
        if code == _NO_COLLECTION or "can't find collection" in text:
            return GalleryDamagedError(self.uri, f"the collection is missing; {doing} failed")
        if "index not found" in text:
            return GalleryDamagedError(self.uri, f"{doing} failed: a collection has lost its index")
        line = " ".join(text.split())[:_LONGEST]
        if doing == "connecting" or code == 2:
            return GalleryError(
                self.uri,
                f"no Milvus server answers there ({line}); start it, or correct the address, and run this again",
            )
        return GalleryError(self.uri, f"{doing} failed: {line}; what is done is kept: run the same command again")


def _tell_causes(error: BaseException) -> str:
    """The texts of an error's causes: pymilvus reports every failed connection as a timeout."""
    texts: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(texts) < _CAUSES:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return " ".join(texts)


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection by name, which need not exist yet, of vectors of a `width`."""

    server: Server
    name: str
    width: int

    @property
    def rows_at_once(self) -> int:
        """Vectors in one message."""
        return max(1, min(MOST_LISTED, _BYTES_AT_ONCE // (4 * self.width)))

    def call(self, method: str, *words: Any, doing: str, **options: Any) -> Any:
        """Call a method of the client, with the collection's name as first argument; see `Server.ask`."""
        return self.server.ask(
            lambda client: getattr(client, method)(self.name, *words, **options),
            doing=doing,
            collection=None if method == "load_collection" else self.name,
        )

    def check(self, *, model_sha256: str, last: int, count: int) -> None:
        """Check that it exists, is of the model, and has so many rows up to the last id; load it."""
        described = self.call("describe_collection", doing=f"looking for collection {self.name}")
        fields = {each["name"]: each.get("params", {}) for each in described["fields"]}
        if fields.get("vector", {}).get("dim") != self.width or described["description"] != model_sha256:
            raise self.damaged(f"expected vectors of {self.width} numbers, of the model {model_sha256}")
        self.load()
        if (seen := self.count(last)) != count:
            raise self.damaged(f"the collection has {seen:,} vectors, expected {count:,}")

    def make(self, *, model_sha256: str, kind: str, parameters: Mapping[str, int]) -> None:
        """Create the empty collection and its index, as far as they are missing, and load it."""

        def make(client: Any) -> None:
            if not client.has_collection(self.name):
                from pymilvus import DataType

                schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=model_sha256)
                schema.add_field("id", DataType.INT64, is_primary=True)
                schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.width)
                client.create_collection(self.name, schema=schema, consistency_level=BOUNDED)
            if not client.list_indexes(self.name):
                params = client.prepare_index_params()
                params.add_index(
                    "vector", index_type=kind, metric_type="IP", index_name="vector", params=dict(parameters)
                )
                client.create_index(self.name, params)

        self.server.ask(make, doing=f"making collection {self.name}")
        self.load()

    def drop(self) -> None:
        def drop(client: Any) -> None:
            if client.has_collection(self.name):
                client.drop_collection(self.name)

        self.server.ask(drop, doing=f"dropping collection {self.name}")

    def put(self, ids: Ids, vectors: Vectors) -> None:
        rows = [{"id": key, "vector": vector} for key, vector in zip(ids.tolist(), vectors, strict=True)]
        tries = count()

        def put(client: Any) -> None:
            if next(tries):  # a repeated insert would be two rows
                client.upsert(self.name, rows)
            else:
                client.insert(self.name, rows)

        self.server.ask(put, doing="writing vectors", collection=self.name)

    def delete(self, ids: Ids) -> None:
        for part in batches(ids, MOST_LISTED):
            self.call("delete", doing="deleting vectors", ids=part.tolist())

    def flush(self) -> None:
        self.call("flush", doing="storing vectors")

    def await_index(self, progress: Progress) -> None:
        """Wait until all rows are in the index, and reload the collection to search it."""
        while True:
            said = self.call("describe_index", "vector", doing="building the index")
            total, left = int(said["total_rows"]), int(said["pending_index_rows"])
            progress(total - left, total)
            if not left:
                break
            time.sleep(_INDEX_LOOK_S)
        # Without a reload, rows from before the index would still be compared one by one.
        self.call("release_collection", doing=f"loading collection {self.name}")
        self.load()

    def load(self) -> None:
        self.call("load_collection", doing=f"loading collection {self.name}")

    def count(self, last: int) -> int:
        """The number of rows up to the last id, with Strong consistency."""
        return int(self._query(f"id <= {last}", ["count(*)"], level=STRONG)[0]["count(*)"])

    def list_ids(self, *, above: int) -> Ids:
        """(n,) int64 ascending ids above one, with Strong consistency."""
        parts: list[Ids] = [np.empty(0, np.int64)]
        while True:
            found = self._query(f"id > {above}", ["id"], level=STRONG, limit=MOST_FOUND)
            parts.append(np.sort(np.array([row["id"] for row in found], dtype=np.int64)))
            if len(found) < MOST_FOUND:
                return np.concatenate(parts)
            above = int(parts[-1][-1])

    def gather(self, ids: Ids) -> Vectors:
        """The (n, D) float32 vectors of (n,) int64 ids."""
        found: dict[int, Vectors] = {}
        for part in batches(np.unique(ids), self.rows_at_once):
            rows = self._query(f"id in {part.tolist()}", ["id", "vector"], level=BOUNDED, limit=MOST_FOUND)
            found |= {int(row["id"]): np.array(row["vector"], dtype=np.float32) for row in rows}
        try:
            return np.array([found[key] for key in ids.tolist()], dtype=np.float32).reshape(-1, self.width)
        except KeyError as error:
            raise self.damaged(f"damaged: image {error} has no vector") from error

    def search(
        self,
        queries: Vectors,
        *,
        limit: int,
        expression: str,
        parameters: Mapping[str, float],
        with_vectors: bool = True,
    ) -> list[Hits]:
        """For each of (Q, D) queries the nearest rows of an expression, in any order, with index scores."""
        size = max(1, _BYTES_AT_ONCE // ((4 * self.width if with_vectors else 16) * limit))
        found: list[Hits] = []
        for start in range(0, len(queries), size):
            answer = self.call(
                "search",
                list(queries[start : start + size]),
                doing="searching",
                limit=limit,
                filter=expression,
                output_fields=["vector"] if with_vectors else [],
                consistency_level=BOUNDED,
                search_params={"metric_type": "IP", "params": dict(parameters)},
            )
            for hits in answer:
                vectors = [hit["entity"]["vector"] for hit in hits] if with_vectors else []
                found.append(
                    (
                        np.array([hit["distance"] for hit in hits], dtype=np.float32),
                        np.array([hit["id"] for hit in hits], dtype=np.int64),
                        np.array(vectors, dtype=np.float32).reshape(-1, self.width),
                    )
                )
        return found

    def _query(self, expression: str, names: Sequence[str], *, level: str, **others: Any) -> list[dict[str, Any]]:
        return list(
            self.call(
                "query",
                doing="reading vectors",
                filter=expression,
                output_fields=list(names),
                consistency_level=level,
                **others,
            )
        )

    def damaged(self, problem: str) -> GalleryDamagedError:
        return GalleryDamagedError(f"{self.server.uri} {self.name}", problem)


def batches(ids: Ids, size: int) -> Iterator[Ids]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
