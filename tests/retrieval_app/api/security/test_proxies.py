from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from index.errors import InputError
from retrieval_app.api.security.access import choose_access
from retrieval_app.api.security.addresses import (
    check_proxies,
    check_root_path,
    drop_forwarding,
    is_forwarded,
    name_client,
)
from retrieval_app.api.security.middleware import RootPath
from retrieval_app.server.options import ServeOptions


@pytest.mark.parametrize("name", ["forwarded", "via", "x-forwarded-for", "x-forwarded-anything", "x-real-ip"])
def test_what_a_proxy_adds_is_seen_and_goes_no_further(name: str) -> None:
    pairs = [(b"host", b"127.0.0.1"), (name.encode(), b"")]
    assert is_forwarded(Headers(raw=pairs))
    assert drop_forwarding(pairs) == [(b"host", b"127.0.0.1")]


def test_what_browsers_and_programs_send_is_no_forwarding() -> None:
    names = ("host", "user-agent", "x-request-id", "x-requested-with", "referer", "forwarded-by-me", "viable")
    assert not is_forwarded(Headers(dict.fromkeys(names, "x")))


async def _tell(scope: Scope, receive: Receive, send: Send) -> None:
    headers = Headers(scope=scope)
    seen = {
        "path": scope["path"],
        "client": name_client(scope),
        "scheme": scope["scheme"],
        "forwarded": is_forwarded(headers),
        "url": str(Request(scope).url.path),
    }
    await JSONResponse(seen)(scope, receive, send)


def _ask(path: str, *, peer: str, root_path: str = "", **headers: str) -> Any:
    """What an application sees behind the middleware, with proxies on this machine and in a network."""
    app = ProxyHeadersMiddleware(
        RootPath(_tell, root_path=root_path), trusted_hosts=check_proxies(["127.0.0.1", "10.0.0.0/8"])
    )
    client = TestClient(app, client=(peer, 1), follow_redirects=False)  # type: ignore[arg-type]
    return client.get(path, headers=headers)


@pytest.mark.parametrize(
    ("peer", "told", "name"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # who is no proxy is not believed
        ("127.0.0.1", "203.0.113.1, 198.51.100.1", "198.51.100.1"),  # before the last anybody may have sent
        ("127.0.0.1", "6.6.6.6, 192.0.2.1, 10.1.1.1", "192.0.2.1"),
        ("10.2.2.2", "192.0.2.1:4711", "192.0.2.1"),
        ("127.0.0.1", "nonsense", "unknown"),
        ("127.0.0.1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("", None, "unknown"),
    ],
)
def test_wrong_tries_are_counted_by_a_trustworthy_address(peer: str, told: str | None, name: str) -> None:
    seen = _ask("/v1/x", peer=peer, **({} if told is None else {"X-Forwarded-For": told})).json()
    assert (seen["client"], seen["forwarded"]) == (name, told is not None)


@pytest.mark.parametrize(("peer", "scheme"), [("127.0.0.1", "https"), ("10.0.0.1", "https"), ("192.0.2.1", "http")])
def test_only_a_proxy_that_is_known_is_believed_to_speak_tls(peer: str, scheme: str) -> None:
    assert _ask("/v1/x", peer=peer, **{"X-Forwarded-Proto": "https"}).json()["scheme"] == scheme


def test_behind_a_named_proxy_nobody_is_of_this_machine(small_gallery: Path) -> None:
    options = {"trusted_proxies": ("127.0.0.1",), "allowed_hosts": ("photos.example.org",)}
    assert choose_access(ServeOptions.of(small_gallery)).loopback
    access = choose_access(ServeOptions.of(small_gallery, **options))
    assert not access.loopback
    assert "review" not in access.describe_stranger(Headers({})).rights  # though it adds no header


@pytest.mark.parametrize("text", ["proxy", "10.0.0.1/8", "10.0.0.0/33", "", "*", "0.0.0.0/0", "::/0"])
def test_what_is_no_address_or_is_everybody_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--trusted-proxy"):
        check_proxies([text])


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


@pytest.mark.parametrize("text", ["photos", "//evil.example", "/a/../b", "/a b", "/v1", "/gradio/x", "/é", "/a//b"])
def test_a_root_that_is_no_path_or_the_servers_own_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--root-path"):
        check_root_path(text)
