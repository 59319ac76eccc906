"""The front's connections to its workers."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import httpcore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrieval_app.server.workers.supervisor import Worker

_CONNECT_S = 5.0
_IDLE_S, _MOST_IDLE = 60.0, 16  # each request looks through those that are idle


class WorkerClient:
    """Asks one worker; used by the event loop alone.

    Args:
        worker: that is asked.
        patience_s: that it may be silent for; it bounds its work itself, but one that was stopped does nothing at all.
    """

    def __init__(self, worker: Worker, *, patience_s: float) -> None:
        self.worker = worker
        self._timeouts_s = {"connect": _CONNECT_S, "read": patience_s, "write": patience_s}
        self._pool = httpcore.AsyncConnectionPool(
            uds=str(worker.socket),
            max_connections=None,
            max_keepalive_connections=_MOST_IDLE,
            keepalive_expiry=_IDLE_S,
        )

    def stream(
        self, method: str, target: bytes, *, headers: Sequence[tuple[bytes, bytes]] = (), content: bytes = b""
    ) -> AbstractAsyncContextManager[httpcore.Response]:
        """The answer to a request."""
        url = httpcore.URL(scheme=b"http", host=b"worker", port=None, target=target)
        return self._pool.stream(
            method, url, headers=list(headers), content=content, extensions={"timeout": self._timeouts_s}
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._pool.aclose()


class WorkerClients:
    """The clients of all workers, made when first asked for; used by the event loop alone.

    Args:
        patience_s: that a worker may be silent for.
    """

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._clients: dict[int, WorkerClient] = {}
        self._closing = set[asyncio.Task[None]]()

    def of(self, worker: Worker) -> WorkerClient:
        """That of a worker, which takes the place of the one of the worker before it."""
        client = self._clients.get(worker.number)
        if client is None or client.worker is not worker:
            if client is not None:
                closing = asyncio.get_running_loop().create_task(client.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            client = self._clients[worker.number] = WorkerClient(worker, patience_s=self._patience_s)
        return client

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()
