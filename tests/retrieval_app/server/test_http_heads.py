"""What the limits on heads take from uvicorn, whose own protocol they change: a version without it shows here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
import uvicorn
from uvicorn.server import ServerState

from retrieval_app.server.connection_config import ConnectionConfig
from retrieval_app.server.http_heads import BoundedProtocol
from retrieval_app.server.http_room import Room, Stage
from retrieval_app.server.refusals import MoreRefusals, Refusal, Refusals

LIMITS = ConnectionConfig()
SLOW = b"POST /v1/slow HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"
HEAD = b"GET /v1/health HTTP/1.1\r\nhost: a\r\n"


class _Transport(asyncio.Transport):
    """Keeps what is written."""

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
        (b"", "displace", [("displaced", None, None)]),
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
