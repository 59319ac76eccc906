from __future__ import annotations

import resource
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
import uvicorn

from retrieval_app.server import http_server
from retrieval_app.server.connection_config import ConnectionConfig
from retrieval_app.server.http_server import _allow_connections, _Server
from tests.forked import run

LIMITS = ConnectionConfig()


@dataclass
class _Transport:
    unsent: int = 0
    ended: list[str] = field(default_factory=list)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.ended.append("closed")

    def abort(self) -> None:
        self.ended.append("aborted")


@dataclass(eq=False)
class _Cycle:
    response_complete: bool = False


@dataclass(eq=False)
class _Connection:
    cycle: _Cycle | None = None
    transport: _Transport = field(default_factory=_Transport)

    def give_up_head(self) -> None:
        self.transport.close()

    def give_up_answer(self) -> None:
        self.transport.abort()


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(http_server, "time", clock)
    return clock


def _pass_time(server: _Server, clock: _Clock, seconds: float) -> None:
    for _ in range(int(seconds)):
        clock.now += 1
        server._close_stuck()


def _serve(*connections: Any) -> _Server:
    async def app(*_: object) -> None:
        raise AssertionError("nothing is asked")

    server = _Server(uvicorn.Config(app, log_config=None, log_level=None), limits=LIMITS, on_ready=lambda: None)
    server.server_state.connections = set(connections)
    return server


def test_silent_connections_are_closed_and_not_those_that_are_answered(clock: _Clock) -> None:
    silent, done, working = _Connection(), _Connection(_Cycle(response_complete=True)), _Connection(_Cycle())
    busy = _Connection(_Cycle())
    server = _serve(silent, done, working, busy)
    _pass_time(server, clock, LIMITS.head_s)
    assert silent.transport.ended == done.transport.ended == []
    _pass_time(server, clock, 3)
    assert {*silent.transport.ended} == {*done.transport.ended} == {"closed"}
    for _ in range(10):
        busy.cycle = _Cycle(response_complete=True)
        _pass_time(server, clock, LIMITS.head_s - 5)
    assert busy.transport.ended == working.transport.ended == []


def test_an_answer_that_nobody_takes_is_given_up_and_one_that_is_taken_slowly_is_not(clock: _Clock) -> None:
    stuck, slow = (_Connection(_Cycle(), _Transport(unsent=10_000)) for _ in range(2))
    server = _serve(stuck, slow)
    for _ in range(20):
        slow.transport.unsent -= 1
        _pass_time(server, clock, LIMITS.answer_s / 5)
    assert "aborted" in stuck.transport.ended
    assert slow.transport.ended == []


def tell_allowed_connections() -> None:
    """As many as files may be open: `sys.argv` tells the limits, and the files of the application."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
    sys.stdout.write(f"{_allow_connections(LIMITS, more_files=int(sys.argv[3]))}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("soft", "hard", "beside", "places"),
    [(256, 2000, 0, LIMITS.connections), (300, 500, 0, 212), (300, 500, 112, 100), (64, 64, 0, 1),
     (5000, 5000, 0, LIMITS.connections)],
)  # fmt: skip
def test_open_files_limit_connections(soft: int, hard: int, beside: int, places: int) -> None:
    told = run([soft, hard, beside], function=tell_allowed_connections)
    assert int(told.stdout) == places, told.stderr
