"""OpenTelemetry spans, one a request, where its packages are installed and configured; else none of it is imported.

They hold what a line of the access log holds: automatic instrumentation would send URLs with tokens in them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrieval_app.api.answered import Answered, Observer, hide_typed

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NAMES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
_LAST_S = 3.0  # for what was not sent when the server ends


@contextmanager
def open_spans() -> Iterator[list[Observer]]:
    """What is to be told of requests, by the standard variables of OpenTelemetry; nothing without them."""
    endpoint = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield []
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        logger.warning("%s is set, but %s is not installed: no spans; pip install 'retrieval-app[traces]'",
                       endpoint, error.name)  # fmt: skip
        yield []
        return
    own = {} if any(os.environ.get(name) for name in _NAMES) else {"service.name": "retrieval"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield [_Spans(provider.get_tracer("retrieval_app"))]
    finally:
        last = threading.Thread(target=provider.force_flush, name="spans", daemon=True)
        last.start()
        last.join(_LAST_S)
        exporter.shutdown()  # which ends its waiting for a collector that is gone
        provider.shutdown()


class _Spans:
    def __init__(self, tracer: Any) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self._kind = tracer, SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, answered: Answered) -> None:
        carrier = {} if answered.traceparent is None else {"traceparent": answered.traceparent}
        end_ns = int(answered.at_s * 1e9)
        span = self._tracer.start_span(
            f"{answered.method} {answered.route}",
            context=self._propagator.extract(carrier),
            kind=self._kind,
            start_time=end_ns - int(answered.seconds * 1e9),
            attributes={
                "http.request.method": answered.method, "http.route": answered.route,
                "url.query": hide_typed(answered.query_string), "http.response.status_code": answered.status,
                "http.response.body.size": answered.sent_bytes, "client.address": answered.visitor.address,
                "retrieval.request_id": answered.request_id, "retrieval.searches": answered.watch.count,
            },
        )  # fmt: skip
        if answered.status >= 500:
            span.set_status(self._failed)
        span.end(end_time=end_ns)
