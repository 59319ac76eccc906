"""Errors of a server: busy, too slow, not ready, a photo that it no longer keeps, a full disk."""

from __future__ import annotations

import errno
import sqlite3

from index.errors import InputError, RetrievalError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotReadyError(RetrievalError):
    """There is no gallery to answer from."""


class BusyError(RetrievalError):
    """More is waiting than the server takes; nothing was begun, and the same may be asked again later."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TimedOutError(RetrievalError):
    """Work that was begun and took too long: nobody waits for it any more, but it may still be done."""


class OutOfTurnError(RetrievalError):
    """A picture that may cost much, met where others would wait for it: it is to be decoded apart."""


class UnknownPhotoError(InputError):
    """A photo that is not kept any more, or never was."""

    def __init__(self) -> None:
        super().__init__("this photo is no longer kept by the server; send it again")


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
