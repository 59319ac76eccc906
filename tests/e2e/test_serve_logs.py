"""The logs of a real server: what stands in them, what never does, and that rotating and full disks cost no answer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
from tests.serving_server import TOKEN, Server, send_raw, serve

PHOTO_NAME, CONDITION = "my-holiday.jpg", "label = 'red' AND path LIKE '%private%'"


def _read(path: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def _wait(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < until, "it did not come in time"
        time.sleep(0.05)


def _photo(gallery: Path) -> bytes:
    return next(path for path in gallery.parent.rglob("*.jpg") if "people" not in path.parts).read_bytes()


def _ask_everything(server: Server, photo: bytes) -> str:
    """One request of each kind; the token of a photo that was kept."""
    kept = server.ask("POST", f"/v1/photos?name={PHOTO_NAME}", body=photo).json()["photo"]
    assert server.get(f"/v1/photos/{kept}/picture").status == 200
    found = server.ask("POST", f"/v1/search/image?k=3&name={PHOTO_NAME}&where={quote(CONDITION)}", body=photo)
    assert found.status == 200
    queries = [{"photo": kept, "crop": {"x": 0, "y": 0, "width": 0.5, "height": 1}}]
    assert server.post("/v1/search", {"queries": queries, "k": 2, "text": "private"}).status == 200
    assert server.get("/v1/gallery", Authorization=f"Bearer {TOKEN}-wrong").status == 401
    assert server.ask("GET", f"/{TOKEN}", headers={"X-Forwarded-For": "192.0.2.7"}).status == 404
    return str(kept)


def test_requests_and_slow_searches_are_told_and_no_secret_is(gallery: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serve(
        gallery, "--access-log", str(log), "--slow-query-ms", "0", log=tmp_path / "log", token=TOKEN
    ) as server:
        kept = _ask_everything(server, _photo(gallery))
        assert server.stop() == 0
    requests = _read(log, "request")
    told = [(one["method"], one["route"], one["query"], one["status"]) for one in requests]
    assert told == [
        ("POST", "/v1/photos", "name=…", 201),
        ("GET", "/v1/photos/{token}/picture", "", 200),
        ("POST", "/v1/search/image", "k=3&name=…&where=…", 200),
        ("POST", "/v1/search", "", 200),
        ("GET", "none", "", 401),
        ("GET", "page", "", 404),
    ]
    assert [one["has_token"] for one in requests] == [True] * 4 + [False] * 2
    assert [one["address"] for one in requests] == ["127.0.0.1"] * 5 + ["192.0.2.7"]
    first = requests[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert first["bytes"] > 50
    assert 0 < first["ms"] < 60_000
    text = log.read_text()
    for secret in (TOKEN, kept, PHOTO_NAME, "private", "'red'"):
        assert secret not in text

    by_image, by_photo = _read(log, "slow_search")
    assert by_image["request_id"] == requests[2]["request_id"]
    assert by_image["embed_ms"] > 0
    (search,) = by_image["searches"]
    assert search["filter"] == "label = ? AND path LIKE ?"
    assert search["filter_keeps"] == 0
    assert (search["k"], search["by"], search["candidates"], search["queries"]) == (3, "kind", 5, ["vector"])
    assert set(search["ms"]) == {"condition", "vectors", "duplicates", "waiting", "search"}
    assert sum(search["ms"].values()) <= by_image["ms"]
    assert by_photo["searches"][0]["queries"] == ["photo part"]
    assert by_photo["searches"][0]["filter"] == "WORD ?"


def test_what_is_refused_before_anything_is_asked_is_told_and_counted_and_no_secret_is(
    gallery: Path, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    with serve(gallery, "--access-log", str(log), "--head-s", "1", log=tmp_path / "log", token=TOKEN) as server:
        half = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        half.sendall(b"GET /v1/photos/" + TOKEN.encode() + b"/picture?name=private HTTP/1.1\r\n" + head)
        too_large = send_raw(
            server.port, b"POST /v1/search/image?name=private HTTP/1.1\r\n" + head + b"x: 1\r\n" * 99 + b"\r\n"
        )
        send_raw(server.port, b"GET /v1/health?" + b"private" * 10_000 + b" HTTP/1.1\r\n" + head + b"\r\n")
        send_raw(server.port, f"{TOKEN} private\r\n\r\n".encode())
        assert half.recv(100) == b""  # hung up on
        half.close()
        metrics = server.get("/v1/metrics").body.decode()
        assert server.stop() == 0
    refused = _read(log, "refused")
    assert [(one["reason"], one["status"], one["method"], one["path"]) for one in refused] == [
        ("head_too_large", 431, "POST", "/v1/search/image"),
        ("address_too_long", 414, "GET", "/v1/health"),
        ("bad_request", 400, None, None),
        ("head_timeout", None, "GET", "/v1/photos/…"),
    ]
    assert {one["address"] for one in refused} == {"127.0.0.1"}
    assert refused[0]["request_id"] in too_large.decode()
    assert refused[-1]["request_id"] is None
    assert 'retrieval_turned_away_total{reason="head_too_large"} 1.0' in metrics
    assert 'retrieval_turned_away_total{reason="head_timeout"} 1.0' in metrics
    text = log.read_text()
    assert TOKEN not in text
    assert "private" not in text


def test_hangup_opens_the_file_anew_as_logrotate_wants(gallery: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serve(gallery, "--access-log", str(log), log=tmp_path / "log") as server:
        assert server.get("/v1/health").status == 200
        _wait(lambda: log.read_text() != "")
        log.rename(tmp_path / "access.log.1")
        os.kill(server.process.pid, signal.SIGHUP)
        _wait(log.exists)
        assert server.get("/v1/ready").status == 200
        assert server.stop() == 0
    assert [one["route"] for one in _read(tmp_path / "access.log.1", "request")] == ["/v1/health"]
    assert [one["route"] for one in _read(log, "request")] == ["/v1/ready"]


def test_a_full_disk_under_the_log_costs_no_answer(gallery: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.symlink_to("/dev/full")
    with serve(gallery, "--access-log", str(log), log=tmp_path / "log") as server:
        for _ in range(20):
            assert server.get("/v1/ready").status == 200
        _wait(lambda: "No space left on device" in (tmp_path / "log").read_text())
        log.unlink()
        os.kill(server.process.pid, signal.SIGHUP)
        _wait(log.exists)
        assert server.get("/v1/health").status == 200
        assert server.stop() == 0
    (dropped,) = _read(log, "dropped")
    *others, last = [one["route"] for one in _read(log, "request")]
    assert dropped["lines"] >= 1
    assert dropped["lines"] + len(others) == 20  # some may have waited for the new file
    assert last == "/v1/health"
