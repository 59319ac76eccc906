import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.network import remote_store
from index.network.remote_store import (
    choose_wait,
    has_time,
    in_a_hurry,
    is_address,
    is_hurried,
    is_web,
    make_stamp,
    pause,
)
from index.threads import AbandonedError, stop_on_event

WHEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


@given(st.text(min_size=1), st.none() | st.datetimes(timezones=st.just(UTC)))
def test_a_stamp_holds_the_second_of_the_change_in_64_bits(tag: str, modified: datetime | None) -> None:
    stamp = make_stamp(tag, modified)
    assert 0 < stamp < 2**63
    seconds = 0 if modified is None else max(0, int(modified.timestamp()))
    assert stamp // 10**9 == min(seconds, 9 * 10**9)
    assert has_time(stamp) is (seconds > 0)


def test_another_tag_or_time_makes_another_stamp_and_nothing_known_makes_none() -> None:
    stamps = {make_stamp(tag, when) for tag in ("a", "b", None) for when in (WHEN, WHEN + timedelta(seconds=1), None)}
    assert len(stamps) == 9
    assert make_stamp(None, None) == 0
    assert make_stamp("a", WHEN) == make_stamp("a", WHEN)


def test_addresses_are_told_from_paths() -> None:
    assert all(map(is_address, ["s3://b", "https://host/x", "gs2+x://y"]))
    assert [is_web(text) for text in ("s3://b", "https://host/x")] == [False, True]
    assert not any(map(is_address, ["", "photos", "/a://b", "C:/x", "://x", "s3://", "S3 b://x"]))


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
        stop_on_event(abandoned)
        with pytest.raises(AbandonedError):
            pause(3600)
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(20)
    assert ended == [True]
