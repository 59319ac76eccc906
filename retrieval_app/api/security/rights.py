"""Rights and visitors: read, review, write, or watch over the server; of the first three each includes those before.

A right is of every gallery of a server, or with a colon of the one of a name: `review:shop`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from index.errors import InputError

if TYPE_CHECKING:  # the options of a server are read where nothing of the extra `ui` is installed
    from starlette.types import Scope

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
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


def check_gallery_name(name: str) -> str:
    """The name, if it may be one."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is no name of a gallery: expected 1 to 64 letters and digits of ASCII and . _ -, "
            "of which the first is a letter or digit, as in shop=photos/shop-gallery"
        )
    return name


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
    """The rights, each once and in their order: those of all galleries, then those of one after the other."""
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


@dataclass(frozen=True, slots=True)
class Visitor:
    """One who asks.

    Attributes:
        has_token: whether the request brought a token of the server's, or the cookie of somebody who had.
        rights: what the visitor may.
        name: who it is, for the log of what was done: a token's name, or words with a space, which no name has.
        address: where the request comes from, as far as that cannot be made up.
        by_tls: whether the browser spoke TLS.
        signed_in: whether a cookie told who it is, which signing out ends.
    """

    has_token: bool = False
    rights: frozenset[str] = frozenset()
    name: str = "a visitor"
    address: str = "unknown"
    by_tls: bool = False
    signed_in: bool = False

    @property
    def is_trusted(self) -> bool:
        """Whether the visitor may decide, and know the folders of the machine."""
        return REVIEW in self.rights

    @property
    def knows_failures(self) -> bool:
        """Whether the visitor is told what went wrong inside the server."""
        return self.has_token and self.is_trusted


STRANGER = Visitor()


def keep_visitor(scope: Scope, visitor: Visitor) -> None:
    """Let the routes know who asks."""
    scope["state"]["visitor"] = visitor


def find_visitor(scope: Scope) -> Visitor:
    """Who asks; a stranger where nobody has looked."""
    return cast("Visitor", scope.get("state", {}).get("visitor", STRANGER))
