"""A store in Milvus whose index reckons scores with an error, as single precision has it; no server is needed."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from index.arrays import Ids, Vectors
from index.vectors.milvus.collection import Hits
from index.vectors.milvus.store import IDS_NAME, MilvusRows, MilvusStore
from index.vectors.shards import write_array
from index.versions.manifest import Manifest

ROWS, COPIES, WIDTH = 200, 60, 8


class Inexact:
    """The part of a collection that a search asks, of which a later row seems a little nearer."""

    width, rows_at_once = WIDTH, 1000

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    def check(self, **expected: object) -> None:
        """It is there."""

    def search(
        self, queries: Vectors, *, limit: int, expression: str, parameters: object, with_vectors: bool = True
    ) -> list[Hits]:
        """As `Collection.search`; an expression is one of Python, too."""
        kept = np.array([key for key in range(ROWS) if eval(expression, {"id": key})], dtype=np.int64)
        found = []
        for query in queries:
            scores = (self.vectors[kept] @ query + 2e-8 * kept).astype(np.float64)
            order = np.argsort(-scores)[:limit]
            rows = kept[order]
            found.append((scores[order].astype(np.float32), rows, self.vectors[rows if with_vectors else rows[:0]]))
        return found

    def gather(self, ids: Ids) -> Vectors:
        return self.vectors[ids]


def test_of_many_copies_those_of_the_smallest_ids_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[:COPIES] = vectors[0]
    (tmp_path / "ids").mkdir()
    write_array(tmp_path / IDS_NAME, np.arange(ROWS))
    monkeypatch.setattr(MilvusRows, "collection", Inexact(vectors))
    manifest = SimpleNamespace(files={}, index={"type": "flat", "parameters": {}}, model_sha256="")
    store = MilvusStore(tmp_path, cast("Manifest", manifest))
    among = store.subset(np.arange(0, ROWS, 2))
    assert among.has(np.array([ROWS, 0, 1, ROWS - 2])).tolist() == [False, True, False, True]
    assert not store.subset(np.empty(0, np.int64)).has(np.arange(3)).any()
    _, ids = store.search(vectors[:1], k=5, among=among)
    assert ids.tolist() == [[0, 2, 4, 6, 8]]
