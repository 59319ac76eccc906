"""Load generator: clients in a closed loop on connections that stay open, in one thread of a process of its own.

Each client sends a request, waits for the whole answer, and sends the next at once. A 503 with Retry-After is counted,
and the same request is sent again after as many seconds; the latency then includes the wait. The processor time of the
generator is measured too, since it shares the cores with the server.

`run_load(settings)` runs the process; it prints one JSON document.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psutil

from benchmarks.common.processes import run_alone
from benchmarks.serving.http import Conversation, Reply, ReplyReader, find_address
from benchmarks.serving.requests import ASKING, Material

_REFUSED = 503
_RECONNECT_SECONDS = 0.05


def run_load(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run the load in a new process; its document.

    Args:
        settings: `url`, `asking` (one of requests.ASKING), `clients`, `k`, `seed`; a file `ids` or a list `photos`, as
            the requests need them; `warm_up` seconds and then `seconds`; `pid` of the server.

    Raises:
        SystemExit: it failed; its message is on stderr.
    """
    failing = "serving.load exited with {}, asking " + settings["asking"]
    return run_alone("benchmarks.serving.load", settings=settings, failing=failing)


@dataclass(slots=True)
class Tally:
    """What happened in a span of time: answered conversations' seconds, and replies by status."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    failed: int = 0
    broken: int = 0


class Load:
    """Clients that ask; `tally` may be replaced at any moment to count anew."""

    def __init__(self, url: str, begin: Callable[[], Conversation]) -> None:
        self.address, self.begin = find_address(url), begin
        self.tally = Tally()
        self._clients: dict[_Client, asyncio.Task[None]] = {}

    async def start(self, clients: int) -> None:
        """Connect so many clients, which ask at once.

        Raises:
            OSError: the server cannot be reached.
        """
        for _ in range(clients):
            client = _Client(self)
            await client.connect()
            self._clients[client] = asyncio.create_task(client.ask_on())

    def stop(self) -> None:
        """Close all connections, whatever they wait for; raises what a client has raised."""
        for client, task in self._clients.items():
            if task.done():
                task.result()
            task.cancel()
            client.transport.abort()

    def settle(self, seconds: float, *, well: bool) -> None:
        """Count a conversation that has ended."""
        if well:
            self.tally.seconds.append(seconds)
        else:
            self.tally.failed += 1


class _Client(asyncio.Protocol):
    """One connection with one open request at most; another one where the server ends it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._reply: asyncio.Future[Reply] | None = None

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._reader = ReplyReader()
        self.transport, _ = await loop.create_connection(lambda: self, *self._load.address)

    def data_received(self, data: bytes) -> None:
        reply = self._reader.feed(data)
        if reply is not None and self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionResetError())

    async def ask_on(self) -> None:
        """A conversation after another."""
        while True:
            conversation, started = self._load.begin(), time.perf_counter()
            well = await self._lead(conversation)
            self._load.settle(time.perf_counter() - started, well=well)

    async def _lead(self, conversation: Conversation) -> bool:
        request = next(conversation)
        while True:
            reply = await self._ask(request)
            self._load.tally.statuses[reply.status] += 1
            if reply.status == _REFUSED and reply.retry_after is not None:
                self._load.tally.refused += 1
                await asyncio.sleep(reply.retry_after)
                continue
            try:
                request = conversation.send(reply)
            except StopIteration as end:
                return bool(end.value)

    async def _ask(self, request: bytes) -> Reply:
        """The answer, on a new connection where the old one breaks."""
        while True:
            try:
                if self.transport.is_closing():  # servers close connections that are idle for long
                    await self.connect()
                self._reply = asyncio.get_running_loop().create_future()
                self.transport.write(request)
                reply = await self._reply
            except OSError as error:
                self._load.tally.broken += 1
                await asyncio.sleep(0 if isinstance(error, ConnectionResetError) else _RECONNECT_SECONDS)
            else:
                if reply.closes:
                    self.transport.abort()
                return reply


async def measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The load that settings describe, as `run_load` says."""
    host, port = find_address(settings["url"])
    material = Material.load(f"{host}:{port}", settings)
    load = Load(settings["url"], partial(ASKING[settings["asking"]], material))
    await load.start(settings["clients"])
    server = psutil.Process(settings["pid"])
    await asyncio.sleep(settings["warm_up"])
    load.tally = tally = Tally()
    started, own, served = time.perf_counter(), time.process_time(), sum(server.cpu_times()[:2])
    await asyncio.sleep(settings["seconds"])
    seconds = time.perf_counter() - started
    own, served = time.process_time() - own, sum(server.cpu_times()[:2]) - served
    load.stop()
    return {
        "clients": settings["clients"],
        "seconds": seconds,
        "statuses": dict(sorted(tally.statuses.items())),
        "refused": tally.refused,
        "failed": tally.failed,
        "broken": tally.broken,
        **describe_latency(tally.seconds),
        "per_second": len(tally.seconds) / seconds,
        "own_cores": own / seconds,
        "server_cores": served / seconds,
    }


def describe_latency(seconds: list[float]) -> dict[str, Any]:
    """How many, and their milliseconds: the least that half, and that 99 of 100, do not exceed, and the most."""
    if not seconds:
        return {"answered": 0, "p50_ms": None, "p99_ms": None, "most_ms": None}
    p50, p99 = np.percentile(seconds, [50, 99], method="inverted_cdf")
    named = {"p50_ms": p50, "p99_ms": p99, "most_ms": max(seconds)}
    return {"answered": len(seconds), **{name: 1000 * float(value) for name, value in named.items()}}


def main() -> None:
    gc.disable()  # a pause here would look like one of the server
    try:
        print(json.dumps(asyncio.run(measure(json.load(sys.stdin)))))
    except (OSError, ValueError) as error:
        sys.exit(f"serving.load: {error}")


if __name__ == "__main__":
    main()
