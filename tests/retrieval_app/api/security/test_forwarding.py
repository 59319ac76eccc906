from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from retrieval_app.api.security.forwarding import came_by_tls, drop_forwarding, is_forwarded, name_client


def _scope(address: str, *, scheme: str = "http") -> dict[str, Any]:
    return {"type": "http", "scheme": scheme, "client": (address, 1234)}


@pytest.mark.parametrize("name", ["forwarded", "via", "x-forwarded-for", "x-forwarded-anything", "x-real-ip"])
def test_what_a_proxy_adds_is_seen_and_goes_no_further(name: str) -> None:
    pairs = [(b"host", b"127.0.0.1"), (name.encode(), b"")]
    assert is_forwarded(Headers(raw=pairs))
    assert drop_forwarding(pairs) == [(b"host", b"127.0.0.1")]


def test_what_browsers_and_programs_send_is_no_forwarding() -> None:
    names = (
        "host",
        "user-agent",
        "accept",
        "x-request-id",
        "x-requested-with",
        "referer",
        "forwarded-by-me",
        "viable",
    )
    assert not is_forwarded(Headers(dict.fromkeys(names, "x")))


@pytest.mark.parametrize(
    ("peer", "told", "name"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # who is no proxy on this machine is not believed
        ("127.0.0.1", None, "127.0.0.1"),
        (
            "127.0.0.1",
            "203.0.113.1, 198.51.100.1",
            "198.51.100.1",
        ),  # what is before the last anybody may have sent
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("", None, "unknown"),
    ],
)
def test_wrong_tries_are_counted_by_the_address_that_cannot_be_made_up(
    peer: str, told: str | None, name: str
) -> None:
    headers = Headers({} if told is None else {"x-forwarded-for": told})
    assert name_client(_scope(peer), headers) == name


def test_only_a_proxy_on_this_machine_is_believed_to_speak_tls() -> None:
    told = Headers({"x-forwarded-proto": "https"})
    assert came_by_tls(_scope("127.0.0.1"), told)
    assert came_by_tls(_scope("192.0.2.1", scheme="https"), Headers({}))
    assert not came_by_tls(_scope("192.0.2.1"), told)
    assert not came_by_tls(_scope("127.0.0.1"), Headers({}))
