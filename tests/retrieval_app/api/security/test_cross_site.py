from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from index.errors import InputError
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.cors import CrossOrigin
from retrieval_app.api.security.cors_origins import check_origins
from retrieval_app.api.security.cross_site import comes_from_another_site
from tests.retrieval_app.api.conftest import TOKEN, serve

HOSTILE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # another port of this host, where anybody may listen
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:7860"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:7861"},
    {"Referer": "http://evil.example/page?http://127.0.0.1:7860/"},
    {"Referer": "http://127.0.0.1:78601/"},
    {"Referer": "about:blank"},
    {"Origin": "http://evil.example", "Referer": "http://127.0.0.1:7860/"},
]
OWN: list[dict[str, str]] = [
    {},
    {"User-Agent": "curl/8.5.0"},
    {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:7860"},
    {"Origin": "http://127.0.0.1:7860"},
    {"Referer": "http://127.0.0.1:7860/?view=labels"},
]


@pytest.mark.parametrize("headers", HOSTILE, ids=str)
def test_another_site_can_neither_read_from_the_api_nor_write(client: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/v1/gallery"), ("GET", "/v1/nothing"), ("POST", "/v1/labels/undo")):
        response = client.request(method, path, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "cross_site"), path
    assert client.request("HEAD", "/v1/gallery", headers=headers).status_code == 403


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_the_page_and_programs_read_and_write(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/v1/labels/file", headers=headers).status_code == 200
    assert client.post("/v1/labels/undo", headers=headers).status_code == 200


def test_a_link_on_another_site_opens_the_page_and_nothing_else(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Referer": "https://mail.example/"}
    assert client.get("/?view=map", headers=headers).status_code == 200
    for path in ("/v1/images/1/thumbnail", "/v1/labels/file", "/v1/health", "/v1/openapi.json"):
        assert client.get(path, headers=headers).status_code == 403, path
    for headers, status in (({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-origin"}, 200)):
        assert client.get("/gradio/gradio_api/file=/tmp/x.webp", headers=headers).status_code == status
    assert not comes_from_another_site(Headers({"host": "Photos.Example", "origin": "https://photos.EXAMPLE"}))


APP = "https://app.example.org"
FROM_APP = {"Origin": APP, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Referer": f"{APP}/"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def letting(served: Path) -> Iterator[TestClient]:
    """A server with a token that lets pages of one site ask."""
    with serve(served, access=Access(token=TOKEN)) as client:
        assert isinstance(client.app, FastAPI)
        client.app.add_middleware(CrossOrigin, origins=check_origins([f"{APP}/"]))
        yield client


def test_a_named_site_asks_with_the_token_and_reads(letting: TestClient) -> None:
    answer = letting.get("/v1/gallery", headers={**FROM_APP, **BEARER})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
    assert "Origin" in answer.headers["vary"]
    assert letting.post("/v1/labels/undo", headers={**FROM_APP, **BEARER}).status_code == 200
    refused = letting.get("/v1/gallery", headers=FROM_APP)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, APP)
    for told in (answer, refused):
        assert "access-control-allow-credentials" not in told.headers
    assert "access-control-allow-origin" not in letting.get("/", headers={**FROM_APP, **BEARER}).headers


def test_the_browser_is_told_what_may_be_sent(letting: TestClient) -> None:
    asked = {
        **FROM_APP,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = letting.options("/v1/search", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, APP)
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "Authorization" in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://app.example.org", f"{APP}:444", f"{APP}.evil.example", "null", ""]
)
def test_no_other_site_gets_in(letting: TestClient, origin: str) -> None:
    headers = {**FROM_APP, "Origin": origin, **BEARER}
    for answer in (letting.get("/v1/gallery", headers=headers), letting.options("/v1/search", headers=headers)):
        assert answer.status_code in (401, 403, 405)
        assert "access-control-allow-origin" not in answer.headers


def test_the_cookie_of_a_visitor_opens_nothing_for_the_named_site(letting: TestClient) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    signed_in = letting.post("/", content=f"token={TOKEN}", headers=form, follow_redirects=False)
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    letting.cookies.clear()
    assert letting.get("/v1/gallery", headers={"Cookie": cookie}).status_code == 200
    assert letting.get("/v1/gallery", headers={**FROM_APP, "Cookie": cookie}).status_code == 401


@pytest.mark.parametrize(
    "text", ["*", "app.example.org", f"{APP}/path", "https://*.example.org", "null", "file://x"]
)
def test_what_is_no_site_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--cors-origin"):
        check_origins([text])


def test_origins_are_compared_as_browsers_write_them() -> None:
    named = ["HTTPS://App.Example.org:443/", "http://localhost:80", "http://[::1]:5173"]
    assert check_origins(named) == {APP, "http://localhost", "http://[::1]:5173"}
