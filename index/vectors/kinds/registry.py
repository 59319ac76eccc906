"""The kinds of search structures there are; a further one is its own file and its entry here."""

from __future__ import annotations

from collections.abc import Mapping

from index.vectors.kinds.flat import Flat
from index.vectors.kinds.hnsw import Graph
from index.vectors.kinds.ivf import ByteLists
from index.vectors.kinds.kind import IndexKind
from index.vectors.kinds.pq import CodeLists

_ALL: tuple[IndexKind, ...] = (  # `auto` takes the first that fits
    Flat(),
    Graph(),
    ByteLists(),
    CodeLists(),
)
KINDS: Mapping[str, IndexKind] = {kind.name: kind for kind in _ALL}
INDEX_TYPES = ("auto", *KINDS)


def list_summaries() -> str:
    """What each kind is, for `--help`."""
    exact = ", ".join(f"{kind.name} {kind.summary}" for kind in _ALL if kind.is_exact)
    others = ", ".join(f"{kind.name} {kind.summary}" for kind in _ALL if not kind.is_exact)
    return f"{exact}; {others}, re-ranked exactly"
