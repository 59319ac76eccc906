"""What a visitor may: read, review, write, or watch over the server; of the first three each includes those before."""

from __future__ import annotations

from collections.abc import Iterable

READ, REVIEW, WRITE, METRICS = "read", "review", "write", "metrics"
RIGHTS = (READ, REVIEW, WRITE, METRICS)
"""Searching and looking; deciding about labels and duplicates; changing the gallery; what the server counts."""
ALL = frozenset(RIGHTS)
_INCLUDED = {
    READ: frozenset((READ,)),
    REVIEW: frozenset((READ, REVIEW)),
    WRITE: ALL,
    METRICS: frozenset((METRICS,)),
}


def spread_rights(given: Iterable[str]) -> frozenset[str]:
    """The rights that are given, and those that they include; nothing for what is no right.

    >>> sorted(spread_rights(["review"]))
    ['read', 'review']
    """
    return frozenset().union(*(_INCLUDED.get(right, frozenset()) for right in given))
