from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.probe import SearchProbe
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.serving_config import ServingConfig


@pytest.fixture
def engine(small_gallery: Path) -> Iterator[Engine]:
    opened = Engine(small_gallery, config=ServingConfig(threads=1))
    yield opened
    opened.close()


class _Gate:
    """A version whose vectors are read once the gate is open; how often they were asked for is counted."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.gallery, self.insights, self.digest = self, snapshot.insights, snapshot.gallery.digest
        self._gallery, self.is_open, self.asked = snapshot.gallery, threading.Event(), 0

    def vector(self, image_id: int) -> Any:
        """As the gallery has it."""
        self.asked += 1
        assert self.is_open.wait(30)
        return self._gallery.vector(image_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gallery, name)


def test_a_version_is_searched_while_all_workers_and_readers_are_busy(engine: Engine) -> None:
    async def check() -> None:
        gate = threading.Event()
        blocked = [asyncio.create_task(engine.run(gate.wait, 30)) for _ in range(20)]
        await asyncio.sleep(0)
        try:
            await engine.probe.check(engine.snapshot())
        finally:
            gate.set()
            await asyncio.gather(*blocked)

    asyncio.run(check())


def test_a_search_that_hangs_is_told_after_a_while_and_is_not_joined_by_others(engine: Engine) -> None:
    gate = _Gate(engine.snapshot())
    snapshot = cast("Snapshot", gate)

    async def check() -> None:
        probe = SearchProbe(longest_s=0.05)
        for _ in range(3):
            with pytest.raises(NotReadyError, match=r"more than 0\.05 seconds"):
                await probe.check(snapshot)
        assert gate.asked == 1
        gate.is_open.set()
        for _ in range(500):
            try:
                await probe.check(snapshot)
                return
            except NotReadyError:
                await asyncio.sleep(0.02)
        raise AssertionError("it is not found out that searches are answered again")

    try:
        asyncio.run(check())
    finally:
        gate.is_open.set()


def test_those_who_ask_at_once_share_a_search(engine: Engine) -> None:
    gate = _Gate(engine.snapshot())
    snapshot = cast("Snapshot", gate)

    async def check() -> None:
        probe = SearchProbe()
        waiting = [asyncio.create_task(probe.check(snapshot)) for _ in range(50)]
        await asyncio.sleep(0)
        gate.is_open.set()
        await asyncio.gather(*waiting)
        await probe.check(snapshot)

    asyncio.run(check())
    assert gate.asked == 1


def test_a_member_without_a_row_makes_it_unready(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.catalog.reader.Catalog.find", lambda *_: {})
    with pytest.raises(NotReadyError, match=r"image \d+ has no row"):
        asyncio.run(SearchProbe().check(engine.snapshot()))
