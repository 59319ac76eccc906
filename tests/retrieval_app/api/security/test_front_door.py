from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from index.errors import InputError
from retrieval_app.api.security.forwarding import came_by_tls, is_forwarded, name_client
from retrieval_app.api.security.front_door import FrontDoor
from retrieval_app.api.security.root_path import check_root_path
from retrieval_app.api.security.trusted_proxies import TrustedProxies

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
