"""Limits on the heads of requests and on connections, with what is told of those that were refused."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
import uvicorn
from uvicorn.server import ServerState

from retrieval_app.server import http_server
from retrieval_app.server.connection_config import ConnectionConfig
from retrieval_app.server.http_heads import BoundedProtocol
from retrieval_app.server.http_room import Room, Stage
from retrieval_app.server.http_server import _allow_connections, _Server
from retrieval_app.server.refusals import MoreRefusals, Refusal, Refusals, shorten_path
from tests.forked import run

LIMITS = ConnectionConfig()
SLOW = b"POST /v1/slow HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"
HEAD = b"GET /v1/health HTTP/1.1\r\nhost: a\r\n"


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._is_closing = False

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.written += bytes(data)

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        """Nothing reads by itself."""

    def resume_reading(self) -> None:
        """Likewise."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default


async def _app(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/v1/slow":
        await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _send(
    *pieces: bytes, room: Room | None = None, refusals: Refusals | None = None
) -> tuple[BoundedProtocol, _Transport]:
    """A connection on which these arrived, with time for answers between them."""
    config = uvicorn.Config(_app, ws="none", log_config=None)
    room = room or Room(places=10, beside=1)
    protocol = BoundedProtocol(
        config=config, server_state=ServerState(), app_state={}, room=room, limits=LIMITS, refusals=refusals
    )
    transport = _Transport()
    protocol.connection_made(transport)
    for piece in pieces:
        if not transport.is_closing():
            protocol.data_received(piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    return protocol, transport


class _Busy:
    displace: Any = None  # which is answered, and not given up for one of the same address


def _statuses(*pieces: bytes) -> list[int]:
    _, transport = asyncio.run(_send(*pieces))
    return [int(part[:3]) for part in transport.written.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("size", [997, LIMITS.max_head_bytes])
def test_a_head_is_counted_the_same_in_pieces_of_every_size(size: int) -> None:
    for rest, status in ((100, 200), (-100, 431)):
        head = HEAD + b"x: " + b"a" * (LIMITS.max_head_bytes - len(HEAD) - rest) + b"\r\n\r\n"
        assert _statuses(*(head[at : at + size] for at in range(0, len(head), size))) == [status]


def test_heads_of_one_connection_are_counted_one_by_one_and_bodies_are_not() -> None:
    head = HEAD + b"x: " + b"a" * (LIMITS.max_head_bytes // 2) + b"\r\n\r\n"
    assert _statuses(*[head] * 10) == [200] * 10
    assert _statuses(*[part for _ in range(10) for part in (head[:30_000], head[30_000:])]) == [200] * 10
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"
    assert _statuses(head, *[b"a" * 100_000] * 10, HEAD + b"\r\n") == [200, 200]


def test_more_headers_than_the_most_are_refused() -> None:
    for count, status in ((LIMITS.max_headers - 1, 200), (LIMITS.max_headers, 431)):
        assert _statuses(HEAD + b"x: 1\r\n" * count + b"\r\n") == [status]


def test_trailers_become_no_headers() -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nauthorization: x\r\n\r\n"
    protocol, transport = asyncio.run(_send(chunked))
    assert transport.written.startswith(b"HTTP/1.1 200")
    assert [name for name, _ in protocol.headers] == [b"host", b"transfer-encoding"]


def test_some_requests_may_wait_for_the_answer_to_the_first() -> None:
    most = LIMITS.max_pipelined + 1
    assert _statuses((HEAD + b"\r\n") * most) == [200] * most
    assert _statuses((HEAD + b"\r\n") * (most + 1)) == []  # which would not know its answer from others'


def test_where_there_is_no_place_left_only_health_is_told() -> None:
    room, busy = Room(places=1, beside=1), _Busy()
    room.enter(busy, address="127.0.0.1")
    room.move(busy, Stage.ANSWER)
    for path, status in ((b"/v1/health", 200), (b"/v1/ready", 200), (b"/v1/gallery", 503), (b"/", 503)):
        _, transport = asyncio.run(_send(HEAD.replace(b"/v1/health", path) + b"\r\n", room=room))
        assert transport.written.startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize(
    ("sent", "ended", "told"),
    [
        (b"", "give_up_head", []),  # as of a browser that connects in advance: counted alone
        (
            b"GET /v1/photos/3K8v?a=b HTTP/1.1\r\nhost: a",
            "give_up_head",
            [("head_timeout", "GET", "/v1/photos/…")],
        ),
        (HEAD + b"\r\n", "give_up_head", []),  # one that was answered, and kept for the next request
        (SLOW, "give_up_answer", [("answer_timeout", "POST", "/v1/…")]),
        (SLOW, "displace", [("displaced", "POST", "/v1/…")]),
    ],
)
def test_hang_ups_are_told(sent: bytes, ended: str, told: list[tuple[str, str | None, str | None]]) -> None:
    written, counted = list[Refusal | MoreRefusals](), list[str]()

    async def run() -> None:
        protocol, transport = await _send(sent, refusals=Refusals(count=counted.append, write=written.append))
        getattr(protocol, ended)()
        assert transport.is_closing()

    asyncio.run(run())
    assert [(one.reason, one.method, one.path) for one in written if isinstance(one, Refusal)] == told
    assert counted == ([reason for reason, _, _ in told] or (["silent"] if not sent else []))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", "/"), ("", ""), ("/v1/search/image?k=3&name=my-holiday.jpg", "/v1/search/image"),
        ("/v1/photos/3K8v0cYpL2Jt/picture", "/v1/photos/…"), ("/v1/images/17/thumbnail", "/v1/images/…"),
        ("/photos/v1/gallery", "/photos/v1/gallery"), ("/hunter2/v1", "/…"), ("/g/shoes/v1/search", "/g/…"),
        ("/3621c45759c538ba3621c45759c538ba", "/…"), ("/abcdefabcdefabcd/v1", "/…"),
        ("/v1/" + "a" * 100_000, "/v1/…"), ("http://evil.example/x", "//…"),
    ],
)  # fmt: skip
def test_of_an_address_only_what_may_be_ours_is_told(path: str, shown: str) -> None:
    assert shorten_path(path) == shown


def _flood(
    addresses: list[str], *, lines: int, lines_in_all: int
) -> tuple[list[Refusal | MoreRefusals], Counter[str]]:
    """What is written of refusals from these addresses, and what was counted."""
    written: list[Refusal | MoreRefusals] = []
    counted = Counter[str]()

    async def tell() -> None:
        refusals = Refusals(
            count=lambda reason: counted.update([reason]), write=written.append, lines=lines, lines_in_all=lines_in_all,
            seconds=0.05,
        )  # fmt: skip
        for address in addresses:
            refusals.tell(Refusal("displaced", address=address))
        await asyncio.sleep(0.1)
        refusals.tell(Refusal("displaced", address="198.51.100.9"))  # which has room again
        refusals.tell(Refusal("silent", address="198.51.100.9"))
        refusals.close()

    asyncio.run(tell())
    return written, counted


def test_of_a_flood_few_lines_are_written_and_all_is_counted() -> None:
    written, counted = _flood(["192.0.2.1"] * 1000 + ["192.0.2.2"], lines=3, lines_in_all=10)
    assert [one.address for one in written if isinstance(one, Refusal)] == [
        "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "198.51.100.9",
    ]  # fmt: skip
    assert [one.counts for one in written if isinstance(one, MoreRefusals)] == [{"displaced": 997}]
    assert counted == {"displaced": 1002, "silent": 1}


def test_many_addresses_together_write_no_more_and_a_network_counts_as_one() -> None:
    written, _ = _flood([f"192.0.2.{number}" for number in range(100)], lines=3, lines_in_all=10)
    assert [one.counts for one in written if isinstance(one, MoreRefusals)] == [{"displaced": 90}]
    written, _ = _flood([f"2001:db8::{number}" for number in range(100)], lines=3, lines_in_all=1000)
    assert [one.counts for one in written if isinstance(one, MoreRefusals)] == [{"displaced": 97}]


class _Guest:
    def __init__(self) -> None:
        self.is_dropped = False

    def displace(self) -> None:
        self.is_dropped = True


def _enter(room: Room, address: str, *, count: int = 1, stage: Stage = Stage.HEAD) -> list[_Guest]:
    connections = [_Guest() for _ in range(count)]
    for connection in connections:
        room.enter(connection, address=address)
        room.move(connection, stage)
    return connections


def _list_dropped(connections: list[_Guest]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.is_dropped]


@pytest.mark.parametrize("stage", Stage)
def test_a_newcomer_gets_the_oldest_place_of_the_address_that_has_the_most(stage: Stage) -> None:
    room = Room(places=10, beside=2)
    few, many = _enter(room, "few", count=3), _enter(room, "many", count=7, stage=stage)
    assert room.enter(newcomer := _Guest(), address="new")
    assert (_list_dropped(few), _list_dropped(many), newcomer.is_dropped) == ([], [0], False)
    assert len(room) == 10


def test_who_has_the_most_loses_what_waits_before_what_is_answered() -> None:
    room = Room(places=6, beside=2)
    answered, body, head = (
        _enter(room, "a", count=2, stage=stage) for stage in (Stage.ANSWER, Stage.BODY, Stage.HEAD)
    )
    _enter(room, "b", count=2)
    assert (_list_dropped(head), _list_dropped(body), _list_dropped(answered)) == ([0, 1], [], [])
    _enter(room, "c", count=1)
    assert (_list_dropped(body), _list_dropped(answered)) == ([0], [])


def test_an_address_that_has_the_most_gets_its_own_places_anew() -> None:
    room = Room(places=5, beside=2)
    other, own = _enter(room, "b"), _enter(room, "a", count=4)
    assert room.enter(_Guest(), address="a")
    assert (_list_dropped(other), _list_dropped(own)) == ([], [0])


def test_places_are_divided_evenly_among_those_who_flood() -> None:
    room, rng = Room(places=90, beside=4), random.Random(3)
    connections = [(address, _enter(room, address)[0]) for address in rng.choices("abc", k=2000)]
    left = Counter(address for address, connection in connections if not connection.is_dropped)
    assert all(20 <= left[address] <= 40 for address in "abc")


def test_beside_the_places_some_are_left_where_nothing_can_be_taken() -> None:
    room = Room(places=4, beside=2)  # all of which one address may have that nobody else wants
    answered, guests = _enter(room, "a", count=4, stage=Stage.ANSWER), [_Guest() for _ in range(3)]
    assert [room.enter(guest, address="a") for guest in guests] == [False, False, False]
    assert (_list_dropped(answered), _list_dropped(guests)) == ([], [0])  # the newest ones stay
    assert len(room) == 6
    room.leave(answered[0])
    assert room.enter(_Guest(), address="a")


def test_what_left_or_was_displaced_may_leave_again() -> None:
    room = Room(places=2, beside=1)
    first, second = _enter(room, "a", count=2)
    room.enter(_Guest(), address="b")
    for connection in (first, first, second):
        room.move(connection, Stage.ANSWER)
        room.leave(connection)
    assert len(room) == 1


@dataclass
class _Sink:
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
    transport: _Sink = field(default_factory=_Sink)

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
    stuck, slow = (_Connection(_Cycle(), _Sink(unsent=10_000)) for _ in range(2))
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
    [(256, 2000, 0, LIMITS.connections), (300, 500, 112, 100), (64, 64, 0, 1)],
)
def test_open_files_limit_connections(soft: int, hard: int, beside: int, places: int) -> None:
    told = run([soft, hard, beside], function=tell_allowed_connections)
    assert int(told.stdout) == places, told.stderr
