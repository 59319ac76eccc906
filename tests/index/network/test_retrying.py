import threading

import pytest

from index.network import remote_store
from index.network.remote_store import choose_wait, in_a_hurry, is_hurried, pause
from index.threads import AbandonedError, heed_abandonment


def test_waits_grow_and_are_drawn() -> None:
    for failed in range(1, 12):
        waits = [choose_wait(failed) for _ in range(200)]
        longest = min(remote_store.MAX_WAIT_S, 0.5 * 2 ** (failed - 1))
        assert 0 <= min(waits) < longest / 4
        assert longest / 2 < max(waits) <= longest


def test_a_hurry_is_one_of_a_thread_and_ends() -> None:
    seen: list[bool] = []
    with in_a_hurry():
        with in_a_hurry():
            pass
        assert is_hurried()
        thread = threading.Thread(target=lambda: seen.append(is_hurried()))
        thread.start()
        thread.join()
    assert (seen, is_hurried()) == ([False], False)


def test_nobody_waits_in_a_thread_that_was_abandoned() -> None:
    abandoned, ended = threading.Event(), []
    abandoned.set()

    def wait() -> None:
        heed_abandonment(abandoned)
        with pytest.raises(AbandonedError):
            pause(3600)
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(20)
    assert ended == [True]
