import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from retrieval_app.api.errors import ApiError
from retrieval_app.api.security.upload_limits import SMALL_BYTES, BodyRoom
from retrieval_app.serving.errors import BusyError
from retrieval_app.serving.serving_config import ServingConfig

KIBIBYTE = 1024


class _Client:
    """Sends chunks, each after its seconds, and then nothing more; the last one ends the body where it says so."""

    def __init__(self, chunks: Sequence[tuple[float, bytes]], *, ends: bool = True) -> None:
        self._chunks, self._ends = list(chunks), ends

    async def receive(self) -> Any:
        if not self._chunks:
            await asyncio.Event().wait()
        seconds, chunk = self._chunks[0]
        await asyncio.sleep(seconds)
        del self._chunks[0]
        return {"type": "http.request", "body": chunk, "more_body": bool(self._chunks) or not self._ends}


async def _read(room: BodyRoom, client: _Client, *, announced: int) -> bytes | None:
    async with room.read(client.receive, announced=announced) as body:
        assert body is None or room.held >= len(body)
        return body


def _ask(config: ServingConfig, client: _Client, *, announced: int) -> bytes | None:
    return asyncio.run(_read(BodyRoom(config), client, announced=announced))


def test_what_is_announced_takes_no_room_before_it_arrives() -> None:
    async def check() -> None:
        room = BodyRoom(ServingConfig(bytes_arriving=1000))
        waiting = [asyncio.create_task(_read(room, _Client([(0, b"a")], ends=False), announced=900)) for _ in range(50)]
        await asyncio.sleep(0.05)
        assert room.held == 50
        assert await _read(room, _Client([(0, b"a" * 900)]), announced=900) == b"a" * 900
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert room.held == 0

    asyncio.run(check())


def test_a_body_that_there_is_no_room_for_is_refused_while_those_before_it_are_new() -> None:
    async def check() -> None:
        room = BodyRoom(ServingConfig(bytes_arriving=1000))
        async with room.read(_Client([(0, b"a" * 600)]).receive, announced=600) as body:
            assert body == b"a" * 600
            with pytest.raises(BusyError, match="receiving"):
                await _read(room, _Client([(0, b"a" * 401)]), announced=401)
            assert await _read(room, _Client([(0, b"a" * 400)]), announced=400) == b"a" * 400
        assert await _read(room, _Client([(0, b"a" * 1000)]), announced=1000) == b"a" * 1000
        assert room.held == 0

    asyncio.run(check())


def test_a_body_that_takes_long_gives_way_to_a_newer_one() -> None:
    async def check() -> None:
        room = BodyRoom(ServingConfig(bytes_arriving=1000, upload_window_s=1, upload_bytes_a_second=1))
        slow = asyncio.create_task(
            _read(room, _Client([(0, b"a" * 700), *[(0.5, b"aa")] * 20], ends=False), announced=900)
        )
        await asyncio.sleep(1.6)
        assert not slow.done()
        assert await _read(room, _Client([(0, b"a" * 900)]), announced=900) == b"a" * 900
        with pytest.raises(BusyError):
            await slow
        assert room.held == 0

    asyncio.run(check())


def test_small_bodies_have_a_part_of_the_room_to_themselves() -> None:
    async def check() -> None:
        room = BodyRoom(ServingConfig(bytes_arriving=8 * SMALL_BYTES))
        large = _Client([(0, b"a" * 7 * SMALL_BYTES)])
        async with room.read(large.receive, announced=7 * SMALL_BYTES) as body:
            assert isinstance(body, bytes)
            with pytest.raises(BusyError):
                await _read(room, _Client([(0, b"a")]), announced=SMALL_BYTES + 1)
            assert await _read(room, _Client([(0, b"a" * SMALL_BYTES)]), announced=SMALL_BYTES)

    asyncio.run(check())


def test_a_body_has_to_arrive_at_a_least_rate() -> None:
    bodies: list[tuple[list[tuple[float, bytes]], bool]] = [
        ([(0.0, b"a")], False),
        ([(0.0, b"a" * 3000)], False),  # and no more after it
        ([(0.2, b"a")] * 30, False),
        ([(0.4, b"a" * KIBIBYTE)] * 5, True),
        ([(0.0, b"a" * 5000), (0.9, b"a")], True),  # a pause
    ]

    async def send(chunks: list[tuple[float, bytes]], taken: bool) -> None:
        room = BodyRoom(ServingConfig(upload_window_s=1, upload_bytes_a_second=KIBIBYTE))
        announced = sum(len(chunk) for _, chunk in chunks) + (0 if taken else KIBIBYTE)
        if taken:
            assert await _read(room, _Client(chunks), announced=announced) == b"a" * announced
        else:
            with pytest.raises(ApiError, match="1,024 bytes a second") as refused:
                await _read(room, _Client(chunks, ends=False), announced=announced)
            assert refused.value.status == 408

    async def send_all() -> None:
        await asyncio.gather(*(send(*body) for body in bodies))

    asyncio.run(send_all())


def test_a_body_has_to_arrive_in_time_whatever_its_rate() -> None:
    config = ServingConfig(upload_s=1, upload_window_s=30)
    with pytest.raises(ApiError, match="within 1 seconds") as refused:
        _ask(config, _Client([(0.1, b"a" * KIBIBYTE)] * 100), announced=100 * KIBIBYTE)
    assert refused.value.status == 408


def test_a_body_that_is_longer_than_announced_is_refused() -> None:
    with pytest.raises(ApiError, match="longer than the 2 bytes that were announced") as refused:
        _ask(ServingConfig(), _Client([(0, b"aaa")]), announced=2)
    assert refused.value.status == 400
