from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from index.errors import InputError
from retrieval_app.api.security.forwarding import came_by_tls, drop_forwarding, is_forwarded, name_client
from retrieval_app.api.security.front_door import FrontDoor
from retrieval_app.api.security.root_path import check_root_path
from retrieval_app.api.security.trusted_proxies import Told, TrustedProxies


def _scope(address: str, *, scheme: str = "http") -> dict[str, Any]:
    return {"type": "http", "scheme": scheme, "client": (address, 1234)}


@pytest.mark.parametrize("name", ["forwarded", "via", "x-forwarded-for", "x-forwarded-anything", "x-real-ip"])
def test_what_a_proxy_adds_is_seen_and_goes_no_further(name: str) -> None:
    pairs = [(b"host", b"127.0.0.1"), (name.encode(), b"")]
    assert is_forwarded(Headers(raw=pairs))
    assert drop_forwarding(pairs) == [(b"host", b"127.0.0.1")]


def test_what_browsers_and_programs_send_is_no_forwarding() -> None:
    names = ("host", "user-agent", "x-request-id", "x-requested-with", "referer", "forwarded-by-me", "viable")
    assert not is_forwarded(Headers(dict.fromkeys(names, "x")))


@pytest.mark.parametrize(
    ("peer", "told", "name"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # who is no proxy on this machine is not believed
        ("127.0.0.1", "203.0.113.1, 198.51.100.1", "198.51.100.1"),  # before the last anybody may have sent
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("", None, "unknown"),
    ],
)
def test_wrong_tries_are_counted_by_a_trustworthy_address(peer: str, told: str | None, name: str) -> None:
    headers = Headers({} if told is None else {"x-forwarded-for": told})
    assert name_client(_scope(peer), headers) == name


def test_only_a_proxy_on_this_machine_is_believed_to_speak_tls() -> None:
    told = Headers({"x-forwarded-proto": "https"})
    assert came_by_tls(_scope("127.0.0.1"), told)
    assert came_by_tls(_scope("192.0.2.1", scheme="https"), Headers({}))
    assert not came_by_tls(_scope("192.0.2.1"), told)
    assert not came_by_tls(_scope("127.0.0.1"), Headers({}))


PROXIES = TrustedProxies.of(["127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48"])


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, Told("127.0.0.1", "http", None)),
        ({"x-forwarded-for": "6.6.6.6, 192.0.2.1, 10.1.1.1, 2001:db8:1::7"}, Told("192.0.2.1", "http", None)),
        ({"x-forwarded-for": "192.0.2.1:4711"}, Told("192.0.2.1", "http", None)),
        ({"x-forwarded-for": "10.0.0.2, 10.0.0.1"}, Told("10.0.0.2", "http", None)),
        ({"x-forwarded-for": "6.6.6.6, nonsense"}, Told(None, "http", None)),
        ({"x-forwarded-proto": "https"}, Told("127.0.0.1", "https", None)),
        ({"x-forwarded-proto": "https, http"}, Told("127.0.0.1", "http", None)),
        ({"x-forwarded-host": "evil.example, a.example:8443"}, Told("127.0.0.1", "http", "a.example:8443")),
        ({"forwarded": 'for=6.6.6.6, For="[2001:db8::1]:4711";Proto=https;host="a.example:1", for=10.0.0.1'},
         Told("2001:db8::1", "https", "a.example:1")),
        ({"forwarded": "for=unknown;proto=https"}, Told(None, "https", None)),
        ({"forwarded": "for=192.0.2.1 and more"}, Told("127.0.0.1", "http", None)),
        ({"forwarded": "for=6.6.6.6", "x-forwarded-for": "192.0.2.1"}, Told("192.0.2.1", "http", None)),
    ],
)  # fmt: skip
def test_the_first_address_that_is_no_proxy_is_the_client(headers: dict[str, str], told: Told) -> None:
    assert PROXIES.hear("127.0.0.1", Headers(headers)) == told


def test_others_are_not_heard_and_ipv4_is_known_in_either_way_of_writing_it() -> None:
    for peer in ("127.0.0.2", "192.0.2.1", "2001:db8:2::1", "", "testclient"):
        assert PROXIES.hear(peer, Headers({"x-forwarded-for": "6.6.6.6"})) is None
    assert PROXIES.hear("::ffff:10.0.0.1", Headers({"x-forwarded-for": "192.0.2.1"})) is not None


@pytest.mark.parametrize("text", ["proxy", "10.0.0.1/8", "10.0.0.0/33", "", "*", "0.0.0.0/0", "::/0"])
def test_what_is_no_address_or_is_everybody_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--trusted-proxy"):
        TrustedProxies.of([text])


FORGED = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example"}


async def _tell(scope: Scope, receive: Receive, send: Send) -> None:
    headers = Headers(scope=scope)
    seen = {
        "path": scope["path"], "client": name_client(scope, headers), "tls": came_by_tls(scope, headers),
        "host": headers["host"], "forwarded": is_forwarded(headers), "url": str(Request(scope).url.path),
    }  # fmt: skip
    await JSONResponse(seen)(scope, receive, send)


def _ask(path: str, *, peer: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
    client = TestClient(FrontDoor(_tell, **options), client=(peer, 1), follow_redirects=False)
    return client.get(path, headers=headers or {})


def test_what_a_trusted_proxy_says_is_what_the_server_sees() -> None:
    proxies = TrustedProxies.of(["10.0.0.1"])
    seen = _ask("/v1/x", peer="10.0.0.1", headers=FORGED, proxies=proxies).json()
    assert seen == {
        "path": "/v1/x", "client": "6.6.6.6", "tls": True, "host": "evil.example", "forwarded": True, "url": "/v1/x",
    }  # fmt: skip


@pytest.mark.parametrize("peer", ["10.0.0.2", "127.0.0.1"])
def test_of_others_it_is_only_seen_that_it_was_passed_on(peer: str) -> None:
    seen = _ask("/v1/x", peer=peer, headers=FORGED, proxies=TrustedProxies.of(["10.0.0.1"])).json()
    assert (seen["client"], seen["tls"], seen["host"], seen["forwarded"]) == (peer, False, "testserver", True)


def test_a_trusted_proxy_that_adds_no_header_is_seen_too() -> None:
    assert _ask("/", peer="127.0.0.1", proxies=TrustedProxies.of(["127.0.0.1"])).json()["forwarded"]
    assert not _ask("/", peer="127.0.0.1", proxies=TrustedProxies.of(["10.0.0.1"])).json()["forwarded"]


@pytest.mark.parametrize(
    ("asked", "path"),
    [("/photos/", "/"), ("/photos/v1/x", "/v1/x"), ("/v1/x", "/v1/x"), ("/photosbooth", "/photosbooth")],
)
def test_a_path_is_the_same_whether_the_proxy_takes_the_root_away_or_not(asked: str, path: str) -> None:
    assert _ask(asked, peer="127.0.0.1", root_path="/photos").json()["path"] == path


def test_the_root_without_its_slash_leads_to_the_page_with_its_search() -> None:
    answer = _ask("/photos?view=map", peer="127.0.0.1", root_path="/photos")
    assert (answer.status_code, answer.headers["location"]) == (307, "/photos/?view=map")
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize(
    "text", ["photos", "//evil.example", "/a/../b", "/a b", "/v1", "/gradio/x", "/é", "/a//b"]
)
def test_a_root_that_is_no_path_or_the_servers_own_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--root-path"):
        check_root_path(text)
