"""Who asks too often is told when he may again, and nobody else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from retrieval_app.api.security import rate_limits
from retrieval_app.api.security.rate_limits import RateConfig, RateLimit, RateLimits
from tests.retrieval_app.api.conftest import serve
from tests.retrieval_app.api.security.conftest import Clock


def test_a_bucket_is_emptied_at_once_and_fills_at_its_rate(clock: Clock) -> None:
    limit = RateLimit(per_s=2, most=3, clock=clock)
    assert [limit.take("a") for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    assert limit.take("b") == 0
    clock.now += 0.5
    assert [limit.take("a"), limit.take("a")] == [0, 0.5]
    clock.now += 60
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_visitors_that_are_made_up_fill_no_memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_MOST_BUCKETS", 10)
    limit = RateLimit(per_s=1, most=1, clock=clock)
    for number in range(100):
        limit.take(str(number))
    assert len(limit._buckets) == 10


def test_uploads_are_counted_by_the_minute_beside_other_requests(clock: Clock) -> None:
    limits = RateLimits(RateConfig(uploads_per_min=2), clock=clock)
    assert [limits.take("a", is_upload=True) for _ in range(3)] == [0, 0, 30]
    assert [limits.take("a", is_upload=False) for _ in range(9)] == [0] * 9


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
