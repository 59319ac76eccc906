"""Answered requests: what logs, traces and Prometheus metrics are told of each, and the metrics themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias
from urllib.parse import parse_qsl

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from retrieval_app.api.security.rights import Visitor
from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.search_times import SearchWatch

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
METHODS = frozenset(("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"))
MOST_QUERY_BYTES = 4096
_PLAIN = frozenset((  # what takes a number or one word of a few: no page has a field in which such a value is typed
    "after", "by", "count", "group_copies", "include", "k", "limit", "min_score", "offset", "rerank", "seed", "side",
    "state",
))  # fmt: skip
_TYPED = frozenset(("address", "code", "label", "name", "suggested", "text", "token", "where"))
_WORD = re.compile(r"[0-9A-Za-z_.,-]{0,60}")
_HIDDEN = "…"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, and what became of it.

    Attributes:
        at_s: when its answer ended, in seconds since 1970.
        seconds: from its head to the end of its answer.
        method: in capitals, or `other`.
        route: the template of its address, or what answered where that has none.
        query_string: as it came, at most `MOST_QUERY_BYTES` of it, with what people typed: see `hide_typed`.
        watch: its searches.
        gallery: the name of the one among several that was asked for.
    """

    at_s: float
    seconds: float
    request_id: str
    method: str
    route: str
    query_string: bytes
    status: int
    sent_bytes: int
    visitor: Visitor
    watch: SearchWatch
    traceparent: str | None = None
    gallery: str | None = None


Observer: TypeAlias = Callable[[RequestRecord], None]
"""Is told of every request as it is answered, by the event loop, which is not to wait for it."""


def hide_typed(query_string: bytes) -> str:
    """The parameters of an address, without values that people typed and names that nobody knows."""
    pairs = parse_qsl(query_string[:MOST_QUERY_BYTES].decode("latin-1"), keep_blank_values=True)
    shown = []
    for name, value in pairs:
        is_shown, is_known = name in _PLAIN and _WORD.fullmatch(value), name in _PLAIN or name in _TYPED
        shown.append(f"{name if is_known else _HIDDEN}={value if is_shown else _HIDDEN}")
    return "&".join(shown)


class Metrics:
    """Counts requests as they are answered, and asks collectors for the rest when it is read."""

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "retrieval_requests",
            "Requests by the template of their address, method and status.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "retrieval_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ("route",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._collectors = collectors
        for collector in collectors:
            self._registry.register(collector)

    def observe(self, answered: RequestRecord) -> None:
        """Count one answered request."""
        self._requests.labels(answered.route, answered.method, str(answered.status)).inc()
        self._seconds.labels(answered.route).observe(answered.seconds)

    def collect(self) -> Iterator[Metric]:
        """The values of this moment."""
        yield from self._registry.collect()

    def render(self) -> bytes:
        """The metrics as text; of several processes those of all, but for what collectors say."""
        if not _are_counted_together():
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        for collector in self._collectors:
            registry.register(collector)
        return generate_latest(registry)


def render_joined(metrics: Mapping[str, Metrics]) -> bytes:
    """The metrics as text, by the names of their galleries; an empty name is that of none of them."""
    registry = CollectorRegistry()
    registry.register(_Joined(metrics))
    return generate_latest(registry)


class _Joined(Collector):
    def __init__(self, metrics: Mapping[str, Metrics]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The families of all galleries, each once."""
        families: dict[str, Metric] = {}
        for gallery, metrics in self._metrics.items():
            for family in metrics.collect():
                joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                joined.samples += [
                    sample._replace(labels={"gallery": gallery, **sample.labels}) for sample in family.samples
                ]
        yield from families.values()


def _are_counted_together() -> bool:
    """Whether several processes count into one folder, as `prometheus_client` has it."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


class EngineCollector(Collector):
    """Reads what the engine knows at the moment of asking."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """The values of this moment; of several processes what holds for all of them."""
        if not _are_counted_together():
            yield from self._describe_work()
        yield from self._describe_gallery()

    def _describe_work(self) -> Iterator[Metric]:
        engine = self._engine
        waiting = GaugeMetricFamily("retrieval_waiting", "Tasks that wait to be answered.", labels=["lane"])
        refused = CounterMetricFamily(
            "retrieval_refused", "Tasks refused because too many waited.", labels=["lane"]
        )
        batches = CounterMetricFamily("retrieval_batches", "Groups of tasks answered together.", labels=["lane"])
        answered = CounterMetricFamily("retrieval_answered", "Tasks answered.", labels=["lane"])
        for lane in (engine.searches_lane, engine.photos_lane):
            waiting.add_metric([lane.name], len(lane.waiting))
            refused.add_metric([lane.name], lane.refused)
            batches.add_metric([lane.name], lane.batches)
            answered.add_metric([lane.name], lane.answered)
        waiting.add_metric(["reads"], engine.reading)
        yield from (waiting, refused, batches, answered)
        yield GaugeMetricFamily(
            "retrieval_photos_kept", "Photos that can be asked with again.", value=engine.photos_kept
        )
        yield CounterMetricFamily(
            "retrieval_swaps", "Versions that took another's place.", value=engine.live.swaps
        )

    def _describe_gallery(self) -> Iterator[Metric]:
        try:
            snapshot = self._engine.snapshot()
        except NotReadyError:
            yield GaugeMetricFamily("retrieval_ready", "1 where a gallery is served.", value=0)
            return
        yield GaugeMetricFamily("retrieval_ready", "1 where a gallery is served.", value=1)
        yield GaugeMetricFamily(
            "retrieval_gallery_images", "Images of the served version.", value=snapshot.gallery.count
        )
        info = InfoMetricFamily("retrieval_serving", "What is served, and by what.")
        info.add_metric([], {"gallery_version": snapshot.version, "app_version": _read_app_version()})
        yield info


def _read_app_version() -> str:
    try:
        return version("retrieval-app")
    except PackageNotFoundError:  # run from its source
        return "source"
