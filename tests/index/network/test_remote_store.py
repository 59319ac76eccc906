from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from index.network.remote_store import has_time, is_address, is_web, make_stamp

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
