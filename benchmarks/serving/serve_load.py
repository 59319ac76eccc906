"""The load: clients in a closed loop on connections that stay open, all in one thread of a process of its own.

Each client asks, waits for the whole answer, and asks again at once. A 503 with Retry-After is counted, and the same
request is sent again after as many seconds; the latency then has the waiting in it. What the process itself takes of
the cores is measured, since it shares them with the server.

`run_load(settings)` runs the process; it prints one JSON document.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
import psutil

from benchmarks.common.processes import read_memory
from benchmarks.serving.serve_http import Conversation, Reply, ReplyReader, find_address
from benchmarks.serving.serve_requests import Material, mix

_REFUSED = 503
_RECONNECT_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0  # without any answer: the server hangs


def run_load(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run the load in a new process; its document.

    Args:
        settings: `url`, `asking` ({one of serve_requests.ASKING: share}), `clients`, `k`, `seed`; files `ids`,
            `vectors`, and a list `photos`, as the questions need them; `warm_up` seconds and then `seconds`, or a
            number of `requests`; `pid` of the server; `sample_seconds` between two looks at its memory, 0 for none.

    Raises:
        SystemExit: it failed; its message is on stderr.
    """
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving.serve_load"],
        input=json.dumps(settings, default=str), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if finished.returncode:
        sys.exit(f"serve_load exited with {finished.returncode}, asking {', '.join(settings['asking'])}")
    document: dict[str, Any] = json.loads(finished.stdout)
    return document


@dataclass(slots=True)
class Tally:
    """What happened in a span of time: answered conversations' seconds, and replies by status."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    failed: int = 0
    broken: int = 0


@dataclass(frozen=True, slots=True)
class MemorySample:
    """A moment: bytes of the server's process, and conversations answered so far."""

    seconds: float
    anonymous: int
    resident: int
    answered: int


class Load:
    """Clients that ask until `stop`; `tally` may be replaced at any moment to count anew."""

    def __init__(self, url: str, begin: Callable[[], Conversation]) -> None:
        self.tally = Tally()
        self.answered = 0
        self.on_answer: Callable[[], None] = _do_nothing
        self._address, self._begin = find_address(url), begin
        self._stopped = False
        self._clients: set[_Client] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def start(self, clients: int) -> None:
        """Connect so many clients, which ask at once.

        Raises:
            OSError: the server cannot be reached.
        """
        loop = asyncio.get_running_loop()
        for _ in range(clients):
            await loop.create_connection(lambda: _Client(self, loop), *self._address)

    def stop(self) -> None:
        """Close all connections, whatever they wait for."""
        self._stopped = True
        for client in list(self._clients):
            client.close()
        for task in self._connecting:
            task.cancel()

    def begin(self) -> Conversation | None:
        """The next conversation; None after the stop."""
        return None if self._stopped else self._begin()

    def settle(self, seconds: float, *, well: bool) -> None:
        """Count a conversation that has ended."""
        if well:
            self.answered += 1
            self.tally.seconds.append(seconds)
        else:
            self.tally.failed += 1
        self.on_answer()

    def join(self, client: _Client) -> None:
        self._clients.add(client)

    def leave(self, client: _Client, *, asked: _Asked | None, wait: float) -> None:
        """A connection has ended; its question, if one was open, is asked on a new one after some seconds."""
        self._clients.discard(client)
        if not self._stopped:
            task = asyncio.get_running_loop().create_task(self._replace(asked, wait=wait))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _replace(self, asked: _Asked | None, *, wait: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(wait)
        while not self._stopped:
            try:
                await loop.create_connection(lambda: _Client(self, loop, asked=asked), *self._address)
                return
            except OSError:
                self.tally.broken += 1
                await asyncio.sleep(_RECONNECT_SECONDS)


def _do_nothing() -> None:
    pass


@dataclass(slots=True)
class _Asked:
    """A conversation that goes on: when it began, and the request that has no answer yet."""

    conversation: Conversation
    started: float
    request: bytes


class _Client(asyncio.Protocol):
    """One connection with one open request at most."""

    def __init__(self, load: Load, loop: asyncio.AbstractEventLoop, *, asked: _Asked | None = None) -> None:
        self._load, self._loop, self._asked = load, loop, asked
        self._reader = ReplyReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._closes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._load.join(self)
        if self._asked is None:
            self._ask_anew()
        else:
            self._send()

    def close(self) -> None:
        self._asked = None
        if self._waiting is not None:
            self._waiting.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        wait = 0.0
        if self._waiting is not None:  # after a 503; servers close connections that are idle for long
            self._waiting.cancel()
            wait = max(0.0, self._waiting.when() - self._loop.time())
        elif self._asked is not None and not self._closes:
            self._load.tally.broken += 1
        self._load.leave(self, asked=self._asked, wait=wait)

    def data_received(self, data: bytes) -> None:
        reply = self._reader.feed(data)
        if reply is None:
            return
        self._closes = reply.closes
        self._take(reply)

    def _ask_anew(self) -> None:
        conversation = self._load.begin()
        if conversation is None:
            self.close()
            return
        self._asked = _Asked(conversation, time.perf_counter(), next(conversation))
        self._send()

    def _send(self) -> None:
        self._waiting = None
        if self._transport is not None and self._asked is not None and not self._closes:
            self._transport.write(self._asked.request)

    def _take(self, reply: Reply) -> None:
        asked, tally = self._asked, self._load.tally
        if asked is None:
            return
        tally.statuses[reply.status] += 1
        if reply.status == _REFUSED and reply.retry_after is not None:
            tally.refused += 1
            self._waiting = self._loop.call_later(reply.retry_after, self._send)
            return
        try:
            asked.request = asked.conversation.send(reply)
        except StopIteration as end:
            self._asked = None
            self._load.settle(time.perf_counter() - asked.started, well=end.value)
            if not self._closes:
                self._ask_anew()
        else:
            self._send()


# --- Measuring ------------------------------------------------------------------------------------------------------


async def measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The load that settings describe, as `run_load` says."""
    host, port = find_address(settings["url"])
    load = Load(settings["url"], mix(settings["asking"], Material.load(f"{host}:{port}", settings)))
    with _no_collection():
        return await _measure(load, settings)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: a pause here would look like one of the server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _measure(load: Load, settings: Mapping[str, Any]) -> dict[str, Any]:
    await load.start(settings["clients"])
    pid, samples = settings["pid"], list[MemorySample]()
    await asyncio.sleep(settings.get("warm_up", 0))
    load.tally, load.answered = Tally(), 0
    started, own, server = time.perf_counter(), time.process_time(), _cpu_seconds(pid)
    sampling = None
    if every := settings.get("sample_seconds", 0):
        sampling = asyncio.create_task(_sample(load, samples, pid=pid, every=every, started=started))
    if "requests" in settings:
        await _answer(load, settings["requests"])
    else:
        await asyncio.sleep(settings["seconds"])
    seconds = time.perf_counter() - started
    own, server = time.process_time() - own, _cpu_seconds(pid) - server
    tally = load.tally
    load.stop()
    if sampling is not None:
        sampling.cancel()
    return {
        "clients": settings["clients"], "seconds": seconds, "statuses": dict(sorted(tally.statuses.items())),
        "refused": tally.refused, "failed": tally.failed, "broken": tally.broken, **describe_latency(tally.seconds),
        "per_second": len(tally.seconds) / seconds, "own_cores": own / seconds, "server_cores": server / seconds,
        **({"samples": [asdict(sample) for sample in samples]} if samples else {}),
    }  # fmt: skip


def describe_latency(seconds: list[float]) -> dict[str, Any]:
    """How many, and their milliseconds: the least that half, and that 99 of 100, do not exceed, and the most."""
    if not seconds:
        return {"answered": 0, "p50_ms": None, "p99_ms": None, "most_ms": None}
    p50, p99 = np.percentile(seconds, [50, 99], method="inverted_cdf")
    named = {"p50_ms": p50, "p99_ms": p99, "most_ms": max(seconds)}
    return {"answered": len(seconds), **{name: 1000 * float(value) for name, value in named.items()}}


async def _answer(load: Load, requests: int) -> None:
    """Return once so many conversations have been answered, or failed.

    Raises:
        TimeoutError: nothing was answered for a minute.
    """
    enough = asyncio.Event()

    def look() -> None:
        if load.answered + load.tally.failed >= requests:
            enough.set()

    load.on_answer = look
    while not enough.is_set():
        before = load.answered
        try:
            await asyncio.wait_for(enough.wait(), _PATIENCE_SECONDS)
        except TimeoutError:
            if load.answered == before:
                raise


async def _sample(load: Load, samples: list[MemorySample], *, pid: int, every: float, started: float) -> None:
    process = psutil.Process(pid)
    while True:
        memory = read_memory(process)
        samples.append(
            MemorySample(time.perf_counter() - started, memory["anonymous"], memory["resident"], load.answered)
        )
        await asyncio.sleep(every)


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main() -> None:
    try:
        print(json.dumps(asyncio.run(measure(json.load(sys.stdin)))))
    except (OSError, ValueError) as error:
        sys.exit(f"serve_load: {error}")


if __name__ == "__main__":
    main()
