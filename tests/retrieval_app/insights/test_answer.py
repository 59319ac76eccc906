"""Answers computed once for a version: galleries do not wait for each other, and callers that wait share a failure."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.insights import answer


class _Version:
    """Stands in for a gallery."""


def test_galleries_do_not_wait_for_each_other_and_those_that_wait_share_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, go_on, calls = threading.Semaphore(0), threading.Event(), list[Gallery]()
    slow, quick = (cast(Gallery, _Version()) for _ in range(2))

    class Watched(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            waiting.release()
            return super().result(timeout)

    @answer.once_per_gallery
    def compute(gallery: Gallery) -> int:
        calls.append(gallery)
        if gallery is slow:
            assert go_on.wait(60)
            raise InputError("it takes too long")
        return len(calls)

    monkeypatch.setattr(answer, "Future", Watched)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(compute, slow) for _ in range(3)]
        assert waiting.acquire(timeout=60)
        assert waiting.acquire(timeout=60)
        assert compute(quick) == compute(quick) == 2
        go_on.set()
        assert [str(one.exception()) for one in asked] == ["it takes too long"] * 3
    assert calls == [slow, quick]
    with pytest.raises(InputError):
        compute(slow)
    assert calls == [slow, quick, slow]
