"""Request bodies: read whole, within a limit on the bytes of all bodies that have arrived so far."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from starlette.types import Receive

from retrieval_app.api.errors import ApiError
from retrieval_app.serving.errors import BusyError
from retrieval_app.serving.serving_config import ServingConfig

SMALL_BYTES = 1024 * 1024
"""Bodies of no more have a part of the limit to themselves, so that photos do not keep searches out."""
_SMALL_SHARE = 8  # one part in as many
_FULL = "the server is busy receiving other bodies; try again in a moment"


@dataclass(eq=False, slots=True)
class _Arriving:
    announced: int
    since: float
    data: bytearray = field(default_factory=bytearray)
    held: int = 0
    held_before: int = 0  # when the window began
    window_end: float = 0.0
    waits: anyio.CancelScope | None = None
    is_displaced: bool = False


class BodyRoom:
    """The bytes of all bodies that are arriving or in use; at the limit, a slow one gives way to a newer one."""

    def __init__(self, config: ServingConfig) -> None:
        self._config, self.held = config, 0  # bytes that there are now
        self._unfinished: dict[_Arriving, None] = {}  # the oldest first

    @asynccontextmanager
    async def read(self, receive: Receive, *, announced: int) -> AsyncIterator[bytes | None]:
        """The body, which counts until the end of the context; None where the client left; else BusyError, ApiError."""
        body = _Arriving(announced, time.monotonic())
        self._unfinished[body] = None
        try:
            yield await self._read(receive, body)
        finally:
            self._unfinished.pop(body, None)
            self.held -= body.held

    async def _read(self, receive: Receive, body: _Arriving) -> bytes | None:
        config, end = self._config, body.since + self._config.upload_s
        body.window_end = body.since + config.upload_window_s
        while True:
            message, left_s = None, min(end, body.window_end) - time.monotonic()
            with anyio.CancelScope(deadline=anyio.current_time() + left_s) as body.waits:
                message = await receive()
            if body.is_displaced:
                raise BusyError(_FULL)
            if message is not None:
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                if body.held + len(chunk) > body.announced:
                    problem = f"the body is longer than the {body.announced:,} bytes that were announced"
                    raise ApiError(problem, status=400)
                self._make_room(len(chunk), body)
                body.data += chunk
                body.held += len(chunk)
                self.held += len(chunk)
                if not message.get("more_body", False):
                    self._unfinished.pop(body, None)
                    return bytes(body.data)
            now = time.monotonic()
            if now >= end:
                problem = f"the body did not arrive within {config.upload_s:g} seconds; send a smaller one"
                raise ApiError(problem, status=408)
            if now >= body.window_end:
                least = config.upload_bytes_a_second
                if body.held - body.held_before < least * config.upload_window_s:
                    raise ApiError(f"the body did not arrive with at least {least:,} bytes a second", status=408)
                body.held_before, body.window_end = body.held, now + config.upload_window_s

    def _make_room(self, count: int, body: _Arriving) -> None:
        most = self._config.bytes_arriving
        if body.announced > SMALL_BYTES:
            most -= most // _SMALL_SHARE
        while self.held + count > most:
            oldest = next(iter(self._unfinished), body)
            if oldest is body or time.monotonic() - oldest.since < self._config.upload_window_s:
                raise BusyError(_FULL)
            del self._unfinished[oldest]
            self.held -= oldest.held
            oldest.held, oldest.is_displaced = 0, True
            oldest.data.clear()
            if oldest.waits is not None:
                oldest.waits.cancel()
