"""Which names a server answers to, so that nobody reaches it by pointing a name of theirs at its address."""

from __future__ import annotations

import re

from starlette.datastructures import Headers

_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)


def names_this_machine(headers: Headers) -> bool:
    """Whether a request asks for a server by a name that only the machine itself has for it."""
    return _LOOPBACK.fullmatch(headers.get("host", "")) is not None
