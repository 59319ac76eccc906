"""What a server of several galleries counts: the metrics of each, with its name as a label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from retrieval_app.api.counters import Metrics


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
