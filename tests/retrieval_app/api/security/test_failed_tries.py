from __future__ import annotations

import asyncio
import logging

import pytest

from retrieval_app.api.security import failed_tries
from retrieval_app.api.security.failed_tries import FailedTries
from retrieval_app.api.security.sign_in_config import SignInConfig
from tests.retrieval_app.api.security.conftest import Clock


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every wait, none of which takes any time."""
    seconds: list[float] = []

    async def sleep(wanted: float) -> None:
        seconds.append(wanted)

    monkeypatch.setattr(failed_tries.asyncio, "sleep", sleep)
    return seconds


def test_each_wrong_try_of_an_address_waits_longer_up_to_a_limit(clock: Clock, slept: list[float]) -> None:
    async def run() -> None:
        tries = FailedTries(clock=clock)
        for _ in range(10):
            assert await tries.hold_back("192.0.2.1")
        assert await tries.hold_back("192.0.2.2")

    asyncio.run(run())
    assert slept[:4] == [0.1, 0.2, 0.4, 0.8]
    assert slept[9] == SignInConfig().failed_try_longest_wait_s
    assert slept[10] == slept[0]


def test_an_address_is_forgotten_that_is_quiet_for_long(clock: Clock, slept: list[float]) -> None:
    async def run() -> None:
        tries = FailedTries(clock=clock)
        for _ in range(5):
            await tries.hold_back("192.0.2.1")
        clock.now += SignInConfig().failed_tries_forgotten_s + 1
        await tries.hold_back("192.0.2.1")

    asyncio.run(run())
    assert slept[-1] == slept[0]


def test_no_more_wait_at_once_than_are_allowed_of_one_address_and_of_all() -> None:
    async def run() -> tuple[list[bool], bool]:
        tries = FailedTries(SignInConfig(failed_tries_waiting=3, failed_tries_waiting_in_all=5))
        asked = [tries.hold_back(address) for address in ["a"] * 6 + ["b"] * 6]
        first = await asyncio.gather(*asked)
        return first, await tries.hold_back("a")

    let_wait, later = asyncio.run(run())
    assert let_wait == [True] * 3 + [False] * 3 + [True] * 2 + [False] * 4
    assert later  # room is given back


def test_addresses_that_are_made_up_fill_no_memory(
    clock: Clock, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_tries, "_MAX_ADDRESSES", 10)

    async def run() -> FailedTries:
        tries = FailedTries(clock=clock)
        for number in range(100):
            await tries.hold_back(f"192.0.2.{number}")
        return tries

    tries = asyncio.run(run())
    assert len(tries._tries) == 10
    assert len(tries._untold) <= 10
    assert not tries._waiting


def test_the_log_tells_of_the_first_try_at_once_and_of_the_others_together(
    clock: Clock, slept: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        tries = FailedTries(clock=clock)
        for number in (1, 1, 1, 2, 3, 4, 5, 5):
            await tries.hold_back(f"192.0.2.{number}")
        assert caplog.messages == ["a wrong token from 192.0.2.1"]
        tries._tell_rest()
        tries._tell_rest()
        await tries.hold_back("192.0.2.9", what="a used or wrong address code")
        await tries.hold_back("192.0.2.9")
        tries._tell_rest()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert caplog.messages == [
        "a wrong token from 192.0.2.1",
        "7 more wrong tries in 10 s: 2 from 192.0.2.1, 2 from 192.0.2.5, 1 from 192.0.2.2, "
        "the rest from 2 other addresses",
        "a used or wrong address code from 192.0.2.9",
        "1 more wrong try in 10 s: 1 from 192.0.2.9",
    ]
