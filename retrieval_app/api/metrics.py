"""Request records for logs, and Prometheus metrics."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from retrieval_app.api.security.rights import Visitor
from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.search_engine import Engine

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
METHODS = frozenset(("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request and its response."""

    at_s: float  # the end of the response, in seconds since 1970
    seconds: float  # from the request's head to the end of the response
    request_id: str
    method: str  # upper case, or `other`
    route: str  # the template of the address, or the name of what answered without a route
    status: int
    sent_bytes: int
    visitor: Visitor
    gallery: str | None = None  # where there are several


Observer: TypeAlias = Callable[[RequestRecord], None]
"""Called by the event loop after every response; it must not block."""


class Metrics:
    """Metrics of a gallery: requests are counted as they are answered, collectors give the rest."""

    def __init__(self, *collectors: Collector) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "retrieval_requests",
            "Requests by the template of their address, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "retrieval_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        for collector in collectors:
            self.registry.register(collector)

    def observe(self, record: RequestRecord) -> None:
        """Count a request."""
        self._requests.labels(record.route, record.method, str(record.status)).inc()
        self._seconds.labels(record.route).observe(record.seconds)


class JoinedMetrics(Collector):
    """The metrics of several galleries, with their names as the label `gallery`; the server's own name is empty."""

    def __init__(self, metrics: Mapping[str, Metrics]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for gallery, metrics in self._metrics.items():
            for family in metrics.registry.collect():
                joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                joined.samples += [
                    sample._replace(labels={"gallery": gallery, **sample.labels}) for sample in family.samples
                ]
        return families.values()


class EngineCollector(Collector):
    """Metrics of an engine at the moment they are read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        yield from self._describe_work()
        try:
            snapshot = self._engine.snapshot()
        except NotReadyError:
            yield GaugeMetricFamily("retrieval_ready", "1 where a gallery is served.", value=0)
            return
        count = snapshot.gallery.count
        yield GaugeMetricFamily("retrieval_ready", "1 where a gallery is served.", value=1)
        yield GaugeMetricFamily("retrieval_gallery_images", "Images of the served version.", value=count)
        yield InfoMetricFamily("retrieval_serving", "The served version.", {"gallery_version": snapshot.version})

    def _describe_work(self) -> Iterator[Metric]:
        engine, lane_name = self._engine, ["lane"]
        waiting = GaugeMetricFamily("retrieval_waiting", "Tasks that wait to be answered.", labels=lane_name)
        refused = CounterMetricFamily("retrieval_refused", "Tasks refused because too many waited.", labels=lane_name)
        batches = CounterMetricFamily("retrieval_batches", "Groups of tasks answered together.", labels=lane_name)
        answered = CounterMetricFamily("retrieval_answered", "Tasks answered.", labels=lane_name)
        for lane in (engine.searches_lane, engine.photos_lane):
            waiting.add_metric([lane.name], len(lane.waiting))
            refused.add_metric([lane.name], lane.refused)
            batches.add_metric([lane.name], lane.batches)
            answered.add_metric([lane.name], lane.answered)
        waiting.add_metric(["reads"], engine.reading)
        yield from (waiting, refused, batches, answered)
        kept, swaps = engine.photos_kept, engine.live.swaps
        yield GaugeMetricFamily("retrieval_photos_kept", "Photos that can be asked with again.", value=kept)
        yield CounterMetricFamily("retrieval_swaps", "Versions that took another's place.", value=swaps)
