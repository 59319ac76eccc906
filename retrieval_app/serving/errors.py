"""Errors of a server: busy, timed out, not ready, unknown photo, full disk."""

import errno
import sqlite3

from index.errors import InputError, RetrievalError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotReadyError(RetrievalError):
    """No gallery can be searched."""


class BusyError(RetrievalError):
    """Too many requests wait; nothing was begun, and the client may try again later."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TimedOutError(RetrievalError):
    """A request that was begun and took too long; it may still be done."""


class OutOfTurnError(RetrievalError):
    """An image whose decode may cost much, in a thread that others wait for."""


class UnknownPhotoError(InputError):
    """A photo that never was, or is no longer kept."""

    def __init__(self) -> None:
        super().__init__("this photo is no longer kept by the server; send it again")


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one of its causes, is a full disk or quota."""
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
