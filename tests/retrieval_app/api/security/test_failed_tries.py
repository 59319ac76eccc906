"""Wrong tokens wait, each longer than the one before."""

import asyncio

import pytest

from retrieval_app.api.security import failed_tries
from retrieval_app.api.security.failed_tries import FailedTries
from tests.retrieval_app.api.security.conftest import Clock


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every wait, none of which takes any time."""
    seconds: list[float] = []

    async def sleep(wanted: float) -> None:
        seconds.append(wanted)

    monkeypatch.setattr(failed_tries.asyncio, "sleep", sleep)
    return seconds


def test_wrong_tries_wait_longer_until_an_address_is_quiet(clock: Clock, slept: list[float]) -> None:
    async def run() -> None:
        tries = FailedTries(clock=clock)
        for _ in range(10):
            assert await tries.delay("192.0.2.1")
        assert await tries.delay("192.0.2.2")
        clock.now += failed_tries.FORGOTTEN_S + 1
        await tries.delay("192.0.2.1")

    asyncio.run(run())
    assert slept[:4] == [0.1, 0.2, 0.4, 0.8]
    assert slept[9] == failed_tries.LONGEST_WAIT_S
    assert slept[10:] == [slept[0]] * 2


def test_no_more_wait_at_once_than_are_allowed_of_one_address_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_tries, "MOST_WAITING", 3)
    monkeypatch.setattr(failed_tries, "MOST_WAITING_IN_ALL", 5)

    async def run() -> tuple[list[bool], bool]:
        tries = FailedTries()
        asked = [tries.delay(address) for address in ["a"] * 6 + ["b"] * 6]
        first = await asyncio.gather(*asked)
        return first, await tries.delay("a")

    let_wait, later = asyncio.run(run())
    assert let_wait == [True] * 3 + [False] * 3 + [True] * 2 + [False] * 4
    assert later  # room is given back


def test_forged_addresses_use_no_memory(clock: Clock, slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_tries, "_MAX_ADDRESSES", 10)

    async def run() -> FailedTries:
        tries = FailedTries(clock=clock)
        for number in range(100):
            await tries.delay(f"192.0.2.{number}")
        return tries

    tries = asyncio.run(run())
    assert len(tries._tries) == 10
    assert len(tries._noted) <= 10 + 1  # and the sum of the others
    assert not tries._waiting


def _log(addresses: list[str], *, after: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """The lines about wrong tries from these addresses, at once, and `after` a window."""
    lines = list[tuple[str, int]]()

    async def run() -> None:
        tries = FailedTries(log=lambda address, count: lines.append((address, count)))
        for address in addresses:
            await tries.delay(address)
        if after:
            await asyncio.sleep(1.5 * failed_tries.LOG_WINDOW_S)
        for address in after:
            await tries.delay(address)
        tries.close()

    asyncio.run(run())
    return lines


def test_a_guesser_gets_a_line_and_another_at_the_end_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_tries, "MOST_WAITING", 0)
    monkeypatch.setattr(failed_tries, "LOG_WINDOW_S", 0.2)
    lines = _log(["192.0.2.1"] * 100 + ["192.0.2.2"], after=("192.0.2.1",))
    assert lines == [("192.0.2.1", 1), ("192.0.2.2", 1), ("192.0.2.1", 99), ("192.0.2.1", 1)]


def test_many_addresses_together_get_few_lines_and_no_try_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_tries, "MOST_WAITING", 0)
    lines = _log([f"address {number % 12_500}" for number in range(25_000)])
    assert len(lines) == 21
    assert "other addresses" in dict(lines)
    assert sum(count for _, count in lines) == 25_000
