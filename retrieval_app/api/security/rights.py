"""Rights and visitors. A right holds in every gallery of a server, or with a colon in one: `review:shop`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from index.errors import InputError

if TYPE_CHECKING:  # the options of a server are read where the extra `ui` is not installed
    from starlette.types import Scope

READ, REVIEW, WRITE = RIGHTS = ("read", "review", "write")
"""Searching and looking; deciding about labels and duplicates; changing the gallery."""
ALL = frozenset(RIGHTS)
_INCLUDED = {READ: {READ}, REVIEW: {READ, REVIEW}, WRITE: ALL}
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


def check_gallery_name(name: str) -> None:
    """Refuse a name that no gallery of a server can have."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is not a valid gallery name: expected 1 to 64 letters and digits of ASCII and . _ -, "
            "of which the first is a letter or digit, as in shop=photos/shop-gallery"
        )


def spread_rights(given: Iterable[str], *, galleries: Collection[str] = ()) -> frozenset[str]:
    """The rights in any of some galleries, with those that they include; unknown ones are nothing.

    >>> sorted(spread_rights(["review"]))
    ['read', 'review']
    >>> sorted(spread_rights(["read", "write:shop"], galleries=["fashion"]))
    ['read']
    """
    parts = (right.partition(":") for right in given)
    held = (right for right, colon, gallery in parts if not colon or gallery in galleries)
    return frozenset().union(*(_INCLUDED.get(right, ()) for right in held))


def check_rights(given: Iterable[str]) -> tuple[str, ...]:
    """The rights, each once, ordered by gallery; InputError for an unknown right."""
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
    """The sender of a request."""

    has_token: bool = False  # or the cookie of a session
    rights: frozenset[str] = frozenset()
    name: str = "a visitor"  # for the activity log: a token's name, or words with a space, which no token's name has
    address: str = "unknown"  # as far as it cannot be forged
    by_tls: bool = False
    signed_in: bool = False  # by a cookie, which signing out ends

    @property
    def is_trusted(self) -> bool:
        """Whether the visitor may decide, and see the folders of the machine."""
        return REVIEW in self.rights

    @property
    def knows_failures(self) -> bool:
        """Whether the visitor sees why the server failed."""
        return self.has_token and self.is_trusted


STRANGER = Visitor()


def keep_visitor(scope: Scope, visitor: Visitor) -> None:
    """Store the visitor of a request for the routes."""
    scope["state"]["visitor"] = visitor


def find_visitor(scope: Scope) -> Visitor:
    """The visitor of a request; a stranger where none was stored."""
    return cast("Visitor", scope.get("state", {}).get("visitor", STRANGER))
