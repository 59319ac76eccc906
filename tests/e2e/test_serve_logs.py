"""What a real server tells of its requests: its log, its metrics and spans, with no secret in them."""

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `traces`")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.serving_server import TOKEN, serve

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class _Collector(ThreadingHTTPServer):
    """Takes spans as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []

    @property
    def spans(self) -> list[Any]:
        """All that were sent."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: _Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[_Collector]:
    with _Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def test_requests_are_spans_of_the_trace_that_they_belong_to(
    collector: _Collector, gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_address[1]}")
    with serve(gallery, log=tmp_path / "log", token=TOKEN) as server:
        header = f"00-{TRACE}-{PARENT}-01"
        assert server.get("/v1/images?limit=2&text=private", traceparent=header).status == 200
        assert server.get("/v1/images/999/thumbnail").status == 404
        assert server.stop() == 0
    first, second = collector.spans
    assert (first.name, second.name) == ("GET /v1/images", "GET /v1/images/{image_id}/thumbnail")
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert second.parent_span_id == b""
    assert first.start_time_unix_nano < first.end_time_unix_nano
    told = {one.key: one.value.string_value or one.value.int_value for one in first.attributes}
    assert told["url.query"] == "limit=2&text=…"
    assert told["http.response.status_code"] == 200
    sent = repr(collector.requests)
    assert "private" not in sent
    assert TOKEN not in sent
    (resource,) = {repr(request.resource_spans[0].resource) for request in collector.requests}
    assert '"retrieval"' in resource


def test_a_collector_that_is_gone_costs_no_answer_and_holds_up_no_end(
    gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with serve(gallery, log=tmp_path / "log") as server:
        assert server.get("/v1/ready").status == 200
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 15
