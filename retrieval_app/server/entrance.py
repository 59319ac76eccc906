"""What all requests of a server pass: who may do what, who asks, and what is written down of it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retrieval_app.api.answered import Answered, Observer, hide_typed
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.cors_origins import check_origins
from retrieval_app.api.security.hosts import choose_hosts
from retrieval_app.api.security.rate_limits import RateLimits
from retrieval_app.api.security.root_path import check_root_path
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.token_book import TokenBook
from retrieval_app.api.security.trusted_proxies import TrustedProxies
from retrieval_app.page.sign_in_page import draw_sign_in
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.server.access_log import Logs, open_logs
from retrieval_app.server.doors import Doors

if TYPE_CHECKING:
    from retrieval_app.server.options import ServedGallery, ServeOptions


# OpenTelemetry spans, one a request, where its packages are installed and configured; else nothing of it is imported.
# They hold what a line of the access log holds: automatic instrumentation would send URLs with tokens in them.
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


@dataclass(frozen=True, slots=True)
class Entrance:
    """What is before all applications of a server.

    Attributes:
        doors: what stands before each.
        access: who may do what.
        sign_in: who asks.
        logs: of who did what, by the names of galleries; empty for the only one.
        lines: of requests.
    """

    doors: Doors
    access: Access
    sign_in: SignIn
    logs: Mapping[str, ActivityLog]
    lines: Logs


def open_entrance(opened: ExitStack, options: ServeOptions) -> Entrance:
    """Open the logs, and see that what people made of the galleries is at its place; `opened` closes them.

    Raises:
        InputError: the file of tokens, or that of a log, cannot be used.
    """
    access, root_path = choose_access(options), check_root_path(options.root_path)
    if access.book is not None:
        access.book.warn_of_others(access.galleries)
    lines, spans = opened.enter_context(open_logs(options.logs)), opened.enter_context(open_spans())
    doors = Doors(
        limits=options.limits, rates=RateLimits(options.rates), observers=[*lines.observers, *spans],
        proxies=TrustedProxies.of(options.trusted_proxies), origins=check_origins(options.cors_origins),
        root_path=root_path,
    )  # fmt: skip
    logs = {served.name or "": _open_log(opened, served) for served in options.galleries}
    sign_in = SignIn(access, draw=draw_sign_in, config=options.sign_in, root_path=root_path, logs=logs)
    return Entrance(doors, access, sign_in, logs, lines)


def choose_access(options: ServeOptions) -> Access:
    """Who may do what: of all galleries together where there are several.

    Raises:
        InputError: the file of tokens cannot be used.
    """
    names = frozenset(served.name for served in options.galleries if served.name is not None)
    hosts = choose_hosts(
        options.host, loopback=options.is_loopback, token=options.asks_token, allowed=options.allowed_hosts
    )
    return Access(
        token=options.token, book=None if options.tokens is None else TokenBook(options.tokens),
        loopback=options.is_loopback, writable=options.writable, fetches=options.fetches, hosts=hosts, galleries=names,
    )  # fmt: skip


def _open_log(opened: ExitStack, served: ServedGallery) -> ActivityLog:
    """The log of a gallery, closed with the server."""
    log = ActivityLog(served.path)
    opened.callback(log.close)
    return log
