"""The errors of a server that is busy, too slow or not ready, and of photos that it no longer keeps."""

from __future__ import annotations

from index.errors import InputError, RetrievalError


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
