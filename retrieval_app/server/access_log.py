"""Access log: a JSON line for every request, another for each slow search, without tokens and names of photos.

    {"time": "2026-01-31T12:00:00.123Z", "event": "request", "request_id": "9f…", "method": "GET", …}

A thread writes the lines, so that no request waits for a disk. Lines that fit neither the queue nor the disk are
dropped and counted. The file may be moved away at any time, as log rotation does.

Beside it OpenTelemetry spans, one a request, if its packages are installed and its variables set. Automatic
instrumentation would send URLs with tokens in them.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import orjson

from index.errors import InputError
from index.text import printable_path
from retrieval_app.api.metrics import Observer, RequestRecord, hide_typed
from retrieval_app.server.options import LogConfig

logger = logging.getLogger(__name__)

STDOUT = Path("-")
LINES_WAITING = 10_000
MOST_SEARCHES = 8  # of one request that are listed one by one
_MODE = 0o640
_WARN_S = 60.0  # between two warnings that nothing can be written
_CLOSE_S = 5.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NAMES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
_FLUSH_S = 3.0  # for what was not sent when the server ends


@contextmanager
def open_access_log(config: LogConfig) -> Iterator[list[Observer]]:
    """Observers of requests that write the lines."""
    if config.access_log is None and config.slow_query_ms is None:
        yield []
        return
    writer = LineWriter(config.access_log)

    def write(record: RequestRecord) -> None:
        if config.access_log is not None:
            writer.write(_describe(record))
        ms = (record.seconds - record.watch.body_s) * 1000  # the arriving of bodies does not count
        if config.slow_query_ms is not None and record.watch.searches and ms > config.slow_query_ms:
            writer.write(_describe_slow(record, ms=ms))

    try:
        yield [write]
    finally:
        writer.close()


class LineWriter:
    """A thread that adds JSON lines to a file, in their order.

    It opens the file for every line, so that the file may be moved away.

    Args:
        path: of the file; `-` is standard output, None standard error.
        capacity: lines that wait; one more is dropped.
    """

    def __init__(self, path: Path | None, *, capacity: int = LINES_WAITING) -> None:
        self._path, self._stream = path, sys.stderr if path is None else sys.stdout
        self._shown = "standard output" if path in (None, STDOUT) else printable_path(str(path))
        try:
            if self._shown != "standard output":
                self._append(b"")
        except OSError as error:
            raise InputError(f"--access-log {self._shown}: cannot be written: {error.strerror}") from error
        self._queue = SimpleQueue[bytes | None]()
        self._capacity, self._refused, self._failed, self._reported = capacity, 0, 0, 0
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; never waits."""
        if self._queue.qsize() >= self._capacity:
            self._refused += 1
            return
        self._report_dropped()
        self._queue.put(orjson.dumps(line) + b"\n")

    def close(self) -> None:
        """Write the lines that wait, for a few seconds at most."""
        self._report_dropped()
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    @property
    def dropped(self) -> int:
        """Lines that were dropped since a line reported their number."""
        return self._refused + self._failed - self._reported

    def _report_dropped(self) -> None:
        if count := self.dropped:
            self._reported += count
            line = {"time": _show_time(time.time()), "event": "dropped", "lines": count}
            self._queue.put(orjson.dumps(line) + b"\n")

    def _run(self) -> None:
        warned_at = -_WARN_S
        while (line := self._queue.get()) is not None:
            try:
                self._append(line)
            except (OSError, ValueError) as error:  # a full disk, or a closed stream
                self._failed += 1
                if time.monotonic() - warned_at >= _WARN_S:
                    warned_at = time.monotonic()
                    reason = error.strerror if isinstance(error, OSError) else error
                    logger.warning("the log %s cannot be written, lines are dropped: %s", self._shown, reason)

    def _append(self, line: bytes) -> None:
        if self._path is None or self._path == STDOUT:
            self._stream.write(line.decode())
            self._stream.flush()
            return
        with open(self._path, "ab", opener=lambda path, flags: os.open(path, flags, _MODE)) as file:
            file.write(line)


def _describe(record: RequestRecord) -> dict[str, Any]:
    visitor = record.visitor
    return {
        **_begin_line("request", record), "method": record.method, "route": record.route,
        "query": hide_typed(record.query_string),
        "status": record.status, "bytes": record.sent_bytes, "ms": round(record.seconds * 1000, 3),
        "address": visitor.address, "name": visitor.name, "has_token": visitor.has_token,
    }  # fmt: skip


def _describe_slow(record: RequestRecord, *, ms: float) -> dict[str, Any]:
    watch = record.watch
    return {
        **_begin_line("slow_search", record), "route": record.route, "status": record.status, "ms": round(ms, 3),
        "body_ms": round(watch.body_s * 1000, 3), "embed_ms": round(watch.embed_s * 1000, 3),
        "searches_count": len(watch.searches), "searches": [one.to_json() for one in watch.searches[:MOST_SEARCHES]],
    }  # fmt: skip


def _begin_line(event: str, record: RequestRecord) -> dict[str, str]:
    one_of_several = {} if record.gallery is None else {"gallery": record.gallery}
    return {
        "time": _show_time(record.at_s), "event": event, "request_id": record.request_id, **one_of_several
    }  # fmt: skip


def _show_time(seconds: float) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def open_spans() -> Iterator[list[Observer]]:
    """Observers of requests that send OpenTelemetry spans, by its standard variables; none without them."""
    endpoint = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield []
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ModuleNotFoundError as error:
        logger.warning("%s is set, but %s is not installed: no spans; pip install 'retrieval-app[traces]'",
                       endpoint, error.name)  # fmt: skip
        yield []
        return
    own = {} if any(os.environ.get(name) for name in _NAMES) else {"service.name": "retrieval"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer, propagator = provider.get_tracer("retrieval_app"), TraceContextTextMapPropagator()

    def send(record: RequestRecord) -> None:
        end_ns = int(record.at_s * 1e9)
        span = tracer.start_span(
            f"{record.method} {record.route}", kind=SpanKind.SERVER, start_time=end_ns - int(record.seconds * 1e9),
            context=propagator.extract({} if record.traceparent is None else {"traceparent": record.traceparent}),
            attributes={
                "http.request.method": record.method, "http.route": record.route,
                "url.query": hide_typed(record.query_string), "http.response.status_code": record.status,
                "http.response.body.size": record.sent_bytes, "client.address": record.visitor.address,
                "retrieval.request_id": record.request_id, "retrieval.searches": len(record.watch.searches),
            },
        )  # fmt: skip
        if record.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=end_ns)

    try:
        yield [send]
    finally:
        last = threading.Thread(target=provider.force_flush, name="spans", daemon=True)
        last.start()
        last.join(_FLUSH_S)
        exporter.shutdown()  # ends its waiting for a collector that is gone
        provider.shutdown()
