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

import httptools
import numpy as np
import psutil

from benchmarks.common.processes import run_alone
from benchmarks.serving.requests import ASKING, Material, Request

_OK, _REFUSED = 200, 503


def run_load(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run the load in a new process; its document.

    Args:
        settings: `host` and `port`, `asking` (one of requests.ASKING), `clients`, `k`, `seed`; a file `ids` or a list
            `photos`, as the requests need them; `warm_up` seconds and then `seconds`; `pid` of the server.

    Raises:
        SystemExit: it failed, or the server ended a connection; its message is on stderr.
    """
    failing = "serving.load exited with {}, asking " + settings["asking"]
    return run_alone("benchmarks.serving.load", settings=settings, failing=failing)


@dataclass(slots=True)
class Tally:
    """What happened in a span of time: seconds of the requests that were answered well, and answers by status."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)


class _Client(asyncio.Protocol):
    """One connection with one open request at most, whose answers httptools puts together."""

    tally = Tally()  # of all clients; may be replaced at any moment to count anew

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._wait = 0
        self._answer: asyncio.Future[int] | None = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._wait = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._wait = int(value)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server ended a connection"))

    async def ask_on(self, settings: Mapping[str, Any], ask: Callable[[], Request]) -> None:
        """A request after another."""
        loop, host, port = asyncio.get_running_loop(), settings["host"], settings["port"]
        transport, _ = await loop.create_connection(lambda: self, host, port)
        while True:
            path, body, content_type = ask()
            head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: {content_type}\r\n"
            request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            started, status = time.perf_counter(), 0
            while not status or (status == _REFUSED and self._wait):
                await asyncio.sleep(self._wait if status else 0)
                self._answer = loop.create_future()
                transport.write(request)
                status = await self._answer
                _Client.tally.statuses[status] += 1
            if status == _OK:
                _Client.tally.seconds.append(time.perf_counter() - started)


async def measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The load that settings describe, as `run_load` says."""
    ask = partial(ASKING[settings["asking"]], Material.load(settings))
    clients = [asyncio.create_task(_Client().ask_on(settings, ask)) for _ in range(settings["clients"])]
    server = psutil.Process(settings["pid"])
    await asyncio.wait(clients, timeout=settings["warm_up"], return_when=asyncio.FIRST_EXCEPTION)
    _Client.tally = tally = Tally()
    started, own, served = time.perf_counter(), time.process_time(), sum(server.cpu_times()[:2])
    ended, _ = await asyncio.wait(clients, timeout=settings["seconds"], return_when=asyncio.FIRST_EXCEPTION)
    seconds = time.perf_counter() - started
    own, served = time.process_time() - own, sum(server.cpu_times()[:2]) - served
    for client in ended:
        client.result()  # raises what ended it
    for client in clients:
        client.cancel()
    return {
        "clients": settings["clients"],
        "statuses": dict(sorted(tally.statuses.items())),
        **describe_latency(tally.seconds),
        "per_second": len(tally.seconds) / seconds,
        "own_cores": own / seconds,
        "server_cores": served / seconds,
    }


def describe_latency(seconds: list[float]) -> dict[str, float | None]:
    """Milliseconds: the least that half, and that 99 of 100, do not exceed."""
    if not seconds:
        return {"p50_ms": None, "p99_ms": None}
    p50, p99 = np.percentile(seconds, [50, 99], method="inverted_cdf")
    return {"p50_ms": 1000 * float(p50), "p99_ms": 1000 * float(p99)}


def main() -> None:
    gc.disable()  # a pause here would look like one of the server
    try:
        print(json.dumps(asyncio.run(measure(json.load(sys.stdin)))))
    except (OSError, httptools.HttpParserError) as error:
        sys.exit(f"serving.load: {error}")


if __name__ == "__main__":
    main()
