"""The load generator against small servers that misbehave as told."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.serving.serve_load import describe_latency, measure, run_load

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n"
WRONG = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
HANG_UP = b""


async def load(
    answers: Callable[[], bytes], asked: list[bytes], *, folder: Path, **settings: Any
) -> dict[str, Any]:
    """The load on a server that gives these answers, one after another, and keeps what it is asked."""
    open_connections = 0
    most_open = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections, most_open
        open_connections += 1
        most_open = max(most_open, open_connections)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                asked.append(await reader.readexactly(int(length.partition(b":")[2])))
                answer = answers()
                writer.write(answer)
                if answer in (HANG_UP, LAST):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            open_connections -= 1
            writer.close()

    np.save(folder / "ids.npy", np.arange(1, 1001))
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await measure({
            "url": f"http://127.0.0.1:{port}", "pid": os.getpid(), "asking": {"by id": 1}, "clients": 4, "k": 24,
            "seed": 0, "ids": folder / "ids.npy", **settings,
        })  # fmt: skip
    return {**found, "most_open": most_open}


def repeat(*answers: bytes) -> Callable[[], bytes]:
    """These answers over and over."""

    def turns() -> Iterator[bytes]:
        while True:
            yield from answers

    turn = turns()
    return lambda: next(turn)


def test_as_many_requests_as_asked_are_answered_on_connections_that_stay(tmp_path: Path) -> None:
    asked: list[bytes] = []
    found = asyncio.run(load(repeat(OK), asked, folder=tmp_path, requests=500, sample_seconds=0.001))
    assert 500 <= found["answered"] < 500 + 4
    assert (found["most_open"], found["refused"], found["failed"], found["broken"]) == (4, 0, 0, 0)
    assert found["statuses"] == {200: found["answered"]}
    assert found["per_second"] == pytest.approx(found["answered"] / found["seconds"])
    assert all(json.loads(each)["k"] == 24 for each in asked)
    assert len({json.loads(each)["queries"][0]["image_id"] for each in asked}) > 300
    counts = [sample["answered"] for sample in found["samples"]]
    assert counts == sorted(counts)
    assert found["samples"][0]["resident"] > found["samples"][0]["anonymous"] > 0


def test_the_same_seed_asks_the_same(tmp_path: Path) -> None:
    once: list[bytes] = []
    again: list[bytes] = []
    for asked in (once, again):
        asyncio.run(load(repeat(OK), asked, folder=tmp_path, requests=20, clients=1))
    assert once[:20] == again[:20]


def test_what_is_refused_is_counted_apart_and_asked_again(tmp_path: Path) -> None:
    asked: list[bytes] = []
    found = asyncio.run(load(repeat(REFUSED, OK), asked, folder=tmp_path, requests=50, clients=1))
    assert (found["answered"], found["refused"], found["failed"]) == (50, 50, 0)
    assert all(first == second for first, second in zip(asked[:100:2], asked[1:100:2], strict=True))


def test_a_failure_is_no_answer(tmp_path: Path) -> None:
    found = asyncio.run(load(repeat(OK, WRONG), [], folder=tmp_path, requests=40, clients=1))
    assert (found["answered"], found["failed"]) == (20, 20)
    assert found["statuses"] == {200: 20, 500: 20}


def test_a_connection_that_breaks_is_counted_and_its_question_asked_on_another(tmp_path: Path) -> None:
    asked: list[bytes] = []
    found = asyncio.run(load(repeat(OK, HANG_UP), asked, folder=tmp_path, requests=10, clients=1))
    assert (found["answered"], found["broken"]) == (10, 9)
    assert asked[1] == asked[2]


def test_a_server_may_end_a_connection_after_an_answer(tmp_path: Path) -> None:
    found = asyncio.run(load(repeat(LAST), [], folder=tmp_path, requests=10, clients=1))
    assert (found["answered"], found["broken"], found["failed"]) == (10, 0, 0)


def test_a_span_of_time_counts_what_is_answered_in_it_and_what_the_cores_do(tmp_path: Path) -> None:
    found = asyncio.run(load(repeat(OK), [], folder=tmp_path, warm_up=0.05, seconds=0.3))
    assert found["seconds"] == pytest.approx(0.3, rel=0.5)
    assert found["answered"] > 10
    assert 0 < found["own_cores"] < 2
    assert found["p50_ms"] <= found["p99_ms"] <= found["most_ms"]


def test_percentiles_are_latencies_that_were_measured() -> None:
    described = describe_latency([i / 1000 for i in range(1, 101)])
    assert described == pytest.approx({"answered": 100, "p50_ms": 50, "p99_ms": 99, "most_ms": 100})
    assert describe_latency([0.002]) == pytest.approx({"answered": 1, "p50_ms": 2, "p99_ms": 2, "most_ms": 2})
    assert describe_latency([])["p99_ms"] is None


def test_a_server_that_is_not_there_ends_the_benchmark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3))
    settings = {
        "url": "http://127.0.0.1:9", "pid": os.getpid(), "asking": {"by id": 1}, "clients": 1, "k": 1, "seed": 0,
        "ids": tmp_path / "ids.npy", "seconds": 1,
    }  # fmt: skip
    with pytest.raises(SystemExit, match="serve_load exited with 1, asking by id"):
        run_load(settings)
    assert "serve_load:" in capfd.readouterr().err
