"""A real server heeds the limits that it is given, wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
from tests.serving_server import check_refused, send_raw, serve


def test_limits_of_option_variable_and_file_hold(
    gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.toml").write_text("max-headers = 12\nmax-json-bytes = 300\nmax-upload-bytes = 7\n")
    monkeypatch.setenv("RETRIEVAL_SERVE_MAX_JSON_BYTES", "200")
    options = ("--config", str(tmp_path / "serve.toml"), "--max-upload-bytes", "500")
    with serve(gallery, *options, log=tmp_path / "log") as server:
        assert server.get("/v1/ready").status == 200
        refused = server.ask("POST", "/v1/search/image", body=b"a" * 501)
        check_refused(refused, 413)
        assert "at most 500 are taken" in refused.json()["error"]["message"]
        refused = server.ask("POST", "/v1/search", body=b" " * 201, headers={"Content-Type": "application/json"})
        assert "at most 200 are taken" in refused.json()["error"]["message"]
        head = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        assert send_raw(server.port, head + b"x: 1\r\n" * 10 + b"\r\n").startswith(b"HTTP/1.1 200")
        assert send_raw(server.port, head + b"x: 1\r\n" * 11 + b"\r\n").startswith(b"HTTP/1.1 431")


def test_who_asks_too_often_through_a_proxy_is_sent_away_and_others_are_not(gallery: Path, tmp_path: Path) -> None:
    limits = ("--requests-per-s", "0.1", "--requests-burst", "2")
    with serve(gallery, *limits, log=tmp_path / "log") as server:
        first, second = ({"X-Forwarded-For": address} for address in ("192.0.2.1", "192.0.2.2"))
        assert [server.get("/v1/gallery", **first).status for _ in range(3)] == [200, 200, 429]
        refused = server.get("/v1/gallery", **first)
        check_refused(refused, 429)
        assert 0 < int(refused.headers["retry-after"]) <= 10
        assert server.get("/v1/gallery", **second).status == 200
        assert [server.get("/v1/gallery").status for _ in range(5)] == [200] * 5
