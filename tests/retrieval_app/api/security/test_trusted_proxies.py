from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from index.errors import InputError
from retrieval_app.api.security.trusted_proxies import Told, TrustedProxies

PROXIES = TrustedProxies.of(["127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48"])


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, Told("127.0.0.1", "http", None)),
        ({"x-forwarded-for": "6.6.6.6, 192.0.2.1"}, Told("192.0.2.1", "http", None)),
        ({"x-forwarded-for": "6.6.6.6, 192.0.2.1, 10.1.1.1, 2001:db8:1::7"}, Told("192.0.2.1", "http", None)),
        ({"x-forwarded-for": "192.0.2.1:4711"}, Told("192.0.2.1", "http", None)),
        ({"x-forwarded-for": "2001:db8::1"}, Told("2001:db8::1", "http", None)),
        ({"x-forwarded-for": "10.0.0.2, 10.0.0.1"}, Told("10.0.0.2", "http", None)),
        ({"x-forwarded-for": "6.6.6.6, nonsense"}, Told(None, "http", None)),
        ({"x-forwarded-proto": "https"}, Told("127.0.0.1", "https", None)),
        ({"x-forwarded-proto": "https, http"}, Told("127.0.0.1", "http", None)),
        ({"x-forwarded-host": "evil.example, a.example:8443"}, Told("127.0.0.1", "http", "a.example:8443")),
        (
            {"forwarded": 'for=6.6.6.6, For="[2001:db8::1]:4711";Proto=https;host="a.example:1", for=10.0.0.1'},
            Told("2001:db8::1", "https", "a.example:1"),
        ),
        ({"forwarded": "for=unknown;proto=https"}, Told(None, "https", None)),
        ({"forwarded": "for=192.0.2.1 and more"}, Told("127.0.0.1", "http", None)),
        (
            {"forwarded": "for=6.6.6.6;proto=https", "x-forwarded-for": "192.0.2.1"},
            Told("192.0.2.1", "http", None),
        ),
    ],
)
def test_the_last_word_is_that_of_the_proxy_and_the_first_stranger_is_the_client(
    headers: dict[str, str], told: Told
) -> None:
    assert PROXIES.hear("127.0.0.1", Headers(headers)) == told


@pytest.mark.parametrize("peer", ["127.0.0.2", "192.0.2.1", "2001:db8:2::1", "", "testclient"])
def test_others_are_not_heard(peer: str) -> None:
    assert PROXIES.hear(peer, Headers({"x-forwarded-for": "6.6.6.6"})) is None


def test_an_address_of_ipv4_is_known_in_either_way_of_writing_it() -> None:
    assert PROXIES.hear("::ffff:10.0.0.1", Headers({"x-forwarded-for": "192.0.2.1"})) is not None


@pytest.mark.parametrize("text", ["proxy", "10.0.0.1/8", "10.0.0.0/33", "", "*", "0.0.0.0/0", "::/0"])
def test_what_is_no_address_or_is_everybody_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--trusted-proxy"):
        TrustedProxies.of([text])
