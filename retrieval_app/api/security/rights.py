"""What a visitor may: read, review, write, or watch over the server; of the first three each includes those before.

A right is of every gallery of a server, or with a colon of the one of a name: `review:shop`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from index.errors import InputError
from retrieval_app.api.security.gallery_names import check_gallery_name

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


def spread_rights(given: Iterable[str], *, galleries: Collection[str] = ()) -> frozenset[str]:
    """The rights that are given in any of some galleries, and those that they include; nothing for what is no right.

    >>> sorted(spread_rights(["review"]))
    ['read', 'review']
    >>> sorted(spread_rights(["read", "write:shop"], galleries=["fashion"]))
    ['read']
    """
    parts = (right.partition(":") for right in given)
    held = (right for right, colon, gallery in parts if not colon or gallery in galleries)
    return frozenset().union(*(_INCLUDED.get(right, frozenset()) for right in held))


def check_rights(given: Iterable[str]) -> tuple[str, ...]:
    """The rights, each once and in their order: those of all galleries, then those of one after the other.

    Raises:
        InputError: there is none, or one that is not known.
    """
    parts = {text: text.partition(":") for text in given}
    wrong = sorted(text for text, (right, _, _) in parts.items() if right not in RIGHTS)
    if wrong or not parts:
        raise InputError(
            f"rights are some of {', '.join(RIGHTS)}, for one gallery with its name, as review:shop; "
            f"got {', '.join(text[:80] for text in wrong) or 'none'}"
        )
    for _, colon, gallery in parts.values():
        if colon:
            check_gallery_name(gallery)
    return tuple(sorted(parts, key=lambda text: (parts[text][2], RIGHTS.index(parts[text][0]))))
