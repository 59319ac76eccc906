"""Builds a gallery in Milvus, a few vectors at a time, and tells of each: to be killed in the middle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from index.vectors.milvus.collection import Collection
from index.vectors.milvus.writer import MilvusWriter
from index.vectors.store_config import StoreConfig
from tests.index.galleries import build


def main(model: str, folder: str, gallery: str, uri: str) -> None:
    """Build it."""
    put, parts = Collection.put, MilvusWriter._parts

    def tell(*given: Any, **named: Any) -> None:
        put(*given, **named)
        sys.stdout.write("put\n")
        sys.stdout.flush()

    Collection.put = tell  # type: ignore[method-assign]
    MilvusWriter._parts = (
        lambda self, ids: [  # type: ignore[method-assign]
            part[start : start + 10] for part in parts(self, ids) for start in range(0, len(part), 10)
        ]
    )
    build(Path(folder), Path(gallery), Path(model), store=StoreConfig("milvus", uri))


if __name__ == "__main__":
    main(*sys.argv[1:])
