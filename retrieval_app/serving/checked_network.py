"""Connections to addresses that are checked as they are made: a name cannot change its meaning in between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

import httpcore

from index.errors import InputError
from index.network.public_addresses import MayConnect, check_addresses
from index.text import printable_path

_ADVICE = "save the picture and send it instead"


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Opens TCP connections, to none but addresses that may be asked.

    Args:
        may_connect: which addresses may be asked, at which port.
    """

    def __init__(self, may_connect: MayConnect) -> None:
        self._may_connect, self._network = may_connect, httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address of the host, where all of them may be asked.

        Raises:
            InputError: the host is not known, or one of its addresses may not be asked.
        """
        found = await find_addresses(host, port)
        check_addresses(host, port, found=found, may_connect=self._may_connect, advice=_ADVICE)
        return await self._network.connect_tcp(found[0], port, timeout, local_address, socket_options)

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Refused: no address names one.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("no address names a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._network.sleep(seconds)


async def find_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host by its name, in the order in which they are to be tried.

    Raises:
        InputError: it has none.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"{printable_path(host)}: no such host is known here") from error
    return [str(address[0]) for *_, address in found]
