from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrieval_app.api.security.visit_log import VisitLog
from retrieval_app.api.visitors import Visitor, keep_visitor
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.log_files import read_log


def _scope(address: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http", "state": {"request_id": "r1"}}
    keep_visitor(scope, Visitor(address=address))
    return scope


def _told(folder: Path, act: Callable[[VisitLog], Any], *, window_s: float = 60.0) -> list[tuple[str, int]]:
    """Of every line about wrong tries the address, and how many there were."""
    log = ActivityLog(folder)

    async def run() -> None:
        visits = VisitLog({"": log}, window_s=window_s)
        done = act(visits)
        if done is not None:
            await done
        visits.close()

    asyncio.run(run())
    log.close()
    return [(line["from"], line["tries"]) for line in read_log(folder)]


def test_a_guesser_gets_a_line_and_another_at_the_end_of_the_minute(tmp_path: Path) -> None:
    async def guess(visits: VisitLog) -> None:
        for _ in range(1000):
            visits.refuse(_scope("192.0.2.1"), by="token")
        visits.refuse(_scope("192.0.2.2"), by="token")
        await asyncio.sleep(0.3)
        visits.refuse(_scope("192.0.2.1"), by="token")

    assert _told(tmp_path, guess, window_s=0.2) == [
        ("192.0.2.1", 1), ("192.0.2.2", 1), ("192.0.2.1", 999), ("192.0.2.1", 1),
    ]  # fmt: skip


def test_many_addresses_together_get_few_lines_and_no_try_is_left_out(tmp_path: Path) -> None:
    def guess(visits: VisitLog) -> None:
        for number in range(25_000):
            visits.refuse(_scope(f"address {number % 12_500}"), by="token")

    told = _told(tmp_path, guess)
    assert len(told) == 21
    assert told[-1][0] == "other addresses"
    assert sum(count for _, count in told) == 25_000
