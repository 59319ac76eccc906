"""Whether an error comes of a full disk: it may have been raised from others, and be Python's or SQLite's."""

from __future__ import annotations

import errno
import sqlite3

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one of those that it was raised from, is of a disk or quota that is used up."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        if isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorname", None) == "SQLITE_FULL":
            return True
        cause = cause.__cause__
    return False
