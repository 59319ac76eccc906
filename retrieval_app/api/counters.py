"""What a server counts, in a registry of its own, as Prometheus reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from retrieval_app.api.answered import METHODS
from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.search_engine import Engine

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


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

    def observe(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answered request; `route` must be one of few."""
        shown = method if method in METHODS else "other"  # clients make up as many as they like
        self._requests.labels(route, shown, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

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
