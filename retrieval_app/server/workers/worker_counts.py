"""What workers count, added up: of those that have ended, what they told last."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpcore
import orjson
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval_app.api.counters import EngineCollector
from retrieval_app.serving.search_engine import Engine

if TYPE_CHECKING:
    from retrieval_app.server.workers.supervisor import Supervisor, Worker
    from retrieval_app.server.workers.worker_client import WorkerClients

COUNTS_PATH = "/counts"
_WAIT_S = 2.0
_ADDED_GAUGES = frozenset(("retrieval_waiting",))  # of the others each worker tells the same, or nearly
_ONCE = frozenset(("retrieval_swaps",))  # counted by each worker, and here

_Key = tuple[str, tuple[tuple[str, str], ...]]


class CountsApp:
    """Answers what a worker counts, and passes on all else.

    Args:
        app: what is behind.
        engine: of the worker.
    """

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self._app, self._collector = app, EngineCollector(engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] != "http" or scope["path"] != COUNTS_PATH:
            await self._app(scope, receive, send)
            return
        told = [
            [family.name, family.documentation, family.type, [list(sample[:3]) for sample in family.samples]]
            for family in self._collector.collect()
        ]
        await Response(orjson.dumps(told), media_type="application/json")(scope, receive, send)


class WorkerCounts(Collector):
    """The families of all workers as those of one server; gathered first, by the event loop.

    Args:
        supervisor: of the workers.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._told: dict[Worker, list[Any]] = {}
        self._ended = Counter[_Key]()

    async def gather(self, clients: WorkerClients) -> None:
        """Ask every worker."""
        ready = self._supervisor.ready
        for worker in [worker for worker in self._told if worker not in ready]:
            self._add_up(self._told.pop(worker))
        await asyncio.gather(*(self._ask(worker, clients) for worker in ready))

    def collect(self) -> Iterator[Metric]:
        """What was gathered last."""
        families: dict[str, Metric] = {}
        values: dict[str, dict[_Key, float]] = {}
        for told in self._told.values():
            for name, documentation, kind, samples in told:
                families.setdefault(name, Metric(name, documentation, kind))
                is_added = kind == "counter" or name in _ADDED_GAUGES
                of_name = values.setdefault(name, {})
                for sample, labels, value in samples:
                    key = _make_key(sample, labels)
                    before = of_name.get(key, self._ended[key] if is_added else value)
                    of_name[key] = before + value if is_added else max(before, value)
        for name, family in families.items():
            if name not in _ONCE:
                for (sample, labels), value in values[name].items():
                    family.add_sample(sample, dict(labels), value)
                yield family
        workers = self._supervisor
        yield CounterMetricFamily("retrieval_swaps", "Versions that took another's place.", value=workers.swaps)
        yield CounterMetricFamily("retrieval_worker_ends", "Workers that ended unasked.", value=workers.ends)
        yield GaugeMetricFamily("retrieval_workers", "Workers that answer.", value=len(workers.ready))

    async def _ask(self, worker: Worker, clients: WorkerClients) -> None:
        with suppress(httpcore.NetworkError, httpcore.RemoteProtocolError, httpcore.ConnectTimeout, TimeoutError):
            async with asyncio.timeout(_WAIT_S), clients.of(worker).stream("GET", COUNTS_PATH.encode()) as answer:
                self._told[worker] = orjson.loads(await answer.aread())

    def _add_up(self, told: list[Any]) -> None:
        for _, _, kind, samples in told:
            if kind == "counter":
                for sample, labels, value in samples:
                    self._ended[_make_key(sample, labels)] += value


def _make_key(sample: str, labels: dict[str, str]) -> _Key:
    return sample, tuple(sorted(labels.items()))
