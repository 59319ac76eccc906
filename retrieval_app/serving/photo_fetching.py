"""Photos fetched from an address that a visitor pasted, never from a private network.

Whoever may name an address may make the server ask it, from where the server stands. So every connection, also that of
a redirect, goes to an address that was checked when the connection is made, and a name that leads to a private network
even once is refused.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from index.network.public_addresses import MayConnect, is_public_web
from index.network.web_addresses import REDIRECTS, check_web_address, lead_on, refuse_address
from retrieval_app.serving.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpcore

_MOST_REDIRECTS = 3
_TIMEOUTS_S = {"connect": 5.0, "read": 10.0, "write": 5.0, "pool": 5.0}
_HEADERS: Mapping[str | bytes, str | bytes] = {
    "User-Agent": "retrieval-app", "Accept": "image/*", "Accept-Encoding": "identity", "Connection": "close",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FetchedPhoto:
    """What an address gave: its bytes, and the last part of the address as its name."""

    data: bytes
    name: str


class PhotoFetcher:
    """Fetches photos, a few at a time.

    Args:
        max_bytes: of one photo.
        seconds: until it has to be there.
        at_once: photos that are fetched.
        may_connect: which addresses may be asked, at which port.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        seconds: float = 20.0,
        at_once: int = 4,
        may_connect: MayConnect = is_public_web,
    ) -> None:
        self._max_bytes, self._may_connect, self._turns = max_bytes, may_connect, asyncio.Semaphore(at_once)
        self._seconds, self._at_once = seconds, at_once

    async def fetch(self, address: str) -> FetchedPhoto:
        """What an address of http or https gives.

        Raises:
            InputError: it is none, may not be asked, cannot be reached, or gives no picture of a sensible size.
            BusyError: others are being fetched.
        """
        if self._turns.locked():
            raise BusyError(f"{self._at_once} photos are being fetched; try again in a moment")
        async with self._turns:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._follow(address)
            except TimeoutError as error:
                raise refuse_address(address, f"it did not answer within {self._seconds:g} seconds") from error

    async def _follow(self, address: str) -> FetchedPhoto:
        import httpcore

        now = address
        for _ in range(_MOST_REDIRECTS + 1):
            check_web_address(now)
            try:
                async with self._ask(now) as answer:
                    headers = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
                    if answer.status not in REDIRECTS:
                        data = await self._read(answer, headers, address=now)
                        return FetchedPhoto(data, _name_of(now))
                    now = lead_on(now, headers.get(b"location", ""))
            except (
                httpcore.NetworkError,
                httpcore.ProtocolError,
                httpcore.TimeoutException,
                ssl.SSLError,
            ) as error:
                raise refuse_address(now, f"it cannot be reached: {error or type(error).__name__}") from error
        raise refuse_address(address, f"it leads on more than {_MOST_REDIRECTS} times")

    @asynccontextmanager
    async def _ask(self, address: str) -> AsyncIterator[httpcore.Response]:
        import httpcore

        from retrieval_app.serving.checked_network import CheckedNetwork

        network, parts = CheckedNetwork(self._may_connect), urlsplit(address)
        target = urlunsplit(("", "", parts.path or "/", parts.query, ""))  # with what httpcore would leave out
        url = httpcore.URL(scheme=parts.scheme, host=str(parts.hostname), port=parts.port, target=target)
        context = await asyncio.to_thread(_open_certificates) if parts.scheme == "https" else None
        async with (
            httpcore.AsyncConnectionPool(ssl_context=context, network_backend=network) as pool,
            pool.stream("GET", url, headers=_HEADERS, extensions={"timeout": _TIMEOUTS_S}) as answer,
        ):
            yield answer

    async def _read(self, answer: httpcore.Response, headers: dict[bytes, str], *, address: str) -> bytes:
        if answer.status != 200:
            raise refuse_address(address, f"it answers with status {answer.status}")
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if kind.startswith("text/"):
            raise refuse_address(
                address, f"it is a page ({kind}) and no picture: copy the address of the picture itself"
            )
        if headers.get(b"content-encoding", "identity") != "identity":
            raise refuse_address(address, "it sends its pictures packed, which was not asked for")
        parts, size = [], 0
        async for part in answer.aiter_stream():
            parts.append(part)
            size += len(part)
            if size > self._max_bytes:
                raise refuse_address(address, f"more than the {self._max_bytes / 1024**2:.0f} MB that are taken")
        return b"".join(parts)


@cache
def _open_certificates() -> ssl.SSLContext:
    """What hosts are known by; reading it takes long enough for others to notice, so it is read once, in a thread."""
    return ssl.create_default_context()


def _name_of(address: str) -> str:
    return unquote(urlsplit(address).path.rpartition("/")[2])[:200] or "photo"
