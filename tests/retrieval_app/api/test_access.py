from __future__ import annotations

from pathlib import Path

import pytest
from starlette.datastructures import Headers

from index.errors import InputError
from retrieval_app.api.access import Access
from tests.retrieval_app.api.conftest import TOKEN, serve


@pytest.mark.parametrize("token", ["", "short", "with space in it", "ümlaut-und-mehr", "x" * 513, "line\nbreak!"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(InputError, match="a token has 8 to 512 characters"):
        Access(token=token)


def test_decisions_need_this_machine_or_a_token() -> None:
    assert Access(loopback=True).may_review
    assert not Access(loopback=False).may_review
    assert Access(loopback=False, token="long enough".replace(" ", "-")).may_review


def test_changes_need_both_the_flag_and_a_token() -> None:
    assert not Access(writable=True).may_write
    assert not Access(token="long-enough").may_write
    assert Access(token="long-enough", writable=True).may_write


def test_servers_with_other_tokens_have_other_cookies() -> None:
    one, other = Access(token="token-one"), Access(token="token-two")
    assert one.cookie_name != other.cookie_name
    header = Headers({"cookie": f"{one.cookie_name}={one.cookie_value}; {other.cookie_name}=forged"})
    assert one.admits(header)
    assert not other.admits(header)


@pytest.mark.parametrize(
    "other", ['prefs={"theme":"dark","n":[1,2]}', "a b=c d", "(x)=/;", "no-name", "ü=é", '"="']
)
def test_cookies_of_others_do_not_hide_ours(other: str) -> None:
    access = Access(token="long-enough")
    for text in (
        f"{other}; {access.cookie_name}={access.cookie_value}",
        f"{access.cookie_name}={access.cookie_value};{other}",
    ):
        assert access.admits(Headers(raw=[(b"cookie", text.encode())]))
    assert not access.admits(Headers(raw=[(b"cookie", other.encode())]))


def test_without_a_token_everybody_is_admitted_and_nobody_knows_it() -> None:
    access = Access()
    assert access.admits(Headers({}))
    assert not access.knows(Headers({"authorization": "Bearer "}))


def test_a_broken_cookie_admits_nobody() -> None:
    access = Access(token="long-enough")
    for text in ("=;=;", "\x00", f"{access.cookie_name}", f"{access.cookie_name}=é"):
        assert not access.admits(Headers(raw=[(b"cookie", text.encode())]))


def test_the_description_of_the_api_tells_of_the_token(served: Path) -> None:
    with serve(served, access=Access(token=TOKEN)) as client:
        described = client.get("/v1/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}).json()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert described["paths"]["/v1/search"]["post"]["security"] == [{"token": []}]
    assert "security" not in described["paths"]["/v1/health"]["get"]
