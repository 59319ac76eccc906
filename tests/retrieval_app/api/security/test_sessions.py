from __future__ import annotations

import pytest

from retrieval_app.api.security.sessions import OneTimeCode, Sessions
from retrieval_app.api.security.sign_in_config import SignInConfig
from tests.retrieval_app.api.security.conftest import Clock

LIMITS = SignInConfig()


def test_a_code_is_used_once(clock: Clock) -> None:
    codes = OneTimeCode(clock=clock)
    assert not codes.use("")
    code = codes.make()
    assert len(code) >= 22  # 128 bits
    assert not codes.use(code[:-1])
    assert codes.use(code)
    assert not codes.use(code)
    assert not codes.use("")


def test_a_code_is_too_old_after_some_minutes(clock: Clock) -> None:
    codes = OneTimeCode(clock=clock)
    code = codes.make()
    clock.now += LIMITS.first_visit_s + 1
    assert not codes.use(code)


def test_a_session_holds_while_it_is_used(clock: Clock) -> None:
    sessions = Sessions(clock=clock)
    value = sessions.open()
    for _ in range(5):
        clock.now += LIMITS.session_s - 1
        assert sessions.hold(value)
    clock.now += LIMITS.session_s + 1
    assert not sessions.hold(value)
    assert not sessions.hold(value)


@pytest.mark.parametrize("value", ["", "x", "é" * 40, "\udcff"])
def test_a_made_up_value_holds_nothing(clock: Clock, value: str) -> None:
    sessions = Sessions(clock=clock)
    known = sessions.open()
    assert not sessions.hold(value)
    assert not sessions.hold(known[:-1])
    assert sessions.hold(known)


def test_of_too_many_sessions_the_least_recently_used_end(clock: Clock) -> None:
    sessions = Sessions(clock=clock)
    first, second = sessions.open(), sessions.open()
    assert sessions.hold(first)
    for _ in range(LIMITS.max_sessions - 1):
        sessions.open()
    assert sessions.hold(first)
    assert not sessions.hold(second)
