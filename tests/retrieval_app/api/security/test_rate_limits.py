"""Who asks too often is told when he may again, and nobody else is."""

import asyncio
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from retrieval_app.api.security import rate_limits
from retrieval_app.api.security.rate_limits import FailedTries, RateConfig, RateLimits
from tests.retrieval_app.api.conftest import serve
from tests.retrieval_app.api.security.conftest import Clock


def test_a_bucket_is_emptied_at_once_and_fills_at_its_rate(clock: Clock) -> None:
    limit = RateLimits(RateConfig(requests_per_s=0.5, requests_burst=3), clock=clock)
    assert [limit.take("a") for _ in range(5)] == [0, 0, 0, 2, 2]
    assert limit.take("b") == 0
    clock.now += 2
    assert [limit.take("a"), limit.take("a")] == [0, 2]
    clock.now += 60
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 2]


def test_visitors_that_are_made_up_fill_no_memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_MOST_BUCKETS", 10)
    limit = RateLimits(RateConfig(requests_per_s=1, requests_burst=1), clock=clock)
    for number in range(100):
        limit.take(str(number))
    assert len(limit._buckets) == 10


@pytest.mark.parametrize("far", [{"client": ("192.0.2.1", 1)}, {"headers": {"X-Forwarded-For": "192.0.2.1"}}])
def test_who_asks_too_often_from_elsewhere_is_sent_away_for_a_while(served: Path, far: dict[str, object]) -> None:
    rates = RateConfig(requests_per_s=0.1, requests_burst=2)
    with serve(served, rates=rates) as here:
        there = TestClient(here.app, base_url="http://127.0.0.1:7860", **{"client": ("127.0.0.1", 1), **far})  # type: ignore[arg-type]
        assert [there.get("/v1/gallery").status_code for _ in range(3)] == [200, 200, 429]
        refused = there.get("/v1/gallery")
        assert refused.json()["error"]["code"] == "too_many_requests"
        assert 0 < int(refused.headers["retry-after"]) <= 10
        assert [there.get(path).status_code for path in ("/v1/health", "/v1/ready")] == [200, 200]
        near = TestClient(here.app, base_url="http://127.0.0.1:7860", client=("::1", 1))
        assert [near.get("/v1/gallery").status_code for _ in range(5)] == [200] * 5


def test_photos_have_a_limit_of_their_own(served: Path) -> None:
    with serve(served, rates=RateConfig(uploads_per_min=1)) as here:
        there = TestClient(here.app, base_url="http://127.0.0.1:7860", client=("192.0.2.1", 1))
        statuses = [there.post(path, content=b"x").status_code for path in ("/v1/photos", "/v1/embed")]
        assert statuses == [422, 429]
        assert there.get("/v1/gallery").status_code == 200


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every wait, none of which takes any time."""
    seconds: list[float] = []

    async def sleep(wanted: float) -> None:
        seconds.append(wanted)

    monkeypatch.setattr(rate_limits.asyncio, "sleep", sleep)
    return seconds


def test_wrong_tries_wait_longer_until_an_address_is_quiet(clock: Clock, slept: list[float]) -> None:
    async def run() -> None:
        tries = FailedTries(clock=clock)
        for _ in range(10):
            assert await tries.delay("192.0.2.1")
        assert await tries.delay("192.0.2.2")
        clock.now += rate_limits.FORGOTTEN_S + 1
        await tries.delay("192.0.2.1")

    asyncio.run(run())
    assert slept[:4] == [0.1, 0.2, 0.4, 0.8]
    assert slept[9] == rate_limits.LONGEST_WAIT_S
    assert slept[10:] == [slept[0]] * 2


def test_no_more_wait_at_once_than_are_allowed_of_one_address_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MOST_WAITING", 3)
    monkeypatch.setattr(rate_limits, "MOST_WAITING_IN_ALL", 5)

    async def run() -> tuple[list[bool], bool]:
        tries = FailedTries()
        asked = [tries.delay(address) for address in ["a"] * 6 + ["b"] * 6]
        first = await asyncio.gather(*asked)
        return first, await tries.delay("a")

    let_wait, later = asyncio.run(run())
    assert let_wait == [True] * 3 + [False] * 3 + [True] * 2 + [False] * 4
    assert later  # room is given back


def test_forged_addresses_use_no_memory(clock: Clock, slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_MAX_ADDRESSES", 10)

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
            await asyncio.sleep(1.5 * rate_limits.LOG_WINDOW_S)
        for address in after:
            await tries.delay(address)
        tries.close()

    asyncio.run(run())
    return lines


def test_a_guesser_gets_a_line_and_another_at_the_end_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MOST_WAITING", 0)
    monkeypatch.setattr(rate_limits, "LOG_WINDOW_S", 0.2)
    lines = _log(["192.0.2.1"] * 100 + ["192.0.2.2"], after=("192.0.2.1",))
    assert lines == [("192.0.2.1", 1), ("192.0.2.2", 1), ("192.0.2.1", 99), ("192.0.2.1", 1)]


def test_many_addresses_together_get_few_lines_and_no_try_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MOST_WAITING", 0)
    lines = _log([f"address {number % 12_500}" for number in range(25_000)])
    assert len(lines) == 21
    assert "other addresses" in dict(lines)
    assert sum(count for _, count in lines) == 25_000
